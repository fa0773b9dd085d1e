"""Promises cost more while they are broken for longer than by references; an axis counts more where it is behind."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from slicepilot.agents.heuristics.fixed import no_control
from slicepilot.agents.heuristics.queue_greedy import QueueGreedy
from slicepilot.agents.learned.guide_kernels import NUM_CORRECTIONS
from slicepilot.configs import ConfigError
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend
from slicepilot.env.simulator.mixture import MixtureEpisodes
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.env.telemetry import Telemetry
from slicepilot.training.evaluation.rollouts import collect_rollout
from slicepilot.training.evaluation.scores import best_effort_mbit
from slicepilot.training.online.config import TrainingConfig
from slicepilot.training.online.objective import Judge, Objective
from slicepilot.training.online.references import NUM_REFERENCES, REFERENCES
from slicepilot.training.online.train import make_env

COPIES = NUM_REFERENCES + 2
PERIODS = 10


def lanes(rule: float, other: float, own: float) -> np.ndarray:
    """A figure of each copy of one deployment, (L,)."""
    return np.asarray([rule, other, own, own], np.float32)


def played(objective: Objective, runs: int = 300, **axes: Any) -> np.ndarray:
    """The last period's reward after runs in which each period has these figures (rule, other reference, policy)."""
    figures = {"broken": (0.1, 0.2, 0.1), "best_effort": (0.5, 0.5, 0.5), "wasted": (0.2, 0.2, 0.2)} | axes
    values = [lanes(*figures[name]) for name in ("broken", "best_effort", "wasted")]
    reward = np.zeros(COPIES, np.float32)
    for _ in range(runs):
        for period in range(PERIODS):
            reward = objective(values[0], values[1], values[2], np.full(COPIES, period == PERIODS - 1))
    return reward


def made(**changes: Any) -> Objective:
    return Objective(1.0, groups=1, copies=COPIES, **{"horizon": 20.0, **changes})


def test_the_multiplier_follows_the_better_reference() -> None:
    up, down, level = made(), made(), made()
    played(up, broken=(0.1, 0.2, 0.15))
    played(down, broken=(0.2, 0.1, 0.05))
    played(level, broken=(0.2, 0.1, 0.1))
    assert up.multiplier == up.most
    assert down.multiplier == down.least
    assert level.multiplier == pytest.approx(made().multiplier, rel=0.01)
    assert level.over == pytest.approx(1.0, rel=0.01)
    assert down.over < 1 < up.over


def test_an_axis_counts_more_where_the_policy_is_behind_on_it() -> None:
    policy = slice(NUM_REFERENCES, None)

    def slope(axis: str, behind: tuple[float, float, float]) -> float:
        """What a little more of a figure changes, some way into a run."""
        figures = {"broken": (0.1, 0.2, 0.1), "best_effort": (0.5, 0.5, 0.5), "wasted": (0.2, 0.2, 0.2)}
        objective, still = made(rate=0.0), np.zeros(COPIES, np.bool_)
        values = [lanes(*item) for item in (figures | {axis: behind}).values()]
        before = np.zeros(COPIES, np.float32)
        for _ in range(50):
            before = objective(values[0], values[1], values[2], still)
        values[list(figures).index(axis)] += np.float32(0.01)
        return abs(float((objective(values[0], values[1], values[2], still) - before)[policy].mean()))

    assert slope("best_effort", (0.5, 0.5, 0.4)) > 1.5 * slope("best_effort", (0.5, 0.5, 0.5))
    assert slope("wasted", (0.2, 0.2, 0.4)) > 1.5 * slope("wasted", (0.2, 0.2, 0.2))


def test_a_break_costs_more_where_little_else_breaks() -> None:
    objective = Objective(1.0, groups=1, copies=COPIES, rate=0.0)
    table = np.zeros((COPIES, 2), np.float32)
    table[:, 1] = 1.0  # of two deployments the second is always broken, by everybody
    nothing, still = np.zeros(2 * COPIES, np.float32), np.zeros(2 * COPIES, np.bool_)
    for _ in range(200):
        objective(table.ravel(), nothing, nothing, still)
    rare, usual = -objective(np.ones(2 * COPIES, np.float32), nothing, nothing, still)[-2:]
    assert rare > 10 * usual


