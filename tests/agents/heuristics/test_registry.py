import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slicepilot.agents.base import Agent
from slicepilot.agents.heuristics.planners.clairvoyant import Clairvoyant
from slicepilot.agents.heuristics.planners.planning import PlanningConfig
from slicepilot.agents.heuristics.registry import available, make
from slicepilot.env.simulator.hardware import Hardware
from tests.agents.played import loads, play, slice_set

EVERY = sorted({*available(), *available(scaled=True)})
ADAPTIVE = [
    "proportional-share",
    "reactive-sla",
    "pi",
    "vpa",
    "captain",
    "captain-tower",
    "random",
    "mpc",
    "clairvoyant",
]
PAGE = Path(__file__).parents[3] / "docs/agents.md"
TOLERANCE = 1e-5  # float32


def test_names_are_those_of_the_agents() -> None:
    for name in EVERY:
        agent = make(name, slice_set(5), Hardware())
        assert agent.name == name
        assert isinstance(agent, Agent)
    assert sum(name.startswith("experiment-") for name in available()) == 26
    assert len(available()) == len(available(scaled=True))


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("count", [2, 64])
def test_every_agent_stays_inside_the_bounds(name: str, count: int) -> None:
    rates = np.linspace(180.0, 20.0, count).tolist()
    run = loads(rates, 12, hardware=Hardware(cpu_cv=0.1, uplink_mbps=1500.0))
    agent = make(name, run.slices, run.hardware)
    if isinstance(agent, Clairvoyant):
        agent._planner.config = PlanningConfig(candidates=24, iterations=2)
    played = play(agent, run, 7)
    low, high = (1 - TOLERANCE), (1 + TOLERANCE)
    for knobs in played.knobs:
        assert knobs.cpu_limit_mcpu.shape == knobs.nice.shape == knobs.egress_mbps.shape == (count, 7)
        for value in (knobs.cpu_limit_mcpu, knobs.nice, knobs.egress_mbps):
            assert value.dtype == np.float32
            assert value.flags.c_contiguous
        limit = knobs.cpu_limit_mcpu
        assert (np.isinf(limit) | ((limit >= 100 * low) & (limit <= 1000 * high))).all()
        assert ((knobs.nice >= -10) & (knobs.nice <= 10) & (knobs.nice == np.rint(knobs.nice))).all()
        egress = knobs.egress_mbps
        assert (np.isinf(egress) | (egress == 0) | ((egress >= 10 * low) & (egress <= 500 * high))).all()
    assert np.isfinite(played.returns).all()


@pytest.mark.parametrize("name", ADAPTIVE)
def test_lanes_do_not_mix_and_seeds_repeat(contended: Any, name: str) -> None:
    contended.steps = 40
    agent = make(name, contended.slices)
    first, again = play(agent, contended, 3, 11), play(agent, contended, 3, 11)
    for item, two in zip(first.knobs, again.knobs, strict=True):
        assert (item.cpu_limit_mcpu == two.cpu_limit_mcpu).all()
        assert (item.nice == two.nice).all()
        assert (item.egress_mbps == two.egress_mbps).all()
    assert (first.returns == again.returns).all()


def test_agents_import_no_compiler_and_no_training_package() -> None:
    code = (
        "import sys, slicepilot.agents.heuristics.registry;"
        "print(*({'numba', 'scipy', 'pandas', 'torch', 'mlflow'} & set(sys.modules)))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert loaded.stdout.strip() == ""
