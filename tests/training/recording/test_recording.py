"""Recorded episodes are what the environment gives step by step, and what agents really saw."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slicepilot.agents.base import Agent
from slicepilot.agents.heuristics.registry import make
from slicepilot.data.episodes.episodes import Episode
from slicepilot.data.episodes.files import read_episodes
from slicepilot.data.recorded import names, path
from slicepilot.env.backend import Context
from slicepilot.env.encoding import KnobDecoder, ObservationEncoder
from slicepilot.env.environments.vector_env import ControlLoop
from slicepilot.env.knobs import Knobs
from slicepilot.env.reward import TERMS, RewardModel, RewardWeights
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.env.slices import SliceSet
from slicepilot.env.sliding import SlidingView
from slicepilot.env.telemetry import SLICE_FIELDS, Telemetry
from slicepilot.training.recording.minari_files import read_minari
from slicepilot.training.recording.recording import on_declared_pods, record_simulated, run
from slicepilot.training.recording.relabel import Trace, relabel
from tests.command import slicepilot
from tests.loads import context_of

SCENARIO = dataclasses.replace(Scenario.from_yaml("testbed-contention"), duration_s=0.6, control_period_s=0.01)
SLICES = SCENARIO.slice_set()
WEIGHTS = RewardWeights.from_yaml("delay-first")
# Limits that are rationed, noise, a memory, shaping and nice inside pods.
AGENTS = ("random", "exploring-experiment-7-scaled", "reactive-sla", "captain", "experiment-25-scaled", "no-control")


def agent_of(name: str) -> Agent:
    return make(name, SLICES, SCENARIO.hardware_spec())


def test_lanes_are_episodes_as_the_environment_gives_them() -> None:
    """Whoever plays the recorded wishes in the environment sees, and earns, what was recorded."""
    episodes = record_simulated([agent_of("random"), agent_of("captain")], SCENARIO, 3, 1, WEIGHTS)
    assert episodes.behaviours == ("random", "captain")
    assert [episode.info["lane"] for episode in episodes] == [0, 1, 2, 0, 1, 2]
    assert {(len(own), own.terminated) for own in episodes} == {(60, False)}
    decoder = KnobDecoder(SLICES)
    for name in episodes.behaviours:
        mine = episodes.of(name).episodes
        loop = ControlLoop(SimulatorBackend(ScenarioRuns(SCENARIO), 3), WEIGHTS)
        observations = loop.reset(1)
        for t in range(SCENARIO.num_steps):
            np.testing.assert_allclose(observations, [own.observations[t] for own in mine], atol=1e-6)
            observations, rewards, _ = loop.step(np.stack([own.wanted[t] for own in mine]))
            np.testing.assert_allclose(decoder.encode(loop.knobs).T, [own.actions[t] for own in mine], atol=1e-6)
            np.testing.assert_allclose(rewards, [own.rewards[t] for own in mine], atol=1e-5)
            for term, values in loop.terms.items():
                np.testing.assert_allclose(values, [own.terms[term][t] for own in mine], atol=1e-5)
    # Arrivals and noise are the same for both agents, what came of them is not.
    for item, other in zip(episodes.of("random"), episodes.of("captain"), strict=True):
        assert item.telemetry is not None
        assert other.telemetry is not None
        np.testing.assert_array_equal(item.telemetry[:, 0], other.telemetry[:, 0])
        assert not np.array_equal(item.telemetry[:, 1], other.telemetry[:, 1])


@pytest.mark.parametrize("name", AGENTS)
def test_what_agents_saw_is_what_is_kept(name: str) -> None:
    """The agent's own eyes against what is worked out when the run is over."""
    seen: list[Any] = []
    agent = agent_of(name)
    decide = agent.decide

    def watched(telemetry: Telemetry, knobs: Knobs) -> Knobs:
        seen.append((telemetry.copy(), knobs.copy()))
        return decide(telemetry, knobs)

    agent.decide = watched  # type: ignore[method-assign]
    backend = SimulatorBackend(ScenarioRuns(SCENARIO, request_mcpu=agent.request_mcpu))
    [episode] = run(backend, agent, 2).episodes(WEIGHTS, {})
    encoder, decoder = ObservationEncoder(backend.context), KnobDecoder(SLICES)
    for t, (telemetry, knobs) in enumerate(seen):
        nice = np.zeros_like(knobs.nice) if knobs.nice_scope == "process" else knobs.nice
        expected = encoder.encode(telemetry, decoder.encode(Knobs.of(knobs.cpu_limit_mcpu, nice, knobs.egress_mbps)))[0]
        np.testing.assert_allclose(episode.observations[t], expected, atol=1e-6)