def test_the_better_reference_is_that_of_all_deployments() -> None:
    """Not the lesser of the two in each: in one deployment the rule is far better, in the other a little worse."""
    objective = made(rate=0.0)
    broken = np.asarray([[0.01, 0.3], [0.5, 0.2], [0.01, 0.3], [0.01, 0.3]], np.float32).ravel()
    nothing = np.zeros_like(broken)
    for step in range(400):
        objective(broken, nothing, nothing, np.full(len(broken), step % 100 == 99))
    assert objective.over == pytest.approx(1.0, rel=0.01)


def test_it_goes_on_where_it_was() -> None:
    first, second = made(), made()
    played(first, 30, broken=(0.1, 0.2, 0.15))
    second.restore(first.state())
    assert (second.multiplier, second.average) == (first.multiplier, first.average)


def test_broken_is_the_weight_of_broken_promises_among_those_present() -> None:
    backend = SimulatorBackend(MixtureEpisodes.from_yaml("widest"), 16)
    telemetry = backend.reset(0)
    context = backend.context
    perfect = dataclasses.replace(telemetry, slices=telemetry.slices.copy())
    perfect.slices[1] = perfect.slices[0]
    perfect.slices[3] = 0
    judge = Judge(context)
    np.testing.assert_array_equal(judge(perfect)[0], 0)
    perfect.slices[3] = 1e9
    np.testing.assert_allclose(judge(perfect)[0], telemetry.valid.any(axis=0), rtol=1e-6)


class Judged(SimulatorBackend):
    """Sums up what `Judge` says of each period."""

    def reset(self, seed: int | Sequence[int | None] | None = None) -> Telemetry:
        telemetry = super().reset(seed)
        self._judge, self.sums = Judge(self.context), np.zeros((2, self.num_lanes))
        return telemetry

    def observe(self) -> Telemetry:
        telemetry = super().observe()
        self.sums += self._judge(telemetry)
        return telemetry


@pytest.mark.parametrize("name", ["testbed-contention", "testbed-promises", "flash-crowd"])
def test_best_effort_sums_up_to_what_is_judged(name: str) -> None:
    """Not to what slices carry beyond their promises from period to period: bursts are no best effort."""
    ratios = []
    for agent in (no_control(), QueueGreedy()):
        backend = Judged(ScenarioRuns(Scenario.from_yaml(name)), 4)
        judged = best_effort_mbit(collect_rollout(agent, backend, 1, RewardWeights.from_yaml()))
        ratios.append((judged.mean(), backend.sums[1].mean()))
    (free, ours_free), (rule, ours_rule) = ratios
    assert ours_rule / ours_free == pytest.approx(rule / free, abs=0.1)


def test_the_first_copies_do_what_the_references_decide() -> None:
    """Whatever the policy's action is; without an action of its own a guided policy does what the rule does."""
    config = TrainingConfig.from_yaml("guided").override(num_envs=128, phase_groups=1, copies=4)
    env = make_env(config, seed=3, scale=False)
    env.reset()
    backend = env.groups[0].loop.backend
    inputs = backend.num_lanes // 4
    rng = np.random.default_rng(0)
    for _ in range(30):
        actions = rng.uniform(-1, 1, (128, len(env.slices), NUM_CORRECTIONS)).astype(np.float32)
        actions[2 * inputs : 3 * inputs] = 0.0
        env.step_async(actions)
        env.step_wait()
    rule, order, still, moved = np.split(env.groups[0].loop.knobs.values, 4, axis=-1)
    # The guard's hysteresis makes differences of rounding a step of a few per cent, here and there.
    assert np.isclose(still, rule, rtol=2e-3, atol=1e-3).mean() > 0.97
    assert np.isinf(order[[0, 2]]).all()
    assert np.ptp(order[1], axis=0).max() == 19, "weights in order, far apart"
    assert not np.allclose(moved, rule, rtol=1e-2)


def test_references_break_what_they_break_alone() -> None:
    config = TrainingConfig.from_yaml("guided")
    share = []
    for make in REFERENCES:
        backend = SimulatorBackend(config.episodes(), 64)
        agent: Any = make()
        agent.name, agent.request_mcpu = "reference", None
        alone = collect_rollout(agent, backend, 0, RewardWeights.from_yaml())
        weight = backend.context.promises.weight * alone.valid
        share.append(float(((weight * alone.violated).sum(axis=1) / weight.sum(axis=1)).mean()))
    rule, order = share
    assert 0 < rule < order, "the rule is the harder to beat in the mean, the order in some deployments"


@pytest.mark.parametrize("values", [{"copies": 2}, {"algorithm": "sac"}])
def test_a_constraint_needs_references(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="broken_over_reference"):
        TrainingConfig.from_yaml("guided").override(**values)
