"""CPU time of a UPF that several slices share is charged by packets."""

from pathlib import Path

import numpy as np

from slicepilot.controller.telemetry.layout import AT_N6, SLICE
from slicepilot.controller.telemetry.shared_groups import SharedGroups
from slicepilot.env.telemetry import Telemetry

GROUPS = [Path("/one"), Path("/one"), Path("/two")]


def test_each_stretch_is_charged_by_its_own_packets() -> None:
    packets = np.zeros(4, SLICE)
    shared = SharedGroups(GROUPS, packets)
    assert shared.groups == [Path("/one"), None, Path("/two")]
    packets["n3"]["packets"][:3] = 90, 10, 5
    assert shared.totals(np.array([1000, 0, 70])).tolist() == [900, 100, 70]
    packets["n3"]["packets"][1] += 50
    packets["exit"]["packets"][1, AT_N6] += 50
    assert shared.totals(np.array([1600, 0, 90])).tolist() == [900, 700, 90]
    assert shared.totals(np.array([1620, 0, 90])).tolist() == [910, 710, 90]  # no packets: half each


def test_windows_and_totals_do_not_disturb_each_other() -> None:
    packets = np.zeros(4, SLICE)
    shared, telemetry = SharedGroups(GROUPS, packets), Telemetry.empty(3)
    packets["n3"]["packets"][:2] = 30, 10
    shared.totals(np.array([400, 0, 0]))
    telemetry.cpu_use_mcpu[:, 0], telemetry.runqueue_delay_us[:, 0] = (200, 0, 7), (50, 0, 9)
    shared.split(telemetry)
    assert telemetry.cpu_use_mcpu[:, 0].tolist() == [150, 50, 7]
    assert telemetry.runqueue_delay_us[:, 0].tolist() == [50, 50, 9]
