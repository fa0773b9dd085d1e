"""The runs of Andrade and Wickboldt (2025) as episodes: the observations of a policy, the published setting, a reward.

The study set knobs once and scraped every 30 s, so a run of 1200 s is 40 decisions for the same setting, and 41 where
there is a sample at 1230 s. It did not measure all that a policy sees. What is substituted:

    offered_mbps: the load plan (`configs/scenarios/andrade-ramp.yaml`), as a mean over two minutes, as the rates are.
    carried_mbps: what the slice's iperf server received; where an export has none of these, what its UPF did.
    delay_p50_us, delay_p99_us: the mean round trip from UE to server, of which the way from N3 to N6 is a part.
    loss_ratio: 1 - carried / offered.
    cpu_use_mcpu: the UPF's; NaN where it is missing.
    throttled_ratio, runqueue_delay_us, cpu_idle_ratio: NaN, which observations show as zero.
    uplink_use_ratio: what all slices carry over the node's uplink; NaN where one of them was not measured.

Nor did it measure everything at all times: round trips are missing where no ping came back, which is where a node is
overloaded. An episode keeps its length all the same. A slice with traffic of which round trip or rate is missing is
``unmeasured`` in that step: its missing readings are NaN, observations do not show it, and its promise and delay are
left out of the step's reward, which is of the other slices (`slicepilot.training.recording.relabel`); where there is
too little of them the step has none. ``decisions["unmeasured_share"]`` is the share of the slices' weight left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from slicepilot.configs import ConfigError
from slicepilot.data.episodes.episodes import EpisodeSet
from slicepilot.data.reference import published_settings
from slicepilot.data.studies.andrade.tables import END_S, LAST_S, STEP_S
from slicepilot.data.tables.tidy import Stream
from slicepilot.env.backend import Context
from slicepilot.env.knobs import KNOB_FIELDS, Knobs
from slicepilot.env.published import requests_of, setting_knobs
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.scenario import Load, Scenario
from slicepilot.env.simulator.study import RAMP
from slicepilot.env.telemetry import NODE_FIELDS, SLICE_FIELDS

from .recording import facts_of
from .relabel import Trace, episode_of, relabel

POINTS = LAST_S // STEP_S + 1
USUAL_POINTS = END_S // STEP_S + 1
MEAN_OVER_S = 120  # of the study's Prometheus queries
SERVER = "iperf"  # in the names of the workloads that received what a slice carried
_MEASURED = ("carried_mbps", "loss_ratio", "cpu_use_mcpu", "uplink_use_ratio")
STAND_INS = {name: "not measured" for name in (*SLICE_FIELDS, *NODE_FIELDS) if name not in _MEASURED} | {
    "offered_mbps": "load plan",
    "delay_p50_us": "mean round trip",
    "delay_p99_us": "mean round trip",
}
"""Substitutes for quantities that were not measured; in `EpisodeSet.facts` as ``stand_ins``."""

Key = tuple[int, int]
"""Experiment and cycle."""
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Joined:
    """Episodes, and what they leave out.

    Attributes:
        runs: experiments times cycles of which there is anything.
        left_out: points of runs that make no episode, because a collection has nothing of them and no step can be
            scored.
    """

    episodes: EpisodeSet
    runs: int
    left_out: int


def to_episodes(tables: Mapping[str, Stream], weights: RewardWeights) -> Joined:
    """Join tidy tables to an episode per experiment and cycle, in which missing measurements are marked.

    Actions say what `slicepilot.training.recording.recording` has them say: nice of process scope, which the study set,
    moves no weight between pods; it is in ``info["process_nice"]``.

    Args:
        tables: ``latency``, ``receive`` and optionally ``cpu``, as
            `slicepilot.data.studies.andrade.tables.read_andrade` and `slicepilot.data.tables.tidy.read_tidy` give them.

    Raises:
        ConfigError: a table is missing, or of no run a step can be scored.
    """
    if missing := {"latency", "receive"} - set(tables):
        raise ConfigError(f"tables: no {', '.join(sorted(missing))}; expected latency, receive and, if there, cpu")
    scenario = Scenario.from_yaml(RAMP)
    slices, node = scenario.slice_set(), scenario.hardware_spec()
    measured = {name: _grids(table, len(slices)) for name, table in tables.items()}
    keys = sorted(set(measured["latency"]) | set(measured["receive"]))
    known = {setting.experiment: setting for setting in published_settings()}
    settings = [known[experiment] for experiment, _ in keys]
    knobs = [setting_knobs(setting, len(slices), slices.priority_index) for setting in settings]
    active = np.arange(len(slices))[:, None] < [setting.active_slices for setting in settings]
    context = Context.alike(slices, STEP_S, node.logical_cpus, node.uplink_mbps, POINTS - 1, len(keys))
    trace = _trace(keys, measured, scenario, active, knobs, context)
    seen = relabel(trace, slices, context, weights)
    result, points = [], 0
    for lane, (experiment, cycle) in enumerate(keys):
        length = POINTS if trace.valid[-1, :, lane].any() else USUAL_POINTS
        points += length
        if np.isfinite(seen.rewards[lane, : length - 1]).any():
            own = knobs[lane]
            info: dict[str, Any] = {"experiment": experiment, "cycle": cycle, "start_s": 0, "backend": "study"}
            info |= {"process_nice": own.nice[:, 0].tolist(), "request_mcpu": requests_of(own)[:, 0].tolist()}
            result.append(episode_of(seen, lane, 0, length - 1, f"experiment-{experiment}", info=info))
    if not result:
        raise ConfigError(
            "tables: no run with a step of which enough was measured for a reward; expected whole exports"
        )
    facts = facts_of(slices, context, weights) | {"stand_ins": STAND_INS}
    held = sum(len(episode) + 1 for episode in result)
    return Joined(EpisodeSet(tuple(result), facts), len(keys), points - held)


def _trace(
    keys: Sequence[Key],
    measured: Mapping[str, Mapping[Key, Array]],
    scenario: Scenario,
    active: Array,
    knobs: Sequence[Knobs],
    context: Context,
) -> Trace:
    """All runs side by side, lane l of the l-th key; slices that are not ``active`` (S, L) have no traffic by plan."""
    nothing = np.full((POINTS, len(active)), np.nan)
    latency, carried, cpu = (
        np.stack([measured.get(name, {}).get(key, nothing) for key in keys], axis=-1)
        for name in ("latency", "receive", "cpu")
    )
    plan = np.stack([_planned_mbps(scenario.loads[name]) for name in scenario.slice_set().names], axis=1)
    slices = {
        "offered_mbps": np.broadcast_to(plan[..., None], latency.shape),
        "carried_mbps": np.where(active, carried, np.nan),
        "delay_p50_us": 1e3 * latency,
        "delay_p99_us": 1e3 * latency,
        "cpu_use_mcpu": cpu,
    }
    in_all = np.where(active, carried, 0.0).astype(np.float32).sum(axis=1)
    node = {"uplink_use_ratio": np.minimum(in_all / context.uplink_mbps, 1.0)}
    held = np.concatenate([own.between_groups().values for own in knobs], axis=-1)
    rows = np.broadcast_to(held[:, None], (len(held), *latency.shape))
    trace = Trace.of_columns(
        slices, node, dict(zip(map(str, KNOB_FIELDS), rows, strict=True)), ["carried_mbps", "delay_p99_us"], active
    )
    assert trace.readings is not None
    return replace(trace, readings=np.where(active, trace.readings, np.float32(0.0)))


def _grids(table: Stream, num_slices: int) -> dict[Key, Array]:
    """The last column of a table by time and slice, (42, S) for each run; servers' rates before UPFs."""
    value = table.schema.names[-1]
    grids: dict[bool, dict[Key, Array]] = {True: {}, False: {}}
    for batch in table.batches:
        rows = batch.select(["experiment", "cycle", "time_s", "slice", "workload", value]).to_pylist()
        for row in rows:
            own = grids[SERVER in row["workload"]]
            key = (row["experiment"], row["cycle"])
            if key not in own:
                own[key] = np.full((POINTS, num_slices), np.nan)
            own[key][row["time_s"] // STEP_S, int(row["slice"].removeprefix("slice")) - 1] = row[value]
    return grids[True] or grids[False]


def _planned_mbps(loads: Sequence[Load]) -> Array:
    """Planned load of a slice (42,), as a mean over `MEAN_OVER_S` before each point; nothing before the start."""
    seconds = np.arange(LAST_S)
    plan = np.zeros(MEAN_OVER_S + LAST_S)
    for load in loads:
        flows = np.full(LAST_S, load.flows)
        if load.ramp is not None:
            flows = np.minimum(flows + (seconds // load.ramp.every_s).astype(int), load.ramp.max_flows)
        plan[MEAN_OVER_S:] += load.rate_mbps * flows
    total = np.concatenate([[0.0], np.cumsum(plan)])
    ends = MEAN_OVER_S + STEP_S * np.arange(POINTS)
    return (total[ends] - total[ends - MEAN_OVER_S]) / MEAN_OVER_S
