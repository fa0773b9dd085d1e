"""Nothing appears, nothing vanishes, and the same seed gives the same run to the last bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicepilot.env.arrays import FloatArray
from slicepilot.env.knobs import Knobs
from slicepilot.env.simulator import exogenous, kernels
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend, SimulatorRun, repeated_slices
from slicepilot.env.simulator.exogenous import tile
from slicepilot.env.simulator.lookahead import Lookahead
from slicepilot.env.simulator.mixture import MixtureEpisodes
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.env.telemetry import NODE_FIELDS, SLICE_FIELDS, Telemetry
from tests.effort import examples
from tests.loads import play

seeds = st.integers(0, 2**32 - 1)
periods = st.one_of(st.sampled_from([0.002, 0.025, 0.05, 0.1, 1.0, 30.0]), st.floats(0.002, 30.0))
LANES = 8


TRAINING = MixtureEpisodes.from_yaml("default")
TRAINING.mixture = replace(TRAINING.mixture, steps=48)
SLICES = len(TRAINING.slices)


def mixtures(period_s: float | None = None) -> MixtureEpisodes:
    """The random deployments of training; at one control period, or at the mixture's own."""
    episodes = copy.copy(TRAINING)
    if period_s is not None:
        episodes.mixture = replace(
            TRAINING.mixture, period_s=(period_s, period_s), nominal_share=0.0, one_second_share=0.0
        )
    return episodes


class RandomKnobs:
    """New knobs every few periods: limits from starving to none, egress rates from 0 (no rate) to none."""

    def __init__(self, shape: tuple[int, int], seed: int, every: int = 5) -> None:
        self.rng, self.shape, self.every = np.random.default_rng(seed), shape, every

    def __call__(self, step: int) -> Knobs:
        if step % self.every == 0:
            self.knobs = self._draw()
        return self.knobs

    def _draw(self) -> Knobs:
        rng, shape = self.rng, self.shape

        def some(values: FloatArray, odd: list[float]) -> FloatArray:
            return np.where(rng.random(shape) < 0.3, rng.choice(odd, shape), values).astype(np.float32)

        limit = some(np.exp(rng.uniform(np.log(10), np.log(4000), shape)), [np.inf])
        egress = some(np.exp(rng.uniform(np.log(0.5), np.log(2000), shape)), [np.inf, 0.0])
        nice = rng.integers(-20, 20, shape).astype(np.float32)
        return Knobs.of(limit, nice, egress, "group" if rng.random() < 0.5 else "process")


@settings(max_examples=examples(25))
@given(seed=seeds, period_s=st.none() | periods)
def test_traffic_is_conserved(seed: int, period_s: float | None) -> None:
    """Per slice and stage: arrived = left + dropped + change of the queue, each period and over the run."""
    episodes = mixtures(period_s)
    run = play(episodes, RandomKnobs((len(episodes.slices), LANES), seed), lanes=LANES, seed=seed)
    arrived = run["offered_mbps"] * run.period_s
    queues, dropped, left = run.queues_mbit, run.dropped_mbit, run.left_mbit
    assert queues.min() >= 0
    assert dropped.min() >= -1e-6 * max(1.0, float(arrived.max()))
    # What passes from one stage to the next follows from the stage's own books; none may be negative.
    into_pacer = arrived - dropped[:, kernels.DROP_N3] - np.diff(queues[:, 0], axis=0)
    into_uplink = into_pacer - dropped[:, kernels.DROP_PACER] - np.diff(queues[:, 1], axis=0)
    out = into_uplink - dropped[:, kernels.DROP_UPLINK] - np.diff(queues[:, 2], axis=0)
    # Float32 figures: the error is a share of what was moved or held.
    scale = 1e-5 * (arrived + queues[:-1].sum(axis=1) + 1e-3)
    assert np.all(into_pacer >= -scale)
    assert np.all(into_uplink >= -scale)
    np.testing.assert_array_less(np.abs(out - left), scale)
    total = left.sum(0) + dropped.sum((0, 1)) + queues[-1].sum(0) - queues[0].sum(0)
    np.testing.assert_allclose(total, arrived.sum(0), rtol=1e-4, atol=1e-3)
    assert np.all(left <= arrived + queues[:-1].sum(axis=1) + scale)


