"""Removes the files of former loops: or creating and deleting SliceSets could fill a node's disk."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path

from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.watchdog.journal import journal_path

KEPT = 8
"""Records of the last former loops are kept."""
EVERY_S = 60.0
MOST_AT_ONCE = 5_000
"""Files of one loop that are removed in one go: the same thread supervises the running loops."""
MARKS = ".sliceset-loops"


class Leftovers:
    """Marks the folders of the agent's loops, as others may be beside them; marks survive a reboot.

    Args:
        folder: of the loops' configurations.
        roots: folders of their sockets, and of their journals and records.
    """

    def __init__(self, folder: Path, roots: tuple[Path, Path]) -> None:
        self._folder, self._roots = folder, roots
        self._marks = roots[1] / MARKS
        self._again_s = -EVERY_S

    def mark(self, instance: str) -> None:
        """Mark the folders of a loop that is about to be started. Raises OSError."""
        self._roots[1].mkdir(mode=0o755, parents=True, exist_ok=True)
        self._marks.mkdir(mode=0o700, exist_ok=True)
        (self._marks / instance).touch(mode=0o600)
        self._again_s = -EVERY_S

    def tidy(self, in_use: Collection[str], now_s: float) -> list[str]:
        """Remove the files of loops that are not in use, once a minute; returns failures, a line each.

        Nothing is removed of a loop whose knobs are still to be restored.
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
                    self._remove_loop(mark.name, everything=position >= KEPT)
                except (OSError, ActuatorError) as error:
                    failures.append(f"{mark.name}: {getattr(error, 'strerror', None) or error}")
        return failures

    def _remove_loop(self, instance: str, everything: bool) -> None:
        for kind in ("node", "run"):
            (self._folder / f"{instance}.{kind}.yaml").unlink(missing_ok=True)
        state = self._roots[1] / instance
        if journal_path(state).exists():
            return
        _remove_folder(self._roots[0] / instance)
        if everything:
            _remove_folder(state)
            (self._marks / instance).unlink(missing_ok=True)


def _remove_folder(folder: Path) -> None:
    """Remove a folder in which another user writes. Raises OSError after a part was removed.

    No link is followed: names are looked up in open folders. However deep the folders are nested, two are open at a
    time: deeper folders are moved up first.
    """
    turns = iter(range(MOST_AT_ONCE))
    try:
        top = _take_over(folder)
    except FileNotFoundError:
        return
    try:
        again = True
        while again:
            again = False
            for name in _folders(top, turns):
                again = True
                inner = _take_over(name, top)
                try:
                    for deeper in _folders(inner, turns):
                        os.close(_take_over(deeper, inner))  # moving a folder takes the right to write in it
                        os.rename(deeper, uuid.uuid4().hex, src_dir_fd=inner, dst_dir_fd=top)
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    folder.rmdir()


def _take_over(folder: Path | str, within: int | None = None) -> int:
    """Open a folder and become its only writer: root of a container may have no CAP_DAC_OVERRIDE.

    Others may read as before, since a loop that uses the folder may yet be started.
    """
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
    try:
        itself = Path(f"/proc/self/fd/{descriptor}")  # and nothing else that has got its name since
        os.chown(itself, os.geteuid(), -1)
        itself.chmod(os.fstat(descriptor).st_mode & 0o755 | 0o700)
        return os.open(itself, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(descriptor)


def _folders(folder: int, turns: Iterator[int]) -> Iterator[str]:
    """The folders in it; everything else is removed on the way."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if next(turns, None) is None:
                raise OSError(f"more than {MOST_AT_ONCE} files; the rest goes later")
            if entry.is_dir(follow_symlinks=False):
                yield entry.name
            else:
                os.unlink(entry.name, dir_fd=folder)
