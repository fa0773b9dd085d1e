"""How a command ends when it is asked to: within a second, and what it has made is put away on the way out.

SIGINT and SIGTERM raise, and the stack unwinds. Three things keep them from that, and each has an answer:

- C code that calls Python back (a compiler that tells of its progress, a finalizer): what is raised there is printed
  and forgotten. Such a signal is sent once more, a moment later.
- Imports: packages catch everything while they look for optional parts. The process ends at once.
- C code that does not return for a long time (a compiler): Python does not handle the signal before. A thread that
  hears of it ends the process.

The latter two only before something has been made outside the process (`slicepilot.configs.outside`). The interpreter's
own end, which frees all that PyTorch has, is cut short.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from functools import cache
from types import FrameType
from typing import Any, NoReturn

from slicepilot.configs import outside

AGAIN_S = 0.05
PATIENCE_S = 0.6
"""For C code to come back."""

_asked: list[int] = []
"""Signals that have asked this process to end, as far as Python has handled them."""


def put_away_when_ended() -> None:
    """Have SIGINT and SIGTERM end this process as described above."""
    owner = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        ours = os.getpid() == owner
        if ours:
            _asked.append(number)
            if not outside.made() and _imports(frame):
                _end_at_once(number)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        if not ours:
            # A forked child, which libraries end by SIGTERM too: unwinding its copy would put away the parent's things.
            os._exit(128 + number)
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    if signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None):  # as in a shell's background
        signal.signal(signal.SIGINT, end)
    _send_again_what_is_lost()


def _send_again_what_is_lost() -> None:
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


@cache
def listen_in_c_code() -> None:
    """From now on a signal that Python has not handled within `PATIENCE_S` ends the process.

    It takes a thread, and capabilities belong to threads: not for a command that gives them up.
    """
    heard, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    # A forked child has the same pipe: what it is sent, as when a library ends it, must not be heard here.
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
    threading.Thread(target=_listen, args=(heard,), name="signals", daemon=True).start()


def _listen(heard: int) -> None:
    with os.fdopen(heard, "rb", buffering=0) as numbers:
        while number := numbers.read(1):
            if number[0] not in {signal.SIGINT, signal.SIGTERM}:
                continue
            handled = len(_asked)
            time.sleep(PATIENCE_S)
            if len(_asked) == handled == 0 and not outside.made():
                _end_at_once(number[0])


def _imports(frame: FrameType | None) -> bool:
    """Whether a frame, or one that has called it, is of the import system."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def interrupted() -> Iterator[None]:
    """End the process as a signal asked for, whatever has become of it on its way up: C code and libraries turn it into
    errors of their own."""
    try:
        yield
    except KeyboardInterrupt:
        _end(signal.SIGINT)
    except BaseException:
        if _asked:
            _end(_asked[0])
        raise


def _end(number: int) -> NoReturn:
    """What was registered for the interpreter's end is run; the rest of that end takes seconds where PyTorch is loaded.

    The stack has been unwound: all that was made is put away.
    """
    _tell(number)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(128 + number)


def _end_at_once(number: int) -> NoReturn:
    _tell(number)
    os._exit(128 + number)


def _tell(number: int) -> None:
    if number == signal.SIGINT:
        print("slicepilot: error: interrupted", file=sys.stderr, flush=True)
