"""The terminal: taken over, drawn twice a second, and given back as it was, however it ends."""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from slicepilot.controller.system.signals import StopRequest

from .follower import Follower
from .frame import View, frame, waiting
from .glyphs import Glyphs

HISTORY_S = 60
KEY = re.compile(rb"\x1b\[[0-9;]*[A-Za-z~]|.", re.DOTALL)  # a sequence of a key that has no character, or one byte
QUIT = {b"q", b"Q", b"\x03", b"\x04", b""}  # Ctrl-C, Ctrl-D, and a terminal that has gone
TURNS = {b"n": 1, b" ": 1, b"\x1b[6~": 1, b"\x1b[B": 1, b"p": -1, b"\x1b[5~": -1, b"\x1b[A": -1}
"""By how many pages a key turns: n, space, page down, down; p, page up, up."""


def lines_of(follower: Follower, view: View) -> list[Text]:
    """What there is to see now."""
    if follower.status is None:
        return waiting(str(follower.path), view)
    return frame(follower.status.document(HISTORY_S), view)


def show(follower: Follower, console: Console, glyphs: Glyphs, interval_s: float) -> None:
    """Draw until somebody quits, by key, SIGINT, SIGTERM or SIGHUP, or the terminal has gone."""
    terminal = sys.stdin.fileno()
    screen = Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    page = 0
    with StopRequest() as stop:
        try:
            with keyboard(terminal) as keys, screen:
                while not stop.asked:
                    follower.look()
                    view = View(*console.size, glyphs, page, absent=not follower.present, stale=follower.stale)
                    screen.update(Group(*lines_of(follower, view)), refresh=True)
                    pressed = keys(interval_s)
                    if not QUIT.isdisjoint(pressed):
                        return
                    page = max(0, page + sum(TURNS.get(key, 0) for key in pressed))
        except (OSError, termios.error):
            if not stop.asked:  # a hang-up says so by a signal as well
                raise


@contextlib.contextmanager
def keyboard(terminal: int) -> Iterator[Callable[[float], list[bytes]]]:
    """Single keys: a function that waits so many seconds for some, and returns them; an empty one is the end.

    Ctrl-C and Ctrl-Z arrive as keys too: the screen must not stay behind a process that was stopped. Where the
    descriptor is no terminal there are no keys.
    """
    if not os.isatty(terminal):
        yield _no_keys
        return
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        mode = termios.tcgetattr(terminal)
        mode[3] &= ~termios.ISIG
        termios.tcsetattr(terminal, termios.TCSANOW, mode)
        yield lambda timeout_s: _keys(terminal, timeout_s)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _keys(terminal: int, timeout_s: float) -> list[bytes]:
    if not select.select([terminal], [], [], timeout_s)[0]:
        return []
    return KEY.findall(os.read(terminal, 256)) or [b""]


def _no_keys(timeout_s: float) -> list[bytes]:
    time.sleep(timeout_s)
    return []
