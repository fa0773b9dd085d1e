"""Which figures of CPU time were measured: in shadow, none of UPFs that get a cgroup of their own in other modes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from slicepilot.controller.contracts.modes import Mode

CPU_TIME_FIELDS = ("cpu_use_mcpu", "throttled_ratio", "runqueue_delay_us")
CPU_TIME_NOT_MEASURED = "CPU time is not measured in shadow (own_cgroup): what is wanted of CPU limits tells little"


def without_cpu_time(description: dict[str, Any], mode: Mode) -> Collection[str]:
    """Slices whose `CPU_TIME_FIELDS` are zero because they were not measured in a mode, by a run's description."""
    names: list[str] = description.get("own_groups", [])
    return names if mode is Mode.SHADOW else ()
