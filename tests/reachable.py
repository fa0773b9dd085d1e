"""Python and this clone in the reach of users without privileges, wherever they lie.

A home folder of mode 700 keeps other users away from a clone below it, and from an interpreter that lies there. Tests
that become such a user first enter a mount namespace of their own, in which these paths are mounted again below folders
that anybody may enter. ``python tests/reachable.py COMMAND ...`` does so and becomes the command.
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

_CLONE_NEWNS = 0x20000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000  # mount(2)
AS_NOBODY = (sys.executable, __file__, "setpriv", "--reuid=65534", "--clear-groups")
"""Put before a command."""
NEEDED = (Path(__file__).parents[1], Path(sys.prefix), Path(sys.base_prefix))


def make_reachable() -> None:
    """Enter such a mount namespace; needs root, and is to be done in a process of its own. Raises OSError."""
    needed = {inner for path in NEEDED for inner in _enterable(path.resolve())}
    barriers = {path: barrier for path in needed if (barrier := _barrier(path)) is not None}
    if not barriers:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(_CLONE_NEWNS))
    _mount(libc, b"none", Path("/"), None, _MS_REC | _MS_PRIVATE)
    descriptors = {path: os.open(path, os.O_PATH) for path in barriers}
    for barrier in set(barriers.values()):
        _mount(libc, b"tmpfs", barrier, b"tmpfs", 0, b"mode=755")
    for path, descriptor in descriptors.items():
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        (path if is_folder else path.parent).mkdir(parents=True, exist_ok=True)
        if not is_folder:
            path.touch()
        _mount(libc, f"/proc/self/fd/{descriptor}".encode(), path, None, _MS_BIND | _MS_REC)
        os.close(descriptor)


def is_open(folder: Path) -> bool:
    """Whether other users may enter a folder."""
    return all(bool(part.stat().st_mode & stat.S_IXOTH) for part in (folder, *folder.parents))


def _enterable(path: Path) -> Iterator[Path]:
    """The path, or what lies in it if it is a folder that is closed itself: mounted again it would still be."""
    if path.is_dir() and not path.stat().st_mode & stat.S_IXOTH:
        yield from (inner for inner in path.iterdir() if not inner.is_symlink())
    else:
        yield path


def _barrier(path: Path) -> Path | None:
    """The first folder on the way to a path that other users may not enter."""
    return next((part for part in reversed(path.parents) if not part.stat().st_mode & stat.S_IXOTH), None)


def _mount(
    libc: ctypes.CDLL, source: bytes, target: Path, kind: bytes | None, flags: int, data: bytes | None = None
) -> None:
    _check(libc.mount(source, os.fsencode(target), kind, ctypes.c_ulong(flags), data))


def _check(result: int) -> None:
    if result:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


if __name__ == "__main__":
    make_reachable()
    os.execvp(sys.argv[1], sys.argv[1:])