def test_nice_inside_pods_and_requests_are_reported_beside_the_actions() -> None:
    published = agent_of("experiment-25-scaled")
    declared = on_declared_pods(published)
    assert published.request_mcpu is not None
    assert declared.request_mcpu is None
    [item, other] = record_simulated([published, declared], SCENARIO, 1, 0, WEIGHTS)
    assert item.info["process_nice"] == [-5, 5, 5, 5, 5]
    assert (item.actions[..., 1] == 0).all()
    assert item.info["request_mcpu"] == [500, 250, 250, 250, 250]
    assert other.info["request_mcpu"] == [380] * 5
    np.testing.assert_array_equal(item.actions, other.actions)
    assert on_declared_pods(declared) is declared


def test_facts_are_plain_and_say_what_numbers_mean() -> None:
    episodes = record_simulated([agent_of("random")], SCENARIO, 1, 0, WEIGHTS)
    facts = episodes.facts
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert [spec["name"] for spec in facts["slices"]] == list(SLICES.names)
    assert facts["reward"] == dataclasses.asdict(WEIGHTS)
    assert (facts["period_s"], facts["logical_cpus"], facts["threads"]) == (0.01, 2.0, [1.0] * 5)
    shared = [facts["encoder"]["features"].index(name) for name in facts["shared_features"]]
    observations = episodes.episodes[0].observations
    assert (observations[:, :, shared] == observations[:, :1, shared]).all()


def slowly(trace: Trace, slices: SliceSet, context: Context) -> tuple[Any, Any, Any]:
    """`relabel`, one measurement after the other, as the loop of the environment goes."""
    encoder, decoder, view = ObservationEncoder(context), KnobDecoder(slices), SlidingView(context)
    reward = RewardModel(WEIGHTS, context)
    observations, rewards, terms = [], [], []
    rows = before = decoder.encode(Knobs(trace.knobs[0]))
    for n in range(len(trace)):
        telemetry = trace.beside(slice(n, n + 1))
        knobs = Knobs(trace.knobs[n])
        rows, before = decoder.encode(knobs), rows
        observations.append(encoder.encode(view.see(telemetry), rows))
        score, parts = reward(telemetry, knobs, rows, before)
        rewards.append(score)
        terms.append([parts[name] for name in TERMS])
    return np.asarray(observations), np.asarray(rewards)[1:], np.asarray(terms)[1:]


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("period_s", [0.004, 0.05, 1.0])
def test_many_at_once_are_one_after_the_other(monkeypatch: pytest.MonkeyPatch, lanes: int, period_s: float) -> None:
    monkeypatch.setattr("slicepilot.training.recording.relabel.LANES", 7)  # of which 50 are no multiple
    rng = np.random.default_rng(lanes)
    count = 50
    trace = Trace(
        slices=rng.gamma(1.0, 50.0, (count, len(SLICE_FIELDS), 5, lanes)).astype(np.float32),
        node=rng.random((count, 2, lanes), np.float32),
        valid=rng.random((count, 5, lanes)) < 0.9,
        knobs=np.stack(
            [
                np.where(rng.random((count, 5, lanes)) < 0.3, np.inf, rng.uniform(50, 1000, (count, 5, lanes))),
                rng.integers(-20, 20, (count, 5, lanes)),
                np.where(rng.random((count, 5, lanes)) < 0.3, np.inf, rng.uniform(1, 1000, (count, 5, lanes))),
            ],
            axis=1,
        ).astype(np.float32),
    )
    context = context_of(SLICES, lanes, period_s, count, cpus=2.0, uplink_mbps=np.inf)
    seen = relabel(trace, SLICES, context, WEIGHTS)
    observations, rewards, terms = slowly(trace, SLICES, context)
    np.testing.assert_allclose(seen.observations, observations.swapaxes(0, 1), atol=1e-6)
    np.testing.assert_allclose(seen.rewards, rewards.T, atol=1e-5)
    for index, name in enumerate(TERMS):
        np.testing.assert_allclose(seen.terms[name], terms[:, index].T, atol=1e-6)
    np.testing.assert_array_equal(seen.actions[:, :, :, 1], (trace.knobs[1:, 1] / 20).transpose(2, 0, 1))
    with pytest.raises(ValueError, match="7 fields of slices"):
        relabel(dataclasses.replace(trace, slices=trace.slices[:, 1:]), SLICES, context, WEIGHTS)


