"""Detects UPFs that forward in XDP: their packets pass neither hooks nor queues of the interfaces, and no process."""

from __future__ import annotations

import contextlib
from pathlib import Path

from slicepilot.controller.system.kernel_file import kernel_lines

from .interfaces import interfaces
from .known import known
from .locate import Located


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
