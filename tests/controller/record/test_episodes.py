"""Records become the episodes that the same run would have been recorded as, wherever ticks are missing."""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicepilot.agents.base import Agent, StochasticAgent
from slicepilot.agents.heuristics.exploring import ExploringAgent
from slicepilot.agents.heuristics.fixed import FixedAgent
from slicepilot.agents.heuristics.registry import make
from slicepilot.configs import ConfigError
from slicepilot.controller.contracts.modes import Level, Mode
from slicepilot.controller.contracts.reasons import Reason
from slicepilot.controller.record.reader import SegmentReader, Stretch
from slicepilot.controller.record.ring import HELD, LATE, UNUSABLE, Records, record_dtype
from slicepilot.controller.record.segments import SegmentWriter
from slicepilot.data.episodes.episodes import Episode
from slicepilot.env.encoding import KnobDecoder
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.recording.decision_records import OTHERS, episodes_of
from slicepilot.training.recording.recording import run
from tests.effort import examples

from .conftest import description, ticks

PERIOD_S, COUNT, WINDOW = 0.01, 60, 5  # an agent sees averages over 50 ms
SCENARIO = dataclasses.replace(
    Scenario.from_yaml("testbed-contention"), duration_s=COUNT * PERIOD_S, control_period_s=PERIOD_S
)
WEIGHTS = RewardWeights.from_yaml("delay-first")
DECODER = KnobDecoder(SCENARIO.slice_set())


def around_the_middle(std: float) -> ExploringAgent:
    """Noise of so much around a setting that is far from all bounds."""
    return ExploringAgent(FixedAgent("middle", [220.0] * 5, [0] * 5, [30.0] * 5), std, hold_periods=2)


def played(who: str | Agent) -> tuple[Episode, Records]:
    """A run as it is recorded, and as a controller's ring would have it: a tick per decision, and one more."""
    backend = SimulatorBackend(ScenarioRuns(SCENARIO), 1)
    agent = make(who, SCENARIO.slice_set(), SCENARIO.hardware_spec()) if isinstance(who, str) else who
    kept = run(backend, agent, 3)
    [episode] = kept.episodes(WEIGHTS, {})
    trace = kept.trace
    records = np.zeros(COUNT + 1, record_dtype(5))
    records["sequence"] = np.arange(1, COUNT + 2)
    records["time_ns"] = records["monotonic_ns"] = 10**18 + np.arange(COUNT + 1) * 10_000_000
    records["mode"], records["description"] = Mode.LIVE, 2
    records["slices"], records["node"] = trace.slices[..., 0], trace.node[..., 0]
    records["valid"][:, :5] = trace.valid[..., 0]
    for stage in ("wanted", "allowed", "applied"):
        records[stage][:-1] = trace.knobs[1:, ..., 0]
        records[stage][-1] = trace.knobs[-1, ..., 0]
    requested, _ = DECODER.decode(episode.wanted)
    records["wanted"][:-1] = requested.values.transpose(2, 0, 1)
    records["log_density"][:-1] = episode.log_density
    records["log_density"][-1] = np.nan
    records["drawn"] = np.nan
    if isinstance(agent, StochasticAgent):
        records["drawn"][:-1] = episode.wanted
    records["flags"][:-1] = HELD * episode.decisions["held"]
    return episode, records


def stretch(records: Records, description: dict[str, Any]) -> Stretch:
    return Stretch(description | {"period_s": PERIOD_S}, records)


def wished(whole: Episode) -> np.ndarray:
    """What was wanted, as the knobs show it."""
    return DECODER.encode(DECODER.decode(whole.wanted)[0]).transpose(2, 1, 0)


