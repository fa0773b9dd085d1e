"""Groups that are renamed crosswise while a controller runs: each gets its own original settings back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slicepilot.controller.actuators.bandwidth import Bandwidth, bandwidth_files
from slicepilot.controller.actuators.node import NodeActuator, SliceTargets
from slicepilot.controller.actuators.weight import weight_file
from slicepilot.controller.system.cgroup import CpuGroup, CpuHierarchy
from slicepilot.controller.watchdog.keeper import JournalKeeper
from slicepilot.controller.watchdog.restore import restore
from tests.controller.actuators.test_actuators import knobs
from tests.controller.conftest import groups, hierarchy

__all__ = ["groups", "hierarchy"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: cgroups")
WEIGHTS = (389, 1024)


def settings(group: Path) -> tuple[Bandwidth, int]:
    at = CpuGroup.at(group)
    return bandwidth_files(at).read(), int(weight_file(at).read())


def swap(one: Path, two: Path) -> None:
    aside = one.with_name("aside")
    for source, target in ((one, aside), (two, one), (aside, two)):
        source.rename(target)


@pytest.mark.parametrize("ends", ["killed", "stopped"])
@pytest.mark.parametrize("looks", [0, 1, 2, 4])
def test_groups_renamed_crosswise_get_their_own_settings_back(
    groups: list[Path], hierarchy: CpuHierarchy, tmp_path: Path, ends: str, looks: int
) -> None:
    if hierarchy.version == 2:
        pytest.skip("groups of version 2 keep their names")
    one, two = groups[:2]
    for group, weight in zip((one, two), WEIGHTS, strict=True):
        (group / "cpu.shares").write_text(str(weight))
    before = settings(one), settings(two)
    targets = [SliceTargets("a", one), SliceTargets("b", two)]
    keeper = JournalKeeper(tmp_path / "state", targets)
    wanted = knobs([300.0, 500.0], [-5.0, 10.0])
    node = NodeActuator(targets, 10_000, renew=keeper.renew)
    end: Callable[[], object] = node.close
    try:
        node.apply(wanted)
        swap(one, two)
        for _ in range(looks):
            node.refresh()
            node.apply(wanted)
            time.sleep(0.05)
        if ends == "killed":
            assert restore(keeper.journal).failed == []
        else:
            end()
        assert (settings(two), settings(one)) == before
    finally:
        end()
        keeper.remove()
        keeper.close()
