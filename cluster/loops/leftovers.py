"""Files of loops that are no more: whoever may write SliceSets could fill a node's disk by making and deleting them."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection
from pathlib import Path

from ...controller.system.kernel_file import ActuatorError
from ...controller.watchdog.journal import FILE
from ...controller.watchdog.journal_file import copy_of

KEPT = 8
"""Records of so many loops that have gone stay, those of the last ones."""
EVERY_S = 60.0
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
        # Another user writes in them: `rmtree` follows no links that he makes meanwhile.
        _removed(self._roots[0] / instance)
        if everything:
            _removed(state)
            (self._marks / instance).unlink(missing_ok=True)


def _removed(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