def test_a_run_in_real_time_counts_the_ticks_that_went_by() -> None:
    class Ticking(SimulatorBackend):
        """Misses two ticks before its tenth measurement, as a loaded machine may."""

        def __init__(self) -> None:
            super().__init__(ScenarioRuns(SCENARIO))
            self.ticks, self.measured = self, 0
            self.missed = 5  # in runs before

        def observe(self) -> Telemetry:
            self.measured += 1
            self.missed += 2 * (self.measured == 10)
            return super().observe()

    [episode] = run(Ticking(), agent_of("captain"), 0).episodes(WEIGHTS, {})
    missed = episode.decisions["missed_ticks"]
    assert np.flatnonzero(missed).tolist() == [9]
    assert missed[9] == 2


def test_the_command_records(tmp_path: Path) -> None:
    out = tmp_path / "logs" / "set.parquet"
    cast = "random:2,exploring-no-control,experiment-8-scaled"
    how = ("--agents", cast, "--seconds", "0.3", "--period-ms", "10", "--reward", "delay-first", "--episodes", "2")
    reported = slicepilot("dataset", "record", *how, "--out", str(out), "--json")
    assert reported.returncode == 0, reported.stderr
    document = json.loads(reported.stdout)
    assert [(row["name"], row["episodes"], row["steps"]) for row in document["behaviours"]] == [
        ("random", 4, 120),
        ("exploring-no-control", 2, 60),
        ("experiment-8-scaled", 2, 60),
    ]
    assert document["bytes"] == out.stat().st_size
    episodes = read_episodes(out)
    means = [float(np.mean([own.rewards.mean() for own in episodes.of(name)])) for name in episodes.behaviours]
    np.testing.assert_allclose([row["reward_mean"] for row in document["behaviours"]], means, rtol=1e-6)
    assert {tuple(episode.info["request_mcpu"]) for episode in episodes} == {(380.0,) * 5}
    assert episodes.facts["command"].startswith("slicepilot")
    folder = tmp_path / "set-v0"
    reported = slicepilot("dataset", "record", *how, "--out", str(folder), "--published-requests")
    assert reported.returncode == 0, reported.stderr
    assert max(map(len, reported.stdout.splitlines())) <= 80 + len(str(folder))
    again = read_minari(folder)
    assert again.episodes[-1].info["request_mcpu"] == [500, 125, 125, 125, 125]
    np.testing.assert_array_equal(again.episodes[0].actions, episodes.episodes[0].actions)


@pytest.mark.parametrize("name", names())
def test_shipped_recordings_are_small_and_whole(name: str) -> None:
    assert path(name).stat().st_size < 5_000_000
    episodes = read_episodes(path(name))
    facts = episodes.facts
    slices = SliceSet.from_yaml("testbed-five")
    assert [spec["name"] for spec in facts["slices"]] == list(slices.names)
    assert {"random", "exploring-experiment-7-scaled", "experiment-7-scaled"} <= set(episodes.behaviours)
    context = context_of(slices, 1, facts["period_s"], 0, facts["logical_cpus"], facts["uplink_mbps"])
    context = dataclasses.replace(context, threads=np.asarray(facts["threads"], np.float32)[:, None])
    for episode in episodes:
        assert_consistent(episode, slices, context, RewardWeights(**facts["reward"]))


def assert_consistent(episode: Episode, slices: SliceSet, context: Context, weights: RewardWeights) -> None:
    """Observations and rewards are those of the telemetry and the actions beside them."""
    assert episode.telemetry is not None
    assert episode.node is not None
    assert episode.valid is not None
    decoder = KnobDecoder(slices)
    knobs, _ = decoder.decode(episode.actions)
    held = knobs.values.transpose(2, 0, 1)
    none = Knobs.none(len(slices))
    first = none.values[None, ..., 0]
    figures = np.zeros((len(episode.telemetry), len(SLICE_FIELDS), len(slices), 1), np.float32)
    figures[:, : episode.telemetry.shape[1], :, 0] = episode.telemetry  # later fields are newer than the recording
    trace = Trace(
        figures, episode.node[..., None], episode.valid[..., None],
        np.concatenate([first, held])[..., None],
    )  # fmt: skip
    seen = relabel(trace, slices, context, weights)
    np.testing.assert_allclose(seen.observations[0], episode.observations, atol=1e-4)
    np.testing.assert_allclose(seen.rewards[0], episode.rewards, atol=1e-3)
    decided = ~episode.decisions["held"]
    if episode.behaviour == "random" or episode.behaviour.startswith("exploring-"):
        assert np.isfinite(episode.log_density[decided]).all()
    assert np.isnan(episode.log_density[~decided]).all()
    assert np.isfinite(episode.observations).all()
