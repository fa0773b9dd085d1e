"""SIGINT and SIGTERM end a command within a second, and what it has created is removed on the way out.

The signals raise an exception, and the stack unwinds. Three things prevent that, and each has a remedy:

- C code that calls Python back (a compiler's progress, a finalizer): an exception is printed and lost. Such a signal is
  sent again a moment later.
- Imports: packages catch everything while they look for optional parts. The process ends at once.
- C code that does not return for a long time (a compiler): Python does not handle the signal. A thread that receives it
  ends the process.

The last two apply only before something was created outside the process (`slicepilot.configs.outside`). The
interpreter's own end, which frees all memory of PyTorch, is cut short.
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
PATIENCE_S = 0.6  # for C code to return

_signals: list[int] = []  # those to end that Python has handled


def unwind_on_signals() -> None:
    """Let SIGINT and SIGTERM end this process as described above."""
    owner = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        ours = os.getpid() == owner
        if ours:
            _signals.append(number)
            if not outside.made() and _imports(frame):
                _end_at_once(number)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        if not ours:
            # A forked child, which libraries may end by SIGTERM: unwinding would remove what the parent created.
            os._exit(128 + number)
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    if signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None):  # as in a shell's background
        signal.signal(signal.SIGINT, end)
    _resend_lost_signals()


def _resend_lost_signals() -> None:
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
def end_in_c_code() -> None:
    """From now on a signal that Python does not handle within `PATIENCE_S` ends the process.

    This needs a thread, and capabilities belong to threads: do not use it in a command that drops them.
    """
    heard, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    # A forked child has the same pipe, and its signals must not end this process.
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
    threading.Thread(target=_listen, args=(heard,), name="signals", daemon=True).start()


def _listen(heard: int) -> None:
    with os.fdopen(heard, "rb", buffering=0) as numbers:
        while number := numbers.read(1):
            if number[0] not in {signal.SIGINT, signal.SIGTERM}:
                continue
            handled = len(_signals)
            time.sleep(PATIENCE_S)
            if len(_signals) == handled == 0 and not outside.made():
                _end_at_once(number[0])


def _imports(frame: FrameType | None) -> bool:
    """Whether a frame or one of its callers belongs to the import system."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def interrupted() -> Iterator[None]:
    """End the process as the signal demands, even if C code or libraries have turned it into another exception."""
    try:
        yield
    except KeyboardInterrupt:
        _end(signal.SIGINT)
    except BaseException:
        if _signals:
            _end(_signals[0])
        raise


def _end(number: int) -> NoReturn:
    """Run the functions registered by atexit, and skip the rest of the interpreter's end: seconds with PyTorch.

    The stack was unwound, so everything is removed.
    """
    _report(number)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(128 + number)


def _end_at_once(number: int) -> NoReturn:
    _report(number)
    os._exit(128 + number)


def _report(number: int) -> None:
    if number == signal.SIGINT:
        print("slicepilot: error: interrupted", file=sys.stderr, flush=True)
