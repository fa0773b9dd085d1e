"""Which process a number means: numbers are used again, start times are not."""

from __future__ import annotations

from pathlib import Path

from .kernel_file import kernel_lines


def start_ticks(task: int) -> int | None:
    """When a process or thread started, in clock ticks since boot (proc_pid_stat(5)); None if it has ended."""
    try:
        # The second field, the name in brackets, may contain anything.
        state, *rest = Path(f"/proc/{task}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in b"ZX" else int(rest[18])


def process_of(thread: int) -> int | None:
    """The process (thread group) of a thread: the Tgid line of proc_pid_status(5); None if it has ended."""
    try:
        for line in kernel_lines(Path(f"/proc/{thread}/status")):
            if line.startswith("Tgid:"):
                return int(line.split()[1])
    except (FileNotFoundError, ProcessLookupError):
        pass
    return None
