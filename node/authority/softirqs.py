"""What acts on packets that a UPF does not handle in its process: nothing in softirqs, a weight on threads of NAPI."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path

from slicepilot.controller.system import cgroup_paths
from slicepilot.controller.system.kernel_file import kernel_lines
from slicepilot.node.find.interfaces import interfaces
from slicepilot.node.find.known import known
from slicepilot.node.find.locate import Located
from slicepilot.node.find.napi import napi_threads, napis


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


def forwards_in_xdp(located: Located, n3: str) -> bool:
    """Whether the XDP program of a UPF's N3 forwards packets.

    A program that the process itself has opened does (``prog_id`` in /proc/PID/fdinfo, kernel/bpf/syscall.c). Any other
    program may be the UPF's, attached by a loader, or a filter of another program: it counts as a filter if the UPF is
    known to forward in its process. False if the namespace cannot be entered.
    """
    present: dict[str, int] = {}
    with contextlib.suppress(OSError):
        present = interfaces(located.netns).xdp
    if n3 not in present:
        return False
    kind = known(located.process)
    return kind is None or kind.work != "process" or present[n3] in _programs(located.process.pid)


def _programs(pid: int) -> set[int]:
    """Numbers of the BPF programs that a process has opened, or has links of."""
    numbers = set()
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
            with contextlib.suppress(OSError):
                for line in kernel_lines(entry):
                    if line.startswith("prog_id:"):
                        numbers.add(int(line.split()[1]))
    return numbers
