"""Runs of the published study as episodes: what they say, what replaces what, and what they leave out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from slicepilot.agents.heuristics.fixed import published
from slicepilot.configs import ConfigError
from slicepilot.data.episodes.episodes import Episode, EpisodeSet
from slicepilot.data.episodes.files import read_episodes, write_episodes
from slicepilot.data.episodes.header import arrays_of
from slicepilot.data.episodes.missing import missing_of
from slicepilot.data.studies.andrade.tables import schema_of
from slicepilot.data.tables.tidy import Stream
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.encoding import FEATURES, KnobDecoder, ObservationEncoder, scaled
from slicepilot.env.knobs import Knobs
from slicepilot.env.promises import RATE_TOLERANCE
from slicepilot.env.reward import RewardModel, RewardWeights
from slicepilot.env.simulator.hardware import Hardware
from slicepilot.env.slices import Promises, SliceSet
from slicepilot.env.telemetry import SLICE_FIELDS, Telemetry
from slicepilot.training.recording.andrade import STAND_INS, Joined, to_episodes
from slicepilot.training.recording.minari_files import read_minari, write_minari
from tests.loads import context_of

SLICES = SliceSet.from_yaml("five-video")
WEIGHTS = RewardWeights.from_yaml()
WORKLOADS = {
    "cpu": ["open5gs-upf-{}"],
    "latency": ["open5gs-my5gran0{}"],
    "receive": ["open5gs-upf-{}", "open5gs-iperf0{}"],
}
VALUES = {"open5gs-upf-": 150.0, "open5gs-my5gran0": 300.0, "open5gs-iperf0": 100.0}
Run = tuple[int, int]
Row = dict[str, Any]


def rows(collection: str, runs: list[Run]) -> Iterator[Row]:
    """A run's every point; UPFs receive 150 and servers 100 Mbit/s, round trips take 300 ms."""
    for experiment, cycle in runs:
        for number in range(1, 6):
            for workload in WORKLOADS[collection]:
                name = workload.format(number)
                value = VALUES[workload.format("")] + number
                for time_s in range(0, 1201, 30):
                    yield {
                        "experiment": experiment,
                        "cycle": cycle,
                        "time_s": time_s,
                        "slice": f"slice{number}",
                        "workload": name,
                        "priority": name if number == 1 else "others",
                        schema_of(collection).names[-1]: value,
                    }


def table(collection: str, points: list[Row]) -> Stream:
    schema = schema_of(collection)
    columns = {name: [row.get(name) for row in points] for name in schema.names}
    return Stream(schema, iter(pa.table(columns, schema=schema).to_batches()))


def joined(
    runs: list[Run], without: Any = lambda name, row: False, names: tuple[str, ...] = tuple(WORKLOADS)
) -> Joined:
    tables = {name: table(name, [row for row in rows(name, runs) if not without(name, row)]) for name in names}
    return to_episodes(tables, WEIGHTS)


def context() -> Context:
    hardware = Hardware.from_yaml("andrade")
    return context_of(SLICES, 1, 30.0, 40, hardware.logical_cpus, hardware.uplink_mbps)


def episode_of(experiment: int, **options: Any) -> Episode:
    """Its only run's; options as of `joined`."""
    [episode] = joined([(experiment, 1)], **options).episodes
    return episode


def figures(episode: Episode, name: str) -> FloatArray:
    """A row of telemetry, (T + 1, S)."""
    assert episode.telemetry is not None
    return episode.telemetry[:, SLICE_FIELDS.index(name)]


def test_one_episode_per_experiment_and_cycle() -> None:
    result = joined([(5, 1), (5, 2), (21, 1)])
    assert (result.runs, result.left_out) == (3, 0)
    assert [episode.behaviour for episode in result.episodes] == ["experiment-5", "experiment-5", "experiment-21"]
    ids = [(episode.info["experiment"], episode.info["cycle"]) for episode in result.episodes]
    assert ids == [(5, 1), (5, 2), (21, 1)]
    assert all(len(episode) == 40 and not episode.terminated for episode in result.episodes)
    assert result.episodes.facts["period_s"] == 30.0
    assert result.episodes.facts["stand_ins"] == STAND_INS


