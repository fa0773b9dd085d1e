"""A rehearsal: simulated slices whose knobs are those of real cgroups."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator

import numpy as np
import pytest

from slicepilot.configs import ConfigError
from slicepilot.configs.backends import plugin
from slicepilot.controller.actuators.node import NodeActuator
from slicepilot.controller.loop.node import Node
from slicepilot.controller.system.cgroup import CpuHierarchy
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.env.knobs import Knobs

NAME = f"rehearsal-{os.getpid()}"


@pytest.fixture
def node() -> Iterator[Node]:
    if os.geteuid() != 0:
        pytest.skip("needs root: cgroups")
    try:
        CpuHierarchy.find()
    except ActuatorError as error:
        pytest.skip(str(error))
    opened: Node = plugin("rehearsal").call("open_node", NAME, 0.05, "flash-crowd")
    with contextlib.closing(opened.backend):
        yield opened


def test_slices_feel_the_limits_of_their_groups(node: Node) -> None:
    backend = node.backend
    shadow = backend.use(NodeActuator(node.targets))
    backend.reset(1)
    free = [backend.observe().copy() for _ in range(5)]
    offered, carried = (sum(getattr(seen, name)[0] for seen in free) for name in ("offered_mbps", "carried_mbps"))
    assert carried == pytest.approx(offered, rel=0.05)
    limit = np.full((5, 1), math.inf, np.float32)
    limit[0] = 100
    backend.apply(Knobs.of(limit, np.zeros_like(limit), np.full_like(limit, math.inf)))
    for _ in range(10):
        seen = backend.observe()
    assert seen.carried_mbps[0] < 0.5 * seen.offered_mbps[0]
    assert seen.throttled_ratio[0] > 0.5
    assert seen.carried_mbps[1] == pytest.approx(seen.offered_mbps[1], rel=0.2)
    shadow.close()


def test_nothing_is_left_behind(node: Node) -> None:
    folders = [target.cgroup for target in node.targets]
    assert all(folder.is_dir() for folder in folders)
    with pytest.raises(ConfigError, match=r"is there already; accepted: another name"):
        plugin("rehearsal").call("open_node", NAME, 0.05, "flash-crowd")
    node.backend.close()
    assert not folders[0].parent.exists()


def test_without_a_scenario_there_is_nothing_to_rehearse() -> None:
    with pytest.raises(ConfigError, match="scenario: missing"):
        plugin("rehearsal").call("open_node", NAME, 0.05, None)


def test_it_cannot_be_evaluated() -> None:
    with pytest.raises(ConfigError, match="backend = 'rehearsal': has no open_backend; accepted: testbed"):
        plugin("rehearsal").call("open_backend", "flash-crowd")