def assert_part(result: Episode, whole: Episode, first: int) -> None:
    """Every array of ``result`` is that of ``whole`` from a step on."""
    end = first + len(result)
    for name in ("observations", "telemetry", "node", "valid"):
        np.testing.assert_allclose(getattr(result, name), getattr(whole, name)[first : end + 1], atol=1e-6)
    for name in ("actions", "rewards"):
        np.testing.assert_allclose(getattr(result, name), getattr(whole, name)[first:end], atol=1e-6)
    np.testing.assert_allclose(result.log_density, whole.log_density[first:end], atol=1e-5)  # in 32 bits
    draws = np.isfinite(whole.log_density).any()
    np.testing.assert_allclose(result.wanted, (whole.wanted if draws else wished(whole))[first:end], atol=1e-5)
    for name, values in result.terms.items():
        np.testing.assert_allclose(values, whole.terms[name][first:end], atol=1e-6)
    np.testing.assert_array_equal(result.decisions["held"], whole.decisions["held"][first:end])


@pytest.mark.parametrize("name", ["random", "reactive-sla", "exploring-experiment-7-scaled"])
def test_a_recorded_run_is_the_episode_that_it_was(tmp_path: Path, name: str) -> None:
    whole, records = played(name)
    writer = SegmentWriter(tmp_path, 1 << 24, segment_s=0.2)
    for part in np.array_split(records, 5):
        writer.add(part, description() | {"period_s": PERIOD_S, "agent": name}, 2)
    writer.close()
    assert writer.segments > 1
    episodes = episodes_of(SegmentReader(tmp_path).stretches(), WEIGHTS)
    [result] = episodes
    assert len(result) == COUNT - 1  # of the first decision it is not known what held before
    assert_part(result, whole, 1)
    assert result.behaviour == name
    assert result.info["run_id"] == "run-1"
    assert episodes.facts["period_s"] == PERIOD_S
    assert json.loads(json.dumps(episodes.facts)) == episodes.facts


def test_densities_without_their_draws_are_left_out() -> None:
    whole, records = played("exploring-experiment-7-scaled")
    records["drawn"][30:] = np.nan
    [result] = episodes_of([stretch(records, description())], WEIGHTS)
    assert np.abs(whole.wanted[1:30]).max() > 1.0  # what was drawn, however far beyond the bounds
    np.testing.assert_array_equal(result.wanted[:29], whole.wanted[1:30])
    np.testing.assert_allclose(result.log_density[:29], whole.log_density[1:30], rtol=1e-6)
    np.testing.assert_allclose(result.wanted[29:], wished(whole)[30:], atol=1e-5)
    assert np.isnan(result.log_density[29:]).all()


@functools.cache
def whole_run() -> tuple[Episode, Records]:
    return played(around_the_middle(0.1))


def same_telemetry(result: Episode, first: int) -> bool:
    """Whether an episode's figures are those from a step of the whole run on."""
    assert result.telemetry is not None
    whole, _ = whole_run()
    assert whole.telemetry is not None
    return np.array_equal(result.telemetry, whole.telemetry[first : first + len(result) + 1])


