"""A controller's journal on disk, and its second copy in root's own folder: written, read, compared, removed.

The state folder may be on a disk that fails, and other users may have rights there. Original settings hold
until the next boot, so a copy in memory (``/run``) is as good; it also says when a journal on a disk that cannot be
written any more is out of date.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from slicepilot.data.files import PRIVATE, remove_file, replace_file

from .journal import FILE, Journal, JournalError
from .lock import private_folder

PREFIX = "journal-"


@dataclass(frozen=True)
class LeftJournal:
    """What is left of a controller's journal.

    Attributes:
        journal: that holds; None where nothing is to be put back.
        notes: which copy was missing or broken, one line each.
    """

    journal: Journal | None
    notes: tuple[str, ...] = ()


class JournalFile:
    """Both copies of one state folder's journal.

    Args:
        state: the folder. What is held open is the folder itself: whatever is mounted over it later, or put in its
            place, is another one.

    Attributes:
        path: of the copy on disk, through the folder that is held open; for this process and those that inherit
            `descriptor`.

    Raises:
        OSError: the folder cannot be opened.
        ActuatorError: see `private_folder`.
    """

    def __init__(self, state: Path) -> None:
        self.name = str(state / FILE)
        self.copy = copy_of(state)
        self.descriptor = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.path = Path(f"/proc/self/fd/{self.descriptor}") / FILE

    @classmethod
    def inherited(cls, descriptor: int, copy: Path, name: str) -> JournalFile:
        """Of a folder that another process has opened."""
        made = cls.__new__(cls)
        made.name, made.copy, made.descriptor = name, copy, descriptor
        made.path = Path(f"/proc/self/fd/{descriptor}") / FILE
        return made

    def save(self, journal: Journal) -> None:
        """Replace both, on disk when this returns; raises OSError, and the old ones are untouched."""
        data = journal.dump()
        replace_file(self.path, data, PRIVATE)
        replace_file(self.copy, data, PRIVATE)

    def remove(self) -> None:
        """Nothing is left to put back.

        Raises:
            OSError: the one on disk cannot be removed. That it is out of date stands in the other, and is respected.
        """
        _remove(self.path, self.copy)

    def close(self) -> None:
        """Release the folder."""
        os.close(self.descriptor)


def copy_of(state: Path) -> Path:
    """Where the second copy of a state folder's journal is; raises ActuatorError."""
    digest = hashlib.sha256(os.fsencode(state.absolute())).hexdigest()[:16]
    return private_folder() / f"{PREFIX}{digest}-{state.name}"


def copies_below(root: Path) -> list[Path]:
    """State folders in ``root`` of which there is a second copy, also where the folder has gone."""
    names = [path.name.split("-", 2)[2] for path in private_folder().glob(f"{PREFIX}*-*")]
    return [root / name for name in names if copy_of(root / name).exists()]


def find(state: Path) -> LeftJournal:
    """The journal that a controller has left.

    Raises:
        JournalError: none can be used; one line that names both.
        OSError: the one on disk cannot be read, and there is no other.
    """
    other = _Copy.read(copy_of(state))
    try:
        disk = _Copy.read(state / FILE)
    except OSError as error:
        if other.journal is None and not other.empty:
            raise
        disk = _Copy(True, wrong=f"{state / FILE}: {error.strerror}")
    if other.empty:
        return LeftJournal(None, (f"{state / FILE}: out of date, could not be removed",) if disk.there else ())
    if disk.journal is not None or not (disk.there or other.there):
        return LeftJournal(disk.journal)
    if other.journal is None:
        raise JournalError(f"{disk.wrong}; {other.wrong}")
    return LeftJournal(other.journal, (disk.wrong,))


def discard(state: Path) -> None:
    """Remove both: everything was put back; raises OSError for the one on disk, as `JournalFile.remove`."""
    _remove(state / FILE, copy_of(state))


@dataclass(frozen=True)
class _Copy:
    """One of the two: what it says, or what is wrong with it."""

    there: bool
    journal: Journal | None = None
    wrong: str = ""
    empty: bool = False

    @classmethod
    def read(cls, path: Path) -> _Copy:
        """Raises OSError."""
        try:
            if not (data := path.read_bytes()):
                return cls(True, wrong=f"{path}: empty", empty=True)
            return cls(True, Journal.parse(data, str(path)))
        except FileNotFoundError:
            return cls(False, wrong=f"{path}: missing")
        except JournalError as error:
            return cls(True, wrong=str(error))


def _remove(path: Path, copy: Path) -> None:
    try:
        remove_file(path)
    except FileNotFoundError:  # with the folder
        pass
    except OSError:
        with contextlib.suppress(OSError):
            replace_file(copy, b"", PRIVATE)
        raise
    remove_file(copy)
