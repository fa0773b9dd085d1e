"""What processes use, from /proc: CPU time, memory, descriptors, threads (proc(5))."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Resources:
    """Resources that a process uses at a moment.

    Attributes:
        cpu_s: it has had, in user and system mode, since it started.
        resident_kb: memory, without pages it shares with files.
        descriptors, threads: open now.
    """

    cpu_s: float
    resident_kb: float
    descriptors: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> Resources:
        """Raises OSError when it has gone."""
        folder = Path(f"/proc/{pid}")
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        resident, shared = map(int, (folder / "statm").read_text().split()[1:3])
        return cls(
            cpu_s=(int(fields[11]) + int(fields[12])) / TICKS_PER_S,
            resident_kb=(resident - shared) * PAGE_BYTES / 1024,
            descriptors=len(list((folder / "fd").iterdir())),
            threads=len(list((folder / "task").iterdir())),
        )
