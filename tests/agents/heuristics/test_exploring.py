"""Agents that draw know the density of what they drew, also while they hold it."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from slicepilot.agents.heuristics.exploring import ExploringAgent, RandomAgent
from slicepilot.agents.heuristics.fixed import FixedAgent
from slicepilot.agents.heuristics.registry import available, make
from slicepilot.configs import ConfigError
from slicepilot.env.encoding import KnobDecoder
from slicepilot.env.knobs import Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry
from tests.loads import context_of

SLICES, LANES = SliceSet.from_yaml("testbed-five"), 3
SETTING = FixedAgent("fixed", cpu_limit_mcpu=[500, np.inf, 80, 1000, 200], nice=-4.0, egress_mbps=60.0)


def decisions(agent: Any, count: int, seed: int = 0) -> list[tuple[Knobs, Any, Any, bool]]:
    agent.reset(SLICES, context_of(SLICES, LANES, 0.01, cpus=2.0), seed)
    telemetry, knobs = Telemetry.empty(5, LANES), Knobs.none(5, LANES)
    made = []
    for _ in range(count):
        knobs = agent.decide(telemetry, knobs)
        made.append((knobs, agent.wanted.copy(), agent.log_density.copy(), agent.held))
    return made


@pytest.mark.parametrize("make_agent", [lambda: RandomAgent(4), lambda: ExploringAgent(SETTING, 0.3, 4)])
def test_a_draw_that_is_held_was_decided_once(make_agent: Any) -> None:
    decoder = KnobDecoder(SLICES)
    made = decisions(make_agent(), 12)
    for at, (knobs, wanted, density, held) in enumerate(made):
        assert held == (at % 4 != 0)
        assert np.isnan(density).all() if held else np.isfinite(density).all()
        expected, _ = decoder.decode(made[at - at % 4][1])
        np.testing.assert_array_equal(knobs.cpu_limit_mcpu, expected.cpu_limit_mcpu)
        np.testing.assert_array_equal(wanted, made[at - at % 4][1])
    assert not np.array_equal(made[0][1], made[4][1])
    assert len({float(value) for value in made[0][1].ravel()}) == made[0][1].size  # every axis, slice and lane its own


def test_densities_are_those_of_the_distributions() -> None:
    [(_, _, uniform, _)] = decisions(RandomAgent(), 1)
    np.testing.assert_allclose(uniform, stats.uniform.logpdf(np.zeros(15), -1, 2).sum())
    agent = ExploringAgent(SETTING, 0.3)
    [(_, wanted, density, _)] = decisions(agent, 1)
    chosen = SETTING.decide(Telemetry.empty(5, LANES), Knobs.none(5, LANES))
    mean = KnobDecoder(SLICES).encode(chosen).transpose(2, 1, 0)
    np.testing.assert_allclose(density, stats.norm.logpdf(wanted, mean, 0.3).sum((1, 2)), rtol=1e-6)


def test_noise_has_its_width_around_the_choice_and_goes_over_the_edge() -> None:
    made = decisions(ExploringAgent(SETTING, 0.2, 1), 2000)
    wanted = np.stack([item for _, item, _, _ in made])
    np.testing.assert_allclose(wanted.std((0, 1)), 0.2, rtol=0.06)
    np.testing.assert_allclose(wanted[..., 1].mean((0, 1)), -4 / 20, atol=0.02)
    free = wanted[:, :, 1, 0]  # the slice without a limit: 1 on the axis, of which the last tenth is "none"
    limits = np.stack([knobs.cpu_limit_mcpu[1] for knobs, _, _, _ in made])
    np.testing.assert_array_equal(np.isinf(limits), free > 0.9)
    assert 0.25 < np.isfinite(limits).mean() < 0.37  # P(noise < -0.1) = 0.31
    assert (free > 1).any()


def test_nice_inside_pods_counts_as_none_and_the_scope_is_that_of_policies() -> None:
    agent = make("exploring-experiment-25-scaled", SLICES)
    [(knobs, wanted, _, _), *_] = decisions(agent, 1)
    assert knobs.nice_scope == "group"
    assert (np.abs(wanted[..., 1]) < 1).all()  # around 0, and not around -5 / 20 and 5 / 20 only
    means = np.mean([decisions(agent, 1, seed)[0][1][..., 1] for seed in range(60)], axis=(0, 1))
    np.testing.assert_allclose(means, 0.0, atol=0.06)


def test_seed_and_name_make_the_noise() -> None:
    first, again, later = (decisions(ExploringAgent(SETTING), 1, seed)[0][1] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, later)
    other = decisions(ExploringAgent(SETTING, name="other"), 1)[0][1]
    assert not np.array_equal(first, other)


def test_an_agent_with_a_memory_decides_in_every_period() -> None:
    requested = []

    class Counting(FixedAgent):
        def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
            requested.append(knobs)
            return super().decide(telemetry, knobs)

    made = decisions(ExploringAgent(Counting("counting"), hold_periods=5), 11)
    assert len(requested) == 11
    assert requested[6] is made[5][0]  # and sees the knobs that hold


def test_names_with_noise() -> None:
    agent = make("exploring-reactive-sla", SLICES)
    assert agent.name == "exploring-reactive-sla"
    assert make("exploring-experiment-7-scaled", SLICES).request_mcpu is not None
    assert not any(name.startswith("exploring-") for name in available())
    with pytest.raises(ConfigError, match="unknown name 'reactiv'"):
        make("exploring-reactiv", SLICES)
    with pytest.raises(ConfigError, match="does not look ahead"):
        make("exploring-clairvoyant", SLICES)
    for std, hold_periods in ((0.0, 1), (np.inf, 1), (0.2, 0)):
        with pytest.raises(ValueError, match="expected"):
            ExploringAgent(SETTING, std, hold_periods)
