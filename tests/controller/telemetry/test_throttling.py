"""The share of its periods in which a real cgroup ran out of quota."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from slicepilot.controller.actuators.quota import CpuQuota
from slicepilot.controller.system.cgroup import CpuGroup
from slicepilot.controller.telemetry.throttling import ThrottleMeter
from slicepilot.env.telemetry import Telemetry
from tests.controller.conftest import busy_process

pytestmark = pytest.mark.realtime


# Something that runs for 0.3 ms out of 10.
NOW_AND_THEN = """
import signal, time
signal.alarm(60)
print("started", flush=True)
while True:
    end = time.monotonic() + 0.0003
    while time.monotonic() < end:
        pass
    time.sleep(0.01)
"""


def test_throttled_ratio_is_the_share_of_periods_without_quota(groups: list[Path]) -> None:
    limits = np.asarray([[100], [100], [np.inf], [1500], [100]], np.float32)
    telemetry = Telemetry.empty(5)
    telemetry.slices[:] = 1.0
    meter = ThrottleMeter(groups, period_s=0.5)
    with (
        busy_process(groups[0]),
        busy_process(groups[1], NOW_AND_THEN) as started,
        busy_process(groups[2]),
        busy_process(groups[3]),
    ):
        assert started.stdout is not None
        started.stdout.readline()
        for group, limit in zip(groups, limits[:, 0].tolist(), strict=True):
            CpuQuota(CpuGroup.at(group), 10_000).set(limit)
        time.sleep(0.1)
        meter.fill(telemetry, limits)
        time.sleep(0.5)
        meter.fill(telemetry, limits)
    meter.close()
    ratios = telemetry.throttled_ratio[:, 0]
    assert ratios[0] > 0.8
    assert ratios[1] < 0.3
    assert ratios[2:].tolist() == [0, 0, 0], "no quota; a quota that suffices; nothing that runs"
