"""Each process's rules, and putting it under them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from . import landlock, seccomp
from .rules import ASKER, CONTROLLER, PUBLISHER, REMOVING_A_TESTBED, SUPERVISOR, SUPERVISOR_OF_MAPS

OFF = "off (harden: false)"
_PACKAGE = Path(__file__).resolve().parents[3]  # in an editable installation `sys.path` leads to links to it
_RESOLVING = (Path("/run/systemd/resolve"), Path("/run/resolvconf"), Path("/run/NetworkManager"))
"""Where /etc/resolv.conf may lead."""
_READABLE = ("/etc", "/proc", "/sys/devices/system", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/lib", "/lib64")


def confine_controller(own_testbed: bool = False) -> str:
    """To what the loop, its orders and the start of its companions need, which inherit it; what has become of it.

    Args:
        own_testbed: it has brought up a testbed, which it removes at the end.
    """
    more = REMOVING_A_TESTBED if own_testbed else frozenset[str]()
    return _said(lambda: seccomp.install(dataclasses.replace(CONTROLLER, allowed=CONTROLLER.allowed | more)))


def confine_supervisor(maps: bool = False) -> str:
    """To what waiting and restoring need; what has become of it. A call that is not among it fails with EPERM: a
    supervisor that is ended for it would restore nothing.

    Args:
        maps: it has BPF maps open in which it has to put something back.
    """
    return _said(lambda: seccomp.install(SUPERVISOR_OF_MAPS if maps else SUPERVISOR))


def confine_publisher(writable: Sequence[Path]) -> str:
    """To what answering and recording need, and to some folders; what has become of it.

    Args:
        writable: folders it writes in; Python, its packages and what libc looks up it may read.
    """

    def restrict() -> str:
        return f"landlock {landlock.restrict(_readable(), writable)}"

    files = _said(restrict)
    return f"{_said(lambda: seccomp.install(PUBLISHER))}, {files}"


def confine_asker() -> str:
    """To what asking a server over the network needs, with no file to write; what has become of it."""
    files = _said(lambda: f"landlock {landlock.restrict([*_readable(), *_RESOLVING], (), connects=True)}")
    return f"{_said(lambda: seccomp.install(ASKER))}, {files}"


def _readable() -> list[Path]:
    python = {sys.prefix, sys.base_prefix, *filter(None, sys.path)}
    return [Path(path) for path in sorted({*python, str(_PACKAGE), *_READABLE})]


def _said(action: Callable[[], str | None]) -> str:
    """In words for the log and the status, also where the kernel does not have it."""
    try:
        return action() or "seccomp"
    except (seccomp.NoSeccompError, landlock.NoLandlockError) as error:
        return f"NOT CONFINED ({error})"
