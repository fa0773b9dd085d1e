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
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from slicepilot.configs import ConfigError
from slicepilot.data.episodes.episodes import EpisodeSet
from slicepilot.data.reference import published_settings
from slicepilot.data.studies.andrade.tables import END_S, LAST_S, STEP_S
from slicepilot.data.tables.tidy import Stream
from slicepilot.env.backend import Context
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
    measured = {name: _grids(table, len(scenario.slice_set())) for name, table in tables.items()}
    runs = _Runs(sorted(set(measured["latency"]) | set(measured["receive"])), scenario)
    trace = runs.trace(measured)
    seen = relabel(trace, runs.slices, runs.context, weights)
    result, points = [], 0
    for lane, (experiment, cycle) in enumerate(runs.keys):
        length = POINTS if trace.valid[-1, :, lane].any() else USUAL_POINTS
        points += length
        if np.isfinite(seen.rewards[lane, : length - 1]).any():
            info = {"experiment": experiment, "cycle": cycle, "start_s": 0} | runs.info(lane)
            result.append(episode_of(seen, lane, 0, length - 1, f"experiment-{experiment}", info=info))
    if not result:
        raise ConfigError(
            "tables: no run with a step of which enough was measured for a reward; expected whole exports"
        )
    facts = facts_of(runs.slices, runs.context, weights) | {"stand_ins": STAND_INS}
    held = sum(len(episode) + 1 for episode in result)
    return Joined(EpisodeSet(tuple(result), facts), len(runs.keys), points - held)


class _Runs:
    """All runs side by side, as lanes: lane l is the l-th key.

    Attributes:
        active: bool (S, L), the slices that have traffic by design.
        context: of the study's node.
    """

    def __init__(self, keys: Sequence[Key], scenario: Scenario) -> None:
        known = {setting.experiment: setting for setting in published_settings()}
        settings = [known[experiment] for experiment, _ in keys]
        self.keys, self.slices = keys, scenario.slice_set()
        self._knobs = [setting_knobs(setting, len(self.slices), self.slices.priority_index) for setting in settings]
        self.active = np.arange(len(self.slices))[:, None] < [setting.active_slices for setting in settings]
        self._plan = np.stack([_planned_mbps(scenario.loads[name]) for name in self.slices.names], axis=1)
        node = scenario.hardware_spec()
        self.context = Context.alike(self.slices, STEP_S, node.logical_cpus, node.uplink_mbps, POINTS - 1, len(keys))

    def trace(self, measured: Mapping[str, Mapping[Key, Array]]) -> Trace:
        """Telemetry and knobs at each point; slices that were not measured then are not valid and have zeros, and in
        the readings NaN for what is missing of them."""
        nothing = np.full((POINTS, len(self.slices)), np.nan)
        latency, carried, cpu = (
            np.stack([measured.get(name, {}).get(key, nothing) for key in self.keys], axis=-1)
            for name in ("latency", "receive", "cpu")
        )
        valid = np.isfinite(latency) & np.isfinite(carried) & self.active
        offered = np.broadcast_to(self._plan[..., None], latency.shape)
        rows: dict[str, Array] = {
            "offered_mbps": offered,
            "carried_mbps": carried,
            "delay_p50_us": 1e3 * latency,
            "delay_p99_us": 1e3 * latency,
            "loss_ratio": np.clip(1.0 - carried / np.maximum(offered, 1e-6), 0.0, 1.0),
            "cpu_use_mcpu": cpu,
        }
        unknown = np.full(latency.shape, np.nan)
        table = np.stack([rows.get(name, unknown) for name in SLICE_FIELDS], axis=1)
        readings = np.where(np.broadcast_to(self.active, valid.shape)[:, None], table, 0.0).astype(np.float32)
        table = np.where(valid[:, None], table, 0.0).astype(np.float32)
        node = np.full((POINTS, len(NODE_FIELDS), len(self.keys)), np.nan, np.float32)
        in_all = readings[:, SLICE_FIELDS.index("carried_mbps")].sum(axis=1)
        node[:, NODE_FIELDS.index("uplink_use_ratio")] = np.minimum(in_all / self.context.uplink_mbps, 1.0)
        held = [knobs.between_groups().values for knobs in self._knobs]
        knobs = np.repeat(np.concatenate(held, axis=-1)[None], POINTS, axis=0)
        return Trace(table, node, valid, knobs, self.active & ~valid, readings)

    def info(self, lane: int) -> dict[str, Any]:
        """Further facts of a run."""
        knobs = self._knobs[lane]
        return {
            "backend": "study",
            "process_nice": knobs.nice[:, 0].tolist(),
            "request_mcpu": requests_of(knobs)[:, 0].tolist(),
        }


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
