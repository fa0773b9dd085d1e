"""Files that are whole whatever happens, with nothing beside the standard library."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file's contents in one step: the old ones stay whole until the new ones are on disk.

    Raises:
        OSError: it cannot be written; the old file is untouched and nothing else is left behind.
    """
    staging = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        staging.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            staging.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def remove_file(path: Path) -> None:
    """Remove a file, if it is there, and wait until that is on disk; raises OSError."""
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the folder's entries are on disk; raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