def test_figures_are_those_of_the_tables_and_of_the_load_plan() -> None:
    episode = episode_of(5)
    carried = figures(episode, "carried_mbps")
    assert np.array_equal(carried, np.broadcast_to(100.0 + np.arange(1, 6), carried.shape))  # servers', not UPFs'
    for name in ("delay_p50_us", "delay_p99_us"):
        assert np.allclose(figures(episode, name)[:, 2], 303_000.0)
    assert np.array_equal(figures(episode, "cpu_use_mcpu")[0], 150.0 + np.arange(1, 6))
    offered = figures(episode, "offered_mbps")
    assert offered[0].tolist() == [0.0] * 5  # the mean over two minutes before the start
    assert offered[4].tolist() == [180.0] + [45.0] * 4
    assert offered[9, 1] == pytest.approx(45 * (30 * 2 + 90) / 120)  # at 270 s the second flow has run for 30 s
    assert offered[40].tolist() == [180.0] + [225.0] * 4
    assert figures(episode, "loss_ratio")[40, 1] == pytest.approx(1 - 102 / 225)
    for name in ("throttled_ratio", "runqueue_delay_us"):
        assert np.isnan(figures(episode, name)).all()
    assert episode.node is not None
    assert np.isnan(episode.node[:, 0]).all()
    assert episode.node[0, 1] == pytest.approx(515 / 985)


def test_observations_rewards_and_actions_are_the_projects_own() -> None:
    episode = episode_of(21)
    agent = published(21, SLICES)
    agent.reset(SLICES, context(), 0)
    knobs = agent.decide(Telemetry.empty(5), Knobs.none(5))
    decoder = KnobDecoder(SLICES)
    plain = Knobs.of(knobs.cpu_limit_mcpu, np.zeros_like(knobs.nice), knobs.egress_mbps)
    encoded = decoder.encode(plain)
    assert np.array_equal(episode.actions, np.broadcast_to(encoded[..., 0].T, episode.actions.shape))
    assert np.array_equal(episode.wanted, episode.actions)
    assert np.isnan(episode.log_density).all()
    assert episode.telemetry is not None
    assert episode.node is not None
    model, encoder = RewardModel(WEIGHTS, context()), ObservationEncoder(context())
    for t in (0, 17, 40):
        telemetry = Telemetry(
            episode.telemetry[t][..., None],
            episode.node[t][:, None],
            np.zeros(1, np.float32),
            np.ones((5, 1), np.bool_),
        )
        assert np.allclose(episode.observations[t], encoder.encode(telemetry, encoded)[0], atol=1e-6)
        if t:
            reward, terms = model(telemetry, plain, encoded, encoded)
            assert episode.rewards[t - 1] == pytest.approx(reward[0], abs=1e-5)
            assert episode.terms["sla"][t - 1] == pytest.approx(terms["sla"][0], abs=1e-5)
    assert np.isfinite(episode.observations).all()
    column = FEATURES.index("carried_mbps")
    assert np.allclose(episode.observations[5, :, column], scaled("carried_mbps", np.float32(100) + np.arange(1, 6)))


def test_slices_without_traffic_are_not_valid() -> None:
    episode = episode_of(2)
    assert episode.valid is not None
    assert episode.telemetry is not None
    assert episode.valid.tolist() == [[True, True, False, False, False]] * 41
    assert not np.nan_to_num(episode.telemetry[:, :, 2:], nan=1.0).any()


def test_rates_of_upfs_do_where_there_are_no_servers() -> None:
    episode = episode_of(5, without=lambda _, row: "iperf" in row["workload"])
    assert figures(episode, "carried_mbps")[3, 0] == 151.0


