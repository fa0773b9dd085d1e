"""Files of loops that are no more: whoever may write SliceSets could fill a node's disk by making and deleting them."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path

from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.watchdog.journal import FILE
from slicepilot.controller.watchdog.journal_file import copy_of

KEPT = 8
"""Records of so many loops that have gone stay, those of the last ones."""
EVERY_S = 60.0
MOST_AT_ONCE = 5_000
"""Files of one loop that are removed in a row: who removes them looks after loops that run."""
MARKS = ".sliceset-loops"


class Leftovers:
    """Knows which folders are the agent's loops', by marks that outlive a reboot; others may have theirs beside them.

    Args:
        folder: where loops' configurations are.
        roots: where they have their sockets, and their journals and records.
    """

    def __init__(self, folder: Path, roots: tuple[Path, Path]) -> None:
        self._folder, self._roots = folder, roots
        self._marks = roots[1] / MARKS
        self._again_s = -EVERY_S

    def used(self, instance: str) -> None:
        """A loop of this name is about to be started. Raises OSError."""
        self._roots[1].mkdir(mode=0o755, parents=True, exist_ok=True)
        self._marks.mkdir(mode=0o700, exist_ok=True)
        (self._marks / instance).touch(mode=0o600)
        self._again_s = -EVERY_S

    def tidy(self, in_use: Collection[str], now_s: float) -> list[str]:
        """Remove what is left of others, now and then; returns what could not be, a line each.

        Where something is still to be put back nothing is removed.
        """
        if now_s - self._again_s < EVERY_S:
            return []
        self._again_s = now_s
        failures: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            marks = [mark for mark in os.scandir(self._marks) if mark.name not in in_use]
            gone = sorted(marks, key=lambda mark: mark.stat(follow_symlinks=False).st_mtime_ns, reverse=True)
            for position, mark in enumerate(gone):
                try:
                    self._remove(mark.name, everything=position >= KEPT)
                except (OSError, ActuatorError) as error:
                    failures.append(f"{mark.name}: {getattr(error, 'strerror', None) or error}")
        return failures

    def _remove(self, instance: str, everything: bool) -> None:
        for kind in ("node", "run"):
            (self._folder / f"{instance}.{kind}.yaml").unlink(missing_ok=True)
        state = self._roots[1] / instance
        if (state / FILE).exists() or copy_of(state).exists():
            return
        _removed(self._roots[0] / instance)
        if everything:
            _removed(state)
            (self._marks / instance).unlink(missing_ok=True)


def _removed(folder: Path) -> None:
    """Remove a folder in which another user writes. Raises OSError; what has gone by then is gone.

    No link is followed: names are looked up in folders that are held open. However deep he has nested folders, two are
    open at a time: what is further down is moved up before.
    """
    turns = iter(range(MOST_AT_ONCE))
    try:
        top = _taken_over(folder)
    except FileNotFoundError:
        return
    try:
        found = True
        while found:
            found = False
            for name in _folders(top, turns):
                found = True
                one = _taken_over(name, top)
                try:
                    for deeper in _folders(one, turns):
                        os.close(_taken_over(deeper, one))  # who moves a folder has to be able to write in it
                        os.rename(deeper, uuid.uuid4().hex, src_dir_fd=one, dst_dir_fd=top)
                finally:
                    os.close(one)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    folder.rmdir()


def _taken_over(folder: Path | str, within: int | None = None) -> int:
    """A descriptor of a folder, in which we alone write from now on: root of a container may have no CAP_DAC_OVERRIDE.

    A loop may yet be started that uses it, so what others may read they still may.
    """
    found = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
    try:
        itself = Path(f"/proc/self/fd/{found}")  # and nothing else that has its name meanwhile
        os.chown(itself, os.geteuid(), -1)
        itself.chmod(os.fstat(found).st_mode & 0o755 | 0o700)
        return os.open(itself, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(found)


def _folders(folder: int, turns: Iterator[int]) -> Iterator[str]:
    """Those in it, one after the other; all else is removed."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if next(turns, None) is None:
                raise OSError(f"more than {MOST_AT_ONCE} files; the rest goes later")
            if entry.is_dir(follow_symlinks=False):
                yield entry.name
            else:
                os.unlink(entry.name, dir_fd=folder)