@settings(max_examples=examples(60))
@given(lost=st.sets(st.integers(0, COUNT), max_size=8), shuffled=st.randoms(use_true_random=False))
def test_no_episode_goes_over_a_gap(lost: set[int], shuffled: Any) -> None:
    kept = [at for at in range(COUNT + 1) if at not in lost]
    halves = [kept[: len(kept) // 2], kept[len(kept) // 2 :]]
    shuffled.shuffle(halves)
    whole, records = whole_run()
    stretches = [stretch(records[half], description()) for half in halves]
    # A decision is known where its tick and both neighbours are, and what the agent saw of the past.
    known = [
        at
        for at in range(1, COUNT)
        if not lost & {at - 1, at, at + 1} and (lost.isdisjoint(range(at + 1)) or not lost & set(range(at - 4, at)))
        if at >= 4 or lost.isdisjoint(range(at + 1))
    ]
    if not known:
        with pytest.raises(ConfigError, match="three ticks in a row"):
            episodes_of(stretches, WEIGHTS)
        return
    episodes = episodes_of(stretches, WEIGHTS)
    steps = []
    for result in episodes:
        [first] = [at for at in known if same_telemetry(result, at)]
        assert_part(result, whole, first)
        steps += range(first, first + len(result))
    assert steps == known


def test_ticks_that_went_by_and_changes_of_mode_and_policy_end_an_episode() -> None:
    records = whole_run()[1].copy()
    records["missed"][20:] = 1  # the measurement at tick 20 is of two periods
    records["mode"][40:] = Mode.SHADOW
    records["description"][50:] = 4
    parts = [stretch(records[:50], description()), stretch(records[50:], description(agent="other"))]
    episodes = episodes_of(parts, WEIGHTS)
    spans = [(1, 19), (20, 39), (41, 49), (51, 60)]  # ticks at either side of a change are of neither
    assert [len(result) for result in episodes] == [end - first for first, end in spans]
    for result, (first, _) in zip(episodes, spans, strict=True):
        assert same_telemetry(result, first)
    assert [result.behaviour for result in episodes] == ["captain", "captain", OTHERS, OTHERS]
    assert [result.info["agent"] for result in episodes] == ["captain"] * 3 + ["other"]
    assert [result.info["mode"] for result in episodes] == ["live", "live", "shadow", "shadow"]
    # In shadow it is others who act: what the policy would have drawn says nothing about that.
    assert np.isfinite(episodes.episodes[0].log_density).any()
    assert not np.isfinite(episodes.episodes[2].log_density).any()
    assert not episodes.episodes[2].decisions["held"].any()


def test_what_was_decided_how_is_kept() -> None:
    records = whole_run()[1].copy()
    records["flags"][10], records["flags"][11] = LATE, UNUSABLE
    records["level"][12], records["node_reasons"][12] = Level.SAFE, Reason.PAUSED.bit
    records["reasons"][13, 2] = Reason.SLEW.bit
    records["wanted"][11] = records["drawn"][11] = np.nan
    records["applied"][14] = records["applied"][13]  # the guard did not let the wish through
    episodes = episodes_of([stretch(records, description())], WEIGHTS)
    [result] = episodes
    decisions = {name: column[9:14] for name, column in result.decisions.items()}  # of ticks 10 to 14
    assert decisions["late"].tolist() == [True, False, False, False, False]
    assert decisions["unusable"].tolist() == [False, True, False, False, False]
    assert decisions["level"].tolist() == [0, 0, episodes.facts["codes"]["level"]["safe"], 0, 0]
    assert decisions["node_reasons"][2] == episodes.facts["codes"]["reasons"]["paused"]
    assert decisions["reasons"][3].tolist() == [0, 0, episodes.facts["codes"]["reasons"]["slew"], 0, 0]
    np.testing.assert_array_equal(result.wanted[10], result.actions[10])  # nothing was wanted: what held, held
    np.testing.assert_array_equal(result.actions[13], result.actions[12])
    assert np.isfinite(result.wanted).all()


def test_runs_of_other_slices_are_refused_in_one_line() -> None:
    _, records = whole_run()
    parts = [stretch(records, description()), stretch(records, description("run-2", logical_cpus=4.0))]
    with pytest.raises(ConfigError, match=r"run run-2: logical_cpus: differs") as error:
        episodes_of(parts, WEIGHTS)
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match="three ticks in a row"):
        episodes_of([stretch(ticks(2), description())], WEIGHTS)
    with pytest.raises(ConfigError, match="three ticks in a row"):
        episodes_of([], WEIGHTS)


def test_nice_inside_pods_is_no_action() -> None:
    records = whole_run()[1].copy()
    for stage in ("wanted", "applied"):
        records[stage][:, 1] = -5.0
    [group] = episodes_of([stretch(records, description())], WEIGHTS)
    [process] = episodes_of([stretch(records, description(nice_scope="process"))], WEIGHTS)
    assert (group.actions[..., 1] == -0.25).all()
    assert (process.actions[..., 1] == 0).all()
