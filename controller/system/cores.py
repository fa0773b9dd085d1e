"""The machine's CPUs, and the number of cores of the CPUs that this process may use."""

from __future__ import annotations

import os
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")


def physical_cores(cpus: Path = CPUS) -> int:
    """Cores of which the usable CPUs are threads (kernel: Documentation/admin-guide/cputopology.rst).

    Where the kernel does not say, as on some virtual machines, each CPU counts as a core.
    """
    usable = os.sched_getaffinity(0)
    try:
        return len({(cpus / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text() for cpu in usable})
    except OSError:
        return len(usable)


def online_cpus(cpus: Path = CPUS) -> frozenset[int]:
    """Numbers of the CPUs that are online now (kernel: Documentation/admin-guide/cputopology.rst)."""
    return _listed(cpus / "online")


def cpus_beside(own: int | None, cpus: Path = CPUS) -> frozenset[int]:
    """Numbers of the online CPUs without ``own``; all of them where no other is left. Numbers may have gaps."""
    online = online_cpus(cpus)
    return online - {own} or online


def most_cpus(cpus: Path = CPUS) -> int:
    """Above the number of every CPU that can ever come online: numbers may have gaps."""
    return max(_listed(cpus / "possible")) + 1


def _listed(file: Path) -> frozenset[int]:
    """A list of CPUs as the kernel writes it, such as ``0-3,8``."""
    result: set[int] = set()
    for part in file.read_text().strip().split(","):
        first, _, last = part.partition("-")
        result.update(range(int(first), int(last or first) + 1))
    return frozenset(result)
