"""``slicepilot top`` in a terminal of 80 by 24: keys, signals, colours, and a terminal that is left as it was."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.cells import cell_len

from .rings import Writer

ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[()][A-Z0-9])")
ENTER, LEAVE, HIDE, SHOW = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25l", "\x1b[?25h"


class Terminal:
    """``slicepilot top`` in a terminal of 80 by 24."""

    def __init__(self, root: Path, *options: str, **environment: str) -> None:
        self.end, self.terminal = pty.openpty()
        termios.tcsetwinsize(self.terminal, (24, 80))
        self.before = termios.tcgetattr(self.terminal)
        inherited = {key: os.environ[key] for key in ("PATH", "HOME", "PYTHONPATH") if key in os.environ}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "slicepilot.cli", "top", "--run-root", str(root), *options],
            stdin=self.terminal,
            stdout=self.terminal,
            stderr=self.terminal,
            env=inherited | {"TERM": "xterm-256color", "LANG": "C.UTF-8"} | environment,
            start_new_session=True,
            preexec_fn=self._control,  # noqa: PLW1509 (a child without threads)
        )
        self.raw = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()  # what is read may end inside a character

    @staticmethod
    def _control() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def read(self, seconds: float = 0.05) -> str:
        """All that was drawn so far."""
        while select.select([self.end], [], [], seconds)[0]:
            self.raw += self._decoder.decode(os.read(self.end, 1 << 16))
        return self.raw

    def until(self, pattern: str, timeout_s: float = 15.0) -> str:
        """The picture that a pattern occurs in, from now on."""
        start, end = len(self.raw), time.monotonic() + timeout_s
        while time.monotonic() < end:
            for picture in reversed(self.read()[start:].split("\x1b[H")):
                text = ESCAPE.sub("", picture)
                if re.search(pattern, text):
                    return text
        raise AssertionError(f"{pattern} does not come; the last: {ESCAPE.sub('', self.raw[-4000:])}")

    def press(self, key: str) -> None:
        os.write(self.end, key.encode())

    def ended(self) -> int:
        """Its exit code; the terminal must be as it was."""
        end = time.monotonic() + 10
        while self.process.poll() is None and time.monotonic() < end:
            self.read()  # else it waits for room to write
        code = self.process.wait(1)
        self.read()
        assert self.raw.count(ENTER) == self.raw.count(LEAVE) == 1
        assert self.raw.rindex(LEAVE) > self.raw.rindex(ENTER)
        assert self.raw.rindex(SHOW) > self.raw.rindex(HIDE)
        assert termios.tcgetattr(self.terminal) == self.before
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for descriptor in (self.end, self.terminal):
            os.close(descriptor)


@pytest.fixture
def terminal(path: Path) -> Iterator[Callable[..., Terminal]]:
    started: list[Terminal] = []

    def start(*options: str, **environment: str) -> Terminal:
        started.append(Terminal(path.parents[1], *options, **environment))
        return started[-1]

    yield start
    for item in started:
        item.close()


@pytest.mark.parametrize(
    ("way", "code"), [("q", 0), ("\x03", 0), (signal.SIGINT, 0), (signal.SIGTERM, 0), (signal.SIGHUP, 0)]
)
def test_the_terminal_comes_back(
    path: Path, terminal: Callable[..., Terminal], way: str | signal.Signals, code: int
) -> None:
    Writer(path).write()
    top = terminal()
    lines = top.until("(?s)slice5.*q quit").splitlines()
    assert len(lines) <= 24
    assert all(cell_len(line) <= 80 for line in lines)
    assert "▄" in top.raw
    assert top.raw.startswith(ENTER) or ENTER in top.raw[:200]
    if isinstance(way, str):
        top.press(way)
    else:
        top.process.send_signal(way)
    assert top.ended() == code


def test_nothing_is_opened_for_writing(path: Path, terminal: Callable[..., Terminal]) -> None:
    Writer(path).write()
    top = terminal()
    top.until("slice5")
    folder = Path("/proc") / str(top.process.pid)
    writable = []
    for fd in (folder / "fd").iterdir():
        target = str(fd.readlink())
        [flags] = re.findall(r"^flags:\s+(\d+)$", (folder / "fdinfo" / fd.name).read_text(), re.MULTILINE)
        # Its terminal, and the pipe in which it hears of its own signals.
        if int(flags, 8) & os.O_ACCMODE != os.O_RDONLY and not target.startswith(("/dev/", "pipe:")):
            writable.append(target)
    assert writable == []
    [mapping] = [line for line in (folder / "maps").read_text().splitlines() if line.endswith(str(path))]
    assert mapping.split()[1] == "r--s"
    top.press("q")
    assert top.ended() == 0


def test_pages_are_turned_by_keys(path: Path, terminal: Callable[..., Terminal]) -> None:
    Writer(path, 40).write(50)
    top = terminal()
    top.until("page 1/3")
    top.press("n")
    assert "slice19 " in top.until("page 2/3")
    top.press("\x1b[6~")
    assert "slice40 " in top.until("page 3/3")
    top.press("p")
    top.until("page 2/3")
    top.press("\x1a")  # Ctrl-Z would leave the screen to a process that is stopped
    top.press("n")
    top.until("page 3/3")
    top.press("q")
    assert top.ended() == 0
