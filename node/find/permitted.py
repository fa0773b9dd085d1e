"""What this process may not do that finding and measuring UPFs takes: one line, before anything else fails."""

from __future__ import annotations

from slicepilot.configs import FailureError
from slicepilot.controller.system.privileges import lacking

NEEDED = {
    "CAP_SYS_PTRACE": "see which network namespace a process is in",
    "CAP_SYS_ADMIN": "enter it and measure there (CAP_BPF and CAP_PERFMON alone do not let into it)",
}
REST = "without it: slicepilot simulate, train, evaluate and dataset record in the simulator"


def check_permitted() -> None:
    """Raises FailureError, which says what is missing, what for, and what works without it."""
    missing = lacking(NEEDED)
    if missing:
        told = "; ".join(f"{name} to {NEEDED[name]}" for name in missing)
        raise FailureError(f"not permitted, needs root or {told}; {REST}")
