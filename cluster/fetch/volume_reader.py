"""``python -m slicepilot.cluster.fetch.volume_reader``: reads a bundle's files in a container, started by `volume`.

The container is hostile: it may have put links, pipes, devices and mounts of its own anywhere, and a file system that
never answers. A path leads nowhere out of its root, and from the mount on nowhere out of the volume (openat2(2)); what
is read is regular files of bounded size. Whether that is the bundle is told by its digest.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable, Mapping
from typing import Any

from slicepilot.agents.learned.files import LIMITS_BYTES
from slicepilot.configs.reading import read_in
from slicepilot.controller.system import privileges
from slicepilot.node.find.containers import Container
from slicepilot.node.find.processes import Process, look_at

from .child import FetchError, answer

SYS_OPENAT2 = 437  # the same on every processor: linux/unistd.h
RESOLVE_NO_XDEV, RESOLVE_NO_MAGICLINKS, RESOLVE_BENEATH, RESOLVE_IN_ROOT = 0x01, 0x02, 0x08, 0x10  # linux/openat2.h
FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
NEEDED = ("CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH")
"""To look at the container's root; and at files that are not for everybody, where the agent itself may."""
MEMORY = 128 << 20
WHY = {
    errno.EXDEV: "leads out of the volume",
    errno.ELOOP: "a link that leads nowhere, or into /proc",
    errno.ENOENT: "No such file or directory",
}


def main() -> None:
    """Answer."""
    answer(_prepare, MEMORY)


def _prepare(request: dict[str, Any]) -> Callable[[], Mapping[str, bytes]]:
    privileges.keep_only(NEEDED)
    return lambda: files_in(int(request["pid"]), request["container"], request["mount"], request["within"])


def files_in(pid: int, container: str, mount: str, within: str) -> dict[str, bytes]:
    """Those of a bundle that are in a folder of a container's mount.

    Args:
        pid: of a process of it, as its runtime has written down; another one may have that number by now.
        container: its id.
        mount: path in its root; within: path of the folder from there.

    Raises:
        FetchError: not that container's any more, or a path that does not lead to a folder.
        ConfigError: a part of the bundle that is no regular file, or too long.
    """
    before = _process(pid, container)
    root = os.open(f"/proc/{pid}/root", FOLDER)
    try:
        after = look_at(pid)
        if after is None or after.start_ticks != before.start_ticks:
            raise FetchError("its container has just ended")
        return bundle_in(root, mount, within)
    finally:
        os.close(root)


def bundle_in(root: int, mount: str, within: str) -> dict[str, bytes]:
    """The same of a root that is open (O_PATH)."""
    mounted = _opened(root, mount, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS, f"mount {mount!r:.200}")
    try:
        what = f"path {within!r:.200}"
        folder = _opened(mounted, within or ".", RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV, what)
    finally:
        os.close(mounted)
    try:
        found = {name: read_in(folder, name, most, name) for name, most in LIMITS_BYTES.items()}
    finally:
        os.close(folder)
    return {name: data for name, data in found.items() if data is not None}


def _process(pid: int, container: str) -> Process:
    """Raises FetchError unless it is in the container."""
    found = look_at(pid)
    if found is None or not Container(container, "").has(found.group_names):
        raise FetchError("its container does not run any more")
    return found


def _opened(folder: int, path: str, resolve: int, what: str) -> int:
    """A folder (O_PATH); https://man7.org/linux/man-pages/man2/openat2.2.html"""
    libc = ctypes.CDLL(None, use_errno=True)
    how = struct.pack("@QQQ", FOLDER, 0, resolve)
    text = os.fsencode(path)
    found = libc.syscall(
        ctypes.c_long(SYS_OPENAT2), ctypes.c_int(folder), ctypes.c_char_p(text), how, ctypes.c_size_t(len(how))
    )
    if found < 0:
        number = ctypes.get_errno()
        raise FetchError(f"{what}: {WHY.get(number) or os.strerror(number)}; accepted: a folder in the volume")
    return int(found)


if __name__ == "__main__":
    main()
