import re
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
from slicepilot.configs import ConfigError
from slicepilot.env.simulator.hardware import Hardware
from slicepilot.env.slices import SliceSet

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


def test_names_are_those_of_the_agents(slice_set: Any) -> None:
    for name in EVERY:
        agent = make(name, slice_set(5), Hardware())
        assert agent.name == name
        assert isinstance(agent, Agent)
    assert sum(name.startswith("experiment-") for name in available()) == 26
    assert len(available()) == len(available(scaled=True))


def test_unknown_name_is_answered_with_the_nearest_and_the_accepted_ones(slice_set: Any) -> None:
    with pytest.raises(ConfigError, match=r"agent: unknown name 'reactive'; did you mean reactive-sla") as error:
        make("reactive", slice_set(5))
    for name in (*ADAPTIVE, "no-control", "experiment-1 to experiment-26", "static-weights-512"):
        assert name in str(error.value)
    assert "\n" not in str(error.value)


def test_published_setting_is_scaled_to_the_node() -> None:
    slices = SliceSet.from_yaml("five-video")
    for name, first in (("experiment-7", 1000.0), ("experiment-7-scaled", 500.0)):
        request = make(name, slices, Hardware(logical_cpus=2.0)).request_mcpu
        assert request is not None
        assert request[0] == first


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("count", [2, 64])
def test_every_agent_stays_inside_the_bounds(loads: Any, play: Any, name: str, count: int) -> None:
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
def test_lanes_do_not_mix_and_seeds_repeat(contended: Any, play: Any, name: str) -> None:
    contended.steps = 40
    agent = make(name, contended.slices)
    first, again = play(agent, contended, 3, 11), play(agent, contended, 3, 11)
    for item, two in zip(first.knobs, again.knobs, strict=True):
        assert (item.cpu_limit_mcpu == two.cpu_limit_mcpu).all()
        assert (item.nice == two.nice).all()
        assert (item.egress_mbps == two.egress_mbps).all()
    assert (first.returns == again.returns).all()


def test_the_page_of_agents_has_all() -> None:
    rows = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    listed = []
    for row in rows:
        first, *others = re.findall(r"`([^`]+)`", row)
        listed += [first, *(re.sub(r"-\d+(-nice)?$", "", first) + name if name[0] == "-" else name for name in others)]
    experiments = {name for name in available() if name.startswith("experiment-")}
    assert {*listed} | experiments == {*available()}


def test_agents_import_no_compiler_and_no_training_package() -> None:
    code = (
        "import sys, slicepilot.agents.heuristics.registry;"
        "print(*({'numba', 'scipy', 'pandas', 'torch', 'mlflow'} & set(sys.modules)))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert loaded.stdout.strip() == ""