@settings(max_examples=examples(15))
@given(seed=seeds, period_s=st.none() | periods)
def test_figures_keep_to_their_ranges(seed: int, period_s: float | None) -> None:
    episodes = mixtures(period_s)
    run = play(episodes, RandomKnobs((len(episodes.slices), LANES), seed), lanes=LANES, seed=seed)
    assert np.isfinite(run.slices).all()
    assert run.slices.min() >= 0
    for ratio in ("loss_ratio", "throttled_ratio"):
        assert run[ratio].max() <= 1
    assert run.node.min() >= 0
    assert run.node.max() <= 1
    assert np.all(run["delay_p50_us"] <= run["delay_p99_us"])
    np.testing.assert_allclose(run["carried_mbps"][run.valid], (run.left_mbit / run.period_s)[run.valid], rtol=1e-6)
    assert run.slices.transpose(0, 2, 3, 1)[~run.valid].max(initial=0) == 0


def seen(backend: SimulatorBackend, knobs: Callable[[int], Knobs], seed: int, steps: int) -> list[Telemetry]:
    measured = [backend.reset(seed).copy()]
    for step in range(steps):
        backend.apply(knobs(step))
        measured.append(backend.observe().copy())
    return measured


NOT_SIMULATED: list[str] = []
"""Telemetry that only a real node has; 0 in the simulator."""


def test_the_simulator_fills_every_telemetry_field() -> None:
    runs = ScenarioRuns(Scenario.from_yaml("testbed-contention"), control_period_s=0.05)
    backend = SimulatorBackend(runs, LANES)
    measured = seen(backend, RandomKnobs((len(backend.slices), LANES), 3), 3, 200)
    slices, node = (np.stack(rows, axis=1) for rows in zip(*((t.slices, t.node) for t in measured), strict=True))
    zero = [name for name, row in zip(SLICE_FIELDS, slices, strict=True) if not row.any()]
    zero += [name for name, row in zip(NODE_FIELDS, node, strict=True) if not row.any()]
    assert zero == NOT_SIMULATED


def assert_equal(item: list[Telemetry], other: list[Telemetry]) -> None:
    for a, b in zip(item, other, strict=True):
        np.testing.assert_array_equal(a.slices, b.slices)
        np.testing.assert_array_equal(a.node, b.node)
        np.testing.assert_array_equal(a.valid, b.valid)


@settings(max_examples=examples(8))
@given(seed=seeds)
def test_a_seed_fixes_a_run_bit_for_bit(seed: int) -> None:
    runs = []
    for used in (False, True):
        backend = SimulatorBackend(mixtures(), LANES)
        if used:  # what was played before leaves no trace
            seen(backend, RandomKnobs((SLICES, LANES), 7), 7, 10)
        runs.append(seen(backend, RandomKnobs((SLICES, LANES), seed), seed, 30))
    assert_equal(*runs)


def test_another_seed_and_the_next_run_differ() -> None:
    backend = SimulatorBackend(mixtures(), LANES)
    first = backend.reset(1).copy()
    following = backend.reset().copy()
    other = backend.reset(2).copy()
    for item in (following, other):
        assert not np.array_equal(first.slices, item.slices)
    backend.reset(1)
    np.testing.assert_array_equal(backend.reset().slices, following.slices)


@settings(max_examples=examples(8))
@given(seed=seeds)
def test_arrivals_and_noise_do_not_depend_on_actions(seed: int) -> None:
    """Common random numbers: on one seed every agent meets the same run."""
    backends = [SimulatorBackend(mixtures(), LANES) for _ in range(2)]
    for backend in backends:
        backend.reset(seed)
    knobs = RandomKnobs((SLICES, LANES), seed)
    for step in range(30):
        backends[0].apply(knobs(step))
        for backend in backends:
            backend.observe()
        np.testing.assert_array_equal(backends[0].engine.exogenous_row, backends[1].engine.exogenous_row)


