"""Network namespaces: resolve a name, check that a namespace still exists, and run code inside it.

No descriptor of a namespace is kept, nor a socket in it: it would keep the namespace alive after its owner removed it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from slicepilot.controller.system.bpf.libc import call

CLONE_NEWNET = 0x40000000
NAMED = Path("/run/netns")  # where ip-netns(8) keeps them
T = TypeVar("T")


def path_of(netns: str | Path) -> Path:
    """The file of a namespace given by name (``ip netns``) or by path (``/proc/PID/ns/net``)."""
    return NAMED / netns if isinstance(netns, str) and "/" not in netns else Path(netns)


def identity(netns: str | Path) -> tuple[int, int]:
    """Device and inode, which are unique among living namespaces; raises FileNotFoundError, PermissionError."""
    result = path_of(netns).stat()
    return result.st_dev, result.st_ino


def find(wanted: tuple[int, int]) -> Path | None:
    """A file of the namespace with this identity, whatever it is called now; None when it has gone."""
    candidates = [*NAMED.iterdir()] if NAMED.is_dir() else []
    candidates += [entry / "ns/net" for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    for candidate in candidates:
        try:
            if identity(candidate) == wanted:
                return candidate
        except OSError:  # gone meanwhile, or not ours to look at
            continue
    return None


def inside(netns: str | Path, action: Callable[[], T]) -> T:
    """Run ``action`` in a namespace, on a thread of its own that ends with it.

    Raises:
        OSError: the namespace cannot be entered; and whatever ``action`` raises.
    """
    result: list[T] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            enter(path_of(netns))
            result.append(action())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
            failure.append(error)

    thread = threading.Thread(target=work, name="netns")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]


def enter(netns: Path) -> None:
    """Move the calling thread into a network namespace (setns(2)); raises OSError. Let the thread end there."""
    descriptor = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
    try:
        call("setns", descriptor, CLONE_NEWNET)
    finally:
        os.close(descriptor)
