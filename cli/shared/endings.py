"""How a command ends when it is asked to: what it has made (testbeds, loads, knobs) is put away on the way out."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

AGAIN_S = 0.05


def put_away_when_ended() -> None:
    """SIGTERM unwinds the stack as Ctrl-C does; neither gets lost on its way.

    A signal that is handled while C calls Python back (a compiler that tells of its progress, a finalizer) raises where
    nobody can see it: Python names the exception and goes on. Such a signal is sent once more, a moment later.
    """
    owner = os.getpid()

    def end(number: int, _: object) -> None:
        if os.getpid() != owner:
            # A forked child, which libraries end by SIGTERM too: unwinding its copy would put away the parent's things.
            os._exit(128 + number)
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    lost = {KeyboardInterrupt: signal.SIGINT, SystemExit: signal.SIGTERM}
    usual = sys.unraisablehook

    def send_again(unraisable: Any) -> None:
        number = lost.get(unraisable.exc_type)
        if number is None:
            usual(unraisable)
            return
        again = threading.Timer(AGAIN_S, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()

    sys.unraisablehook = send_again
