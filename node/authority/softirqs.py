"""What acts on packets that a UPF does not handle in its process: nothing in softirqs, a weight on threads of NAPI."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path

from slicepilot.controller.system import cgroup_paths
from slicepilot.node.find.known import known
from slicepilot.node.find.locate import Located
from slicepilot.node.find.napi import napi_threads, napis
from slicepilot.node.find.xdp import forwards_in_xdp


def in_softirqs(located: Located, n3: str) -> str | None:
    """A text on what forwards a UPF's packets in the context in which N3 receives them; None if its process does."""
    if forwards_in_xdp(located, n3):
        return f"XDP on {n3} forwards packets"
    kind = known(located.process)
    return f"{kind.name} forwards" if kind is not None and kind.work == "softirq" else None


def threads_of(located: Located, n3: str) -> list[int]:
    """The kernel threads that take packets from a UPF's N3; none where softirqs do."""
    with contextlib.suppress(OSError):
        return napi_threads(located.netns, n3)
    return []


def outside(located: Located, threads: list[int]) -> list[int]:
    """Threads among these that are not in the UPF's CPU cgroup."""
    return [item for item in threads if _group(item) != located.cgroup]


def proposal(located: Located, n3: str) -> str | None:
    """How a weight could act on a UPF whose N3 is polled in softirqs; None if it acts already."""
    try:
        present = napis(located.netns, n3)
    except OSError:
        return None
    if not present:
        return (
            f"its packets are handled in softirqs, and the kernel shows no NAPI of {n3} that could get a thread (Linux "
            "6.8 or later shows them; a veth has a NAPI with native XDP or GRO)"
        )
    threads = [item.thread for item in present if item.thread is not None]
    if not threads:
        return (
            "its packets are handled in softirqs; threads can do that, and a weight acts on those that are in its "
            f"cgroup: {_switch_on(located, n3)}, then move napi/{n3}-* there"
        )
    moves = [f"echo {item} > {shlex.quote(f'{located.cgroup}/cgroup.procs')}" for item in outside(located, threads)]
    if not moves or located.cgroup is None:
        return None
    return f"in its cgroup a weight would act on {named(threads)}: {' && '.join(moves)}"


def named(threads: list[int]) -> str:
    """The threads as a text for messages."""
    return f"the threads of N3's NAPI ({', '.join(map(str, threads))})"


def _switch_on(located: Located, n3: str) -> str:
    """A command for a shell: sysfs shows the interfaces of the namespace that it was mounted in."""
    inner = shlex.quote('mount -t sysfs none /sys && echo 1 > "/sys/class/net/$0/threaded"')
    return f"nsenter --net=/proc/{located.process.pid}/ns/net unshare --mount sh -c {inner} {shlex.quote(n3)}"


def _group(thread: int) -> Path | None:
    try:
        return cgroup_paths.of_process(thread)
    except FileNotFoundError:  # it has ended
        return None
