"""Runs of the published study as episodes: what they say, what stands in for what, and what they leave out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from slicepilot.agents.heuristics.fixed import published
from slicepilot.configs import ConfigError
from slicepilot.data.studies.andrade.tables import schema_of
from slicepilot.data.tables.tidy import Stream
from slicepilot.env.backend import Context
from slicepilot.env.encoding import FEATURES, KnobDecoder, ObservationEncoder, scaled
from slicepilot.env.knobs import Knobs
from slicepilot.env.reward import RewardModel, RewardWeights
from slicepilot.env.simulator.hardware import Hardware
from slicepilot.env.slices import Promises, SliceSet
from slicepilot.env.telemetry import SLICE_FIELDS, Telemetry
from slicepilot.training.recording.andrade import STAND_INS, Joined, to_episodes

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
    period, cpus, uplink = (np.full(1, v, np.float32) for v in (30.0, hardware.logical_cpus, hardware.uplink_mbps))
    return Context(period, cpus, uplink, Promises.of(SLICES), np.ones((5, 1), np.float32), 40)


def row_of(name: str) -> int:
    return SLICE_FIELDS.index(name)


def test_one_episode_per_experiment_and_cycle() -> None:
    found = joined([(5, 1), (5, 2), (21, 1)])
    assert (found.runs, found.left_out) == (3, 0)
    assert [episode.behaviour for episode in found.episodes] == ["experiment-5", "experiment-5", "experiment-21"]
    assert [(episode.info["experiment"], episode.info["cycle"]) for episode in found.episodes] == [
        (5, 1),
        (5, 2),
        (21, 1),
    ]
    assert all(len(episode) == 40 and not episode.terminated for episode in found.episodes)
    assert found.episodes.facts["period_s"] == 30.0
    assert found.episodes.facts["stand_ins"] == STAND_INS


def test_figures_are_those_of_the_tables_and_of_the_load_plan() -> None:
    [episode] = joined([(5, 1)]).episodes
    assert episode.telemetry is not None
    telemetry = episode.telemetry
    carried = telemetry[:, row_of("carried_mbps")]
    assert np.array_equal(carried, np.broadcast_to(100.0 + np.arange(1, 6), carried.shape))  # servers', not UPFs'
    for name in ("delay_p50_us", "delay_p99_us"):
        assert np.allclose(telemetry[:, row_of(name), 2], 303_000.0)
    assert np.array_equal(telemetry[0, row_of("cpu_use_mcpu")], 150.0 + np.arange(1, 6))
    offered = telemetry[:, row_of("offered_mbps")]
    assert offered[0].tolist() == [0.0] * 5  # the mean over two minutes before the start
    assert offered[4].tolist() == [180.0] + [45.0] * 4
    assert offered[9, 1] == pytest.approx(45 * (30 * 2 + 90) / 120)  # at 270 s the second flow has run for 30 s
    assert offered[40].tolist() == [180.0] + [225.0] * 4
    assert telemetry[40, row_of("loss_ratio"), 1] == pytest.approx(1 - 102 / 225)
    for name in ("throttled_ratio", "runqueue_delay_us"):
        assert np.isnan(telemetry[:, row_of(name)]).all()
    assert episode.node is not None
    assert np.isnan(episode.node[:, 0]).all()
    assert episode.node[0, 1] == pytest.approx(515 / 940)


def test_observations_rewards_and_actions_are_the_projects_own() -> None:
    [episode] = joined([(21, 1)]).episodes
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


def test_nice_of_process_scope_is_beside_the_actions() -> None:
    [episode] = joined([(10, 1)]).episodes
    assert episode.info["process_nice"] == [-5.0, 5.0, 5.0, 5.0, 5.0]
    assert not episode.actions[..., 1].any()


def test_slices_without_traffic_are_not_valid() -> None:
    [episode] = joined([(2, 1)]).episodes
    assert episode.valid is not None
    assert episode.telemetry is not None
    assert episode.valid.tolist() == [[True, True, False, False, False]] * 41
    assert not np.nan_to_num(episode.telemetry[:, :, 2:], nan=1.0).any()


def test_rates_of_upfs_do_where_there_are_no_servers() -> None:
    [episode] = joined([(5, 1)], without=lambda _, row: "iperf" in row["workload"]).episodes
    assert episode.telemetry is not None
    assert episode.telemetry[3, row_of("carried_mbps"), 0] == 151.0


def test_an_episode_is_the_longest_stretch_without_a_hole() -> None:
    def hole(name: str, row: Row) -> bool:
        return name == "latency" and row["slice"] == "slice3" and row["time_s"] == 360

    found = joined([(5, 1)], without=hole)
    [episode] = found.episodes
    assert (episode.info["start_s"], len(episode), found.left_out) == (390, 27, 13)
    # In a slice that had no traffic nobody misses a point.
    assert joined([(2, 1)], without=hole).left_out == 0


def test_cpu_use_may_be_missing() -> None:
    [episode] = joined([(5, 1)], names=("latency", "receive")).episodes
    assert episode.telemetry is not None
    assert np.isnan(episode.telemetry[:, row_of("cpu_use_mcpu")]).all()
    assert np.isfinite(episode.observations).all()
    assert np.isfinite(episode.rewards).all()


def test_tables_that_make_no_episode_are_refused() -> None:
    with pytest.raises(ConfigError, match="tables: no latency; accepted: latency, receive and, if there, cpu"):
        joined([(5, 1)], names=("cpu", "receive"))
    with pytest.raises(ConfigError, match="no run with two points in a row"):
        joined([(5, 1)], without=lambda _, row: row["time_s"] % 60 == 0)
