"""How many cores are behind the CPUs that this process may use."""

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