@pytest.mark.parametrize("length", [1, 7, 64])
def test_block_length_does_not_change_the_figures(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    backend = SimulatorBackend(mixtures(), LANES)
    knobs = RandomKnobs((SLICES, LANES), 3)
    usual = seen(backend, knobs, 3, 40)
    monkeypatch.setattr(exogenous, "MAX_BLOCK_STEPS", length)
    assert_equal(usual, seen(backend, RandomKnobs((SLICES, LANES), 3), 3, 40))


def test_a_lanes_figures_do_not_depend_on_its_index() -> None:
    """The step takes lanes in chunks, whose last lanes are computed one by one: the same run is put everywhere."""
    copies = 2 * kernels.LANE_CHUNK // LANES + 1
    backend = SimulatorBackend(mixtures(), LANES)
    backend.reset(5)
    item, many = RandomKnobs((SLICES, LANES), 5), RandomKnobs((SLICES, LANES), 5)
    look = Lookahead(backend, copies)
    look.start(30)
    for step in range(30):
        backend.engine.apply(item(step))
        knobs = many(step)
        look.engine.apply(Knobs(tile(knobs.values, copies), knobs.nice_scope))
        expected, seen_there = backend.observe(), look.engine.advance()
        np.testing.assert_array_equal(seen_there.slices, tile(expected.slices, copies))
        np.testing.assert_array_equal(seen_there.node, tile(expected.node, copies))
    np.testing.assert_array_equal(look.engine.state, tile(backend.engine.state, copies))


def test_copies_meet_the_same_input_and_differ_by_their_actions_only() -> None:
    backend = SimulatorBackend(mixtures(), 3 * LANES, copies=3)
    shape = (SLICES, 3 * LANES)
    knobs = Knobs.none(*shape)
    knobs.cpu_limit_mcpu[:, LANES : 2 * LANES] = 100.0  # the second copy
    telemetry = backend.reset(5)
    for _ in range(20):
        backend.apply(knobs)
        telemetry = backend.observe()
        rows = backend.engine.exogenous_row
        assert np.array_equal(rows, tile(rows[..., :LANES], 3))
    first, second, third = np.split(telemetry.slices, 3, axis=-1)
    assert np.array_equal(first, third)
    assert not np.array_equal(first, second)
    promises = backend.context.promises
    assert np.array_equal(promises.weight, tile(promises.weight[:, :LANES], 3))
    assert len(np.unique(promises.weight[0])) == LANES, "the inputs differ"


@pytest.mark.parametrize("count", [1, 2, 64, 256])
def test_any_number_of_slices(count: int) -> None:
    ramp = ScenarioRuns(Scenario.from_yaml("andrade-ramp"))
    backend = SimulatorBackend(repeated_slices(ramp, count))
    telemetry = backend.reset(0)
    assert telemetry.slices.shape == (len(SLICE_FIELDS), count, 1)
    assert np.all(telemetry.carried_mbps > 0)


def test_lanes_are_nodes_of_their_own() -> None:
    """The same causes with other knobs in one lane change that lane only."""

    class TwoLanes(MixtureEpisodes):
        def draw(self, lanes: int, rng: np.random.Generator) -> SimulatorRun:
            episode = super().draw(lanes, rng)
            return replace(episode, period_s=np.ones(lanes, np.float32))

    episodes = TwoLanes(TRAINING.mixture)
    backends = [SimulatorBackend(episodes, 2) for _ in range(2)]
    free, bound = (Knobs.none(SLICES, 2) for _ in range(2))
    bound.cpu_limit_mcpu[:, 1] = 30
    for backend, knobs in zip(backends, (free, bound), strict=True):
        backend.reset(11)
        backend.apply(knobs)
        for _ in range(20):
            backend.observe()
    item, other = (backend.engine.telemetry.slices for backend in backends)
    np.testing.assert_array_equal(item[:, :, 0], other[:, :, 0])
    assert not np.array_equal(item[:, :, 1], other[:, :, 1])
