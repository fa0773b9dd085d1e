"""How a command ends when it is asked to: what it has made (testbeds, loads, knobs) is put away on the way out."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

AGAIN_S = 0.05

_asked: list[int] = []
"""Signals that have asked this process to end."""


def put_away_when_ended() -> None:
    """SIGTERM unwinds the stack as Ctrl-C does; neither gets lost on its way.

    A signal that is handled while C calls Python back (a compiler that tells of its progress, a finalizer) raises where
    nobody can see it: Python names the exception and goes on. Such a signal is sent once more, a moment later.
    """
    owner = os.getpid()

    def end(number: int, _: object) -> None:
        ours = os.getpid() == owner
        if ours:
            _asked.append(number)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        if not ours:
            # A forked child, which libraries end by SIGTERM too: unwinding its copy would put away the parent's things.
            os._exit(128 + number)
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not ignored, as in a shell's background
        signal.signal(signal.SIGINT, end)
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


@contextlib.contextmanager
def interrupted() -> Iterator[None]:
    """End the process as a signal asked for, whatever has become of it on its way up: C code and imports that are
    interrupted turn it into errors of their own."""
    try:
        yield
    except KeyboardInterrupt:
        _end(signal.SIGINT)
    except SystemExit:
        if _asked:
            _end(_asked[0])
        raise
    except BaseException:
        if _asked:
            _end(_asked[0])
        raise


def _end(number: int) -> NoReturn:
    if number == signal.SIGINT:
        print("slicepilot: error: interrupted", file=sys.stderr)
    sys.exit(128 + number)
