"""Which CPU time was measured: none of UPFs that have a cgroup of their own only while they are acted on."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from slicepilot.controller.contracts.modes import Mode
from slicepilot.controller.contracts.reasons import Reason

CPU_TIME_FIELDS = ("cpu_use_mcpu", "throttled_ratio", "runqueue_delay_us")
CPU_TIME_NOT_MEASURED = "CPU time is measured only where the mode acts (own_cgroup): ignore wanted limits"


def gets_group(description: dict[str, Any], name: str) -> bool:
    """Whether a slice's UPF has a cgroup of its own only while it is acted on, by a run's description."""
    return name in description.get("own_groups", ())


def without_cpu_time(description: dict[str, Any], name: str, modes: Any, reasons: Any) -> npt.NDArray[np.bool_]:
    """Ticks in which a slice's `CPU_TIME_FIELDS` are zero because they were not measured, by the run's description, and
    the modes and the slice's reason masks of the ticks."""
    left_alone = (np.asarray(modes) == Mode.SHADOW) | (np.asarray(reasons) & Reason.NOT_ACTING.bit != 0)
    return left_alone & gets_group(description, name)