def unanswered(slices: tuple[str, ...], first_s: int = 0) -> Any:
    """Leaves out the round trips of some slices from a time on."""
    return lambda name, row: name == "latency" and row["slice"] in slices and row["time_s"] >= first_s


OTHERS = ("slice2", "slice3", "slice4", "slice5")


def test_a_run_keeps_its_length_and_what_was_not_measured_is_marked() -> None:
    result = joined([(5, 1)], without=unanswered(("slice3",), 600))
    [episode] = result.episodes
    assert (len(episode), episode.info["start_s"], result.left_out) == (40, 0, 0)
    assert episode.unmeasured is not None
    assert episode.valid is not None
    assert episode.unmeasured[:, 2].tolist() == [False] * 20 + [True] * 21
    assert not episode.unmeasured[:, [0, 1, 3, 4]].any()
    assert (episode.valid == ~episode.unmeasured).all()
    assert np.isnan(figures(episode, "delay_p99_us")[20:, 2]).all(), "no delay is made up"
    assert (figures(episode, "carried_mbps")[20:, 2] == 103.0).all(), "what was measured stays"
    assert not episode.observations[20:, 2, FEATURES.index("active")].any()
    assert np.isfinite(episode.observations).all()
    # In a slice that had no traffic nobody misses anything.
    idle = episode_of(2, without=unanswered(("slice3",), 600))
    assert idle.unmeasured is not None
    assert not idle.unmeasured.any()


def test_rewards_are_of_what_was_measured() -> None:
    """The same run with and without round trips of slice3: its promise and its delay leave the means by weight."""
    whole = episode_of(5)
    part = episode_of(5, without=unanswered(("slice3",), 600))
    before, after = slice(0, 19), slice(19, 40)
    assert np.array_equal(whole.rewards[before], part.rewards[before])
    promised = context().promises
    share = promised.weight[:, 0] / promised.weight.sum()
    log_delay = np.log1p(figures(whole, "delay_p99_us")[20:] / 1e3) / np.log1p(1e4)
    assert whole.terms["delay"][after] == pytest.approx(-(log_delay @ share), abs=1e-5)
    left = np.delete(share, 2) / np.delete(share, 2).sum()
    assert part.terms["delay"][after] == pytest.approx(-(np.delete(log_delay, 2, axis=1) @ left), abs=1e-5)
    # sla by its parts: rates are kept in all alike, so that only who is counted differs.
    score = slice_scores(whole, promised)
    assert part.terms["sla"][after] == pytest.approx(np.delete(score, 2, axis=1) @ left, abs=1e-5)
    for name in ("carried", "cpu_held", "churn"):
        assert np.allclose(whole.terms[name], part.terms[name], atol=1e-6), f"{name} was measured"
    assert part.decisions["unmeasured_share"][after] == pytest.approx(share[2])
    total = sum(getattr(WEIGHTS, name) * column for name, column in part.terms.items())
    assert part.rewards == pytest.approx(total, abs=1e-5)


def slice_scores(episode: Episode, promised: Promises) -> FloatArray:
    """What each slice adds to ``sla`` per weight from step 20 on, (N, S): 30% if kept, 50% by rate, 20% by delay."""
    offered, carried, delay = (figures(episode, name)[20:] for name in ("offered_mbps", "carried_mbps", "delay_p99_us"))
    owed = RATE_TOLERANCE * np.minimum(offered, promised.committed_mbps[:, 0])
    rate, late = np.minimum(carried / owed, 1.0), np.minimum(promised.delay_bound_us[:, 0] / delay, 1.0)
    return np.asarray(0.3 * (np.minimum(rate, late) >= 1) + 0.5 * rate + 0.2 * late, np.float32)


