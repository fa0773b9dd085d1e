"""Draws on the terminal twice a second, and restores it at the end."""

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
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from slicepilot.configs import ConfigError
from slicepilot.controller.publisher.status import Status
from slicepilot.controller.record.ring_reader import TickReader
from slicepilot.controller.system.signals import StopRequest

from .drawing import Glyphs
from .frame import View, frame, waiting

HISTORY_S = 60
KEY = re.compile(rb"\x1b\[[0-9;]*[A-Za-z~]|.", re.DOTALL)  # a sequence of a key that has no character, or one byte
QUIT = {b"q", b"Q", b"\x03", b"\x04", b""}  # Ctrl-C, Ctrl-D, and a terminal that has gone
TURNS = {b"n": 1, b" ": 1, b"\x1b[6~": 1, b"\x1b[B": 1, b"p": -1, b"\x1b[5~": -1, b"\x1b[A": -1}
"""Pages by which a key turns: n, space, page down, down; p, page up, up."""


def lines_of(follower: Follower, view: View) -> list[Text]:
    """The present lines."""
    if follower.status is None:
        return waiting(str(follower.path), view)
    return frame(follower.status.document(HISTORY_S), view)


def show(follower: Follower, console: Console, glyphs: Glyphs, interval_s: float) -> None:
    """Draw until a key, SIGINT, SIGTERM or SIGHUP, or the end of the terminal."""
    terminal = sys.stdin.fileno()
    screen = Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    page = 0
    with StopRequest() as stop:
        try:
            with keyboard(terminal) as keys, screen:
                while not stop.requested:
                    follower.look()
                    view = View(*console.size, glyphs, page, absent=not follower.present, stale=follower.stale)
                    screen.update(Group(*lines_of(follower, view)), refresh=True)
                    pressed = keys(interval_s)
                    if not QUIT.isdisjoint(pressed):
                        return
                    page = max(0, page + sum(TURNS.get(key, 0) for key in pressed))
        except (OSError, termios.error):
            if not stop.requested:  # a hang-up also sends a signal
                raise


@contextlib.contextmanager
def keyboard(terminal: int) -> Iterator[Callable[[float], list[bytes]]]:
    """Single keys: a function that waits some seconds for keys and returns them; an empty key is the end.

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


STALE_S = 3.0
STALE_PERIODS = 3.0


class Follower:
    """Reads the ring of one instance, ``RUN/ticks``; opens it read-only and nothing else. With ``wait`` the controller
    may come later.

    Attributes:
        status: of the controller that was seen last; None before the first.
        present: whether it has that path still.

    Raises:
        ConfigError: no controller runs there, unless ``wait``; or the file is not a ring.
    """

    def __init__(self, path: Path, wait: bool = False) -> None:
        self.path = path
        self.status: Status | None = None
        self._reader: TickReader | None = None
        try:
            self._open()
        except ConfigError:
            if not (wait and not path.exists()):
                raise
        self.look()

    @property
    def present(self) -> bool:
        return self._reader is not None

    @property
    def ticks(self) -> int:
        """Number of the controller's ticks so far."""
        return 0 if self._reader is None else self._reader.written

    @property
    def stale(self) -> bool:
        """Whether what is shown is not of now: the controller has gone, or gives no sign of life."""
        if self._reader is None or self.status is None:
            return True
        period_s = self.status.description.get("period_s", 0.0)
        return self.status.beat_age_s > max(STALE_S, STALE_PERIODS * period_s)

    def look(self) -> None:
        """Read new ticks; when the ring was replaced, open the new ring."""
        if self._reader is not None and self._reader.replaced:
            if self.status is not None:
                self.status.update(self._reader)  # what it wrote last stays on the screen
            self.close()
        if self._reader is None:
            try:
                self._open()
            except ConfigError:  # gone, or not yet whole
                return
        if self._reader is not None and self.status is not None:
            self.status.update(self._reader)

    def close(self) -> None:
        """Let go of the ring; what was read stays."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _open(self) -> None:
        self._reader = TickReader(self.path)
        self.status = Status(self._reader.num_slices)
