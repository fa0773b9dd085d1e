"""How a command ends when it is asked to: what it has made (testbeds, loads, knobs) is put away on the way out."""

from __future__ import annotations

import os
import signal
import sys

# `slicepilot.cli` imports this first of all, and signals are answered from then on: it takes no time.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

AGAIN_S = 0.05


def end_at_once() -> None:
    """Until `put_away_when_ended`, Ctrl-C and SIGTERM end the process as they end a command, and nothing is unwound.

    Imports are what a command begins with. There is nothing to put away yet, and an exception in the middle of one may
    come out as another one, or not at all.
    """

    def end(number: int, _: object) -> None:
        if number == signal.SIGINT:
            os.write(2, b"slicepilot: error: interrupted\n")
        os._exit(128 + number)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else a shell has it ignored
        signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)


def put_away_when_ended() -> None:
    """SIGTERM unwinds the stack as Ctrl-C does; neither gets lost on its way.

    A signal that is handled while C calls Python back (a compiler that tells of its progress, a finalizer) raises where
    nobody can see it: Python names the exception and goes on. Such a signal is sent once more, a moment later.
    """
    import threading

    owner = os.getpid()

    def end(number: int, _: object) -> None:
        if os.getpid() != owner:
            # A forked child, which libraries end by SIGTERM too: unwinding its copy would put away the parent's things.
            os._exit(128 + number)
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    if signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, signal.SIG_DFL, None):
        signal.signal(signal.SIGINT, signal.default_int_handler)
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