def test_a_step_of_which_too_little_was_measured_has_no_reward() -> None:
    episode = episode_of(5, without=lambda name, row: name == "latency" and row["time_s"] == 600)
    assert np.flatnonzero(np.isnan(episode.rewards)).tolist() == [19]
    parts = episode.unbroken()
    assert [len(part) for part in parts] == [19, 19], "nor is a decision taken on nothing that was measured"
    assert all(np.isfinite(part.rewards).all() for part in parts)
    # Nobody's rate but the priority slice's: nothing says what the others carried.
    blind = episode_of(5, without=lambda _, row: row["slice"] in OTHERS and row["time_s"] >= 900)
    assert np.isnan(blind.rewards[29:]).all()
    assert np.isfinite(blind.rewards[:29]).all()
    assert np.isnan(blind.terms["carried"][29:]).all()


def test_the_overloaded_half_of_a_run_stays() -> None:
    """With 250 mCPU nobody answers pings, but what arrives is counted: all steps have rewards, of what is known."""
    episode = episode_of(8, without=unanswered(OTHERS, 600))
    assert len(episode) == 40
    assert np.isfinite(episode.rewards).all()
    [part] = episode.unbroken()
    assert len(part) == 40
    [row] = missing_of(EpisodeSet((episode,), joined([(8, 1)]).episodes.facts))
    assert (row["readings"], row["unmeasured"], row["unscored_steps"]) == (200, 84, 0)
    assert row["unmeasured_by_slice"]["slice1"] == 0
    assert row["unmeasured_by_slice"]["slice5"] == pytest.approx(21 / 40)
    assert row["reward"] == pytest.approx(episode.rewards.mean(), abs=1e-6)
    assert row["reward"] is not None
    assert row["reward_at_worst"] is not None
    assert row["reward_at_worst"] < row["reward"] - 0.1


def test_what_was_not_measured_survives_files(tmp_path: Path) -> None:
    result = joined([(5, 1), (8, 1)], without=unanswered(OTHERS, 600)).episodes
    write_episodes(result, tmp_path / "episodes.parquet")
    write_minari(result, tmp_path / "episodes-v0")
    for back in (read_episodes(tmp_path / "episodes.parquet"), read_minari(tmp_path / "episodes-v0")):
        for old, new in zip(result, back, strict=True):
            before, after = arrays_of(old), arrays_of(new)
            assert before.keys() == after.keys()
            assert "unmeasured" in before
            assert all(np.array_equal(before[name], after[name], equal_nan=True) for name in before)


def test_a_sample_at_1230_s_is_one_more_step() -> None:
    def late(collection: str, run: Run) -> list[Row]:
        own = list(rows(collection, [run]))
        return [*own, *(row | {"time_s": 1230} for row in own if row["time_s"] == 1200)]

    tables = {name: table(name, [*late(name, (5, 1)), *rows(name, [(5, 2)])]) for name in WORKLOADS}
    first, second = to_episodes(tables, WEIGHTS).episodes
    assert (len(first), len(second)) == (41, 40)
    assert figures(first, "offered_mbps")[41].tolist() == [180.0] + [225.0] * 4
    assert np.isfinite(first.rewards).all()


def test_a_run_without_round_trips_makes_no_episode() -> None:
    """The collections of the release have different numbers of runs."""
    result = joined([(5, 1), (5, 2)], without=lambda name, row: name == "latency" and row["cycle"] == 2)
    assert (len(result.episodes), result.runs, result.left_out) == (1, 2, 41)


def test_cpu_use_may_be_missing() -> None:
    episode = episode_of(5, names=("latency", "receive"))
    assert np.isnan(figures(episode, "cpu_use_mcpu")).all()
    assert np.isfinite(episode.observations).all()
    assert np.isfinite(episode.rewards).all()


def test_tables_that_make_no_episode_are_refused() -> None:
    with pytest.raises(ConfigError, match="tables: no latency; expected latency, receive and, if there, cpu"):
        joined([(5, 1)], names=("cpu", "receive"))
    with pytest.raises(ConfigError, match="no run with a step of which enough was measured"):
        joined([(5, 1)], without=lambda name, row: name == "latency" and row["time_s"] > 0)
