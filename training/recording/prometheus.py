"""A range of time in a Prometheus server as episodes: measurements, knobs and rewards.

Each step is a control period, and each query is for the whole range, so that the values at a step are those that
`slicepilot.controller.telemetry.prometheus.source` reads at that time. Missing, stale or implausible values are NaN:
their slice is ``unmeasured`` in that step, as in the runs of `slicepilot.training.recording.andrade`, and no step is
left out. Rows without a query are NaN throughout.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from slicepilot.configs import ConfigError
from slicepilot.controller.telemetry.prometheus.client import Client
from slicepilot.controller.telemetry.prometheus.config import PrometheusSpec, Row, rows_of
from slicepilot.controller.telemetry.prometheus.source import secrets_of
from slicepilot.data.episodes.episodes import Episode, EpisodeSet
from slicepilot.env.backend import Context
from slicepilot.env.reward import RewardWeights
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import SLICE_FIELDS

from .recording import facts_of
from .relabel import Trace, episodes_of

MOST_POINTS = 40_000
"""Points of an answer; the server's own limit is 11,000 points per series, which bounds the steps."""
MOST_STEPS = 5_000
MOST_ALL_STEPS = 1_000_000
BEHAVIOUR = "as-found"
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Range:
    """The requested range.

    Attributes:
        start_s, end_s: seconds since 1970, whole.
        period_s: of control, whole seconds.
        episode_steps: decisions of an episode.
    """

    start_s: int
    end_s: int
    period_s: int
    episode_steps: int

    def __post_init__(self) -> None:
        """Raises ConfigError for a range of no step, or of too many."""
        if not 2 <= self.points <= MOST_ALL_STEPS:
            raise ConfigError(
                f"start, end: {self.points - 1} steps of {self.period_s} s; expected 1 to {MOST_ALL_STEPS - 1:,}"
            )
        if self.end_s > time.time() + 1:
            raise ConfigError(f"end = {_said(self.end_s)}: expected a time that has passed")

    @property
    def points(self) -> int:
        """Number of measurements."""
        return max((self.end_s - self.start_s) // self.period_s + 1, 0)

    @property
    def times_s(self) -> Array:
        """Of the measurements (N,)."""
        return self.start_s + self.period_s * np.arange(self.points, dtype=np.float64)


@dataclass(frozen=True)
class Imported:
    """Episodes of a range.

    Attributes:
        episodes: all of it, or what of it a step could be scored of.
        left_out: steps of episodes of which none could be scored.
        why: the first reason, of each slice of which something was not measured at the end of the range.
        partial: answers that the server called partial or warned of; nothing is measured in their part of the range.
        remarks: what it remarked of other answers.
    """

    episodes: EpisodeSet
    left_out: int
    why: tuple[str, ...]
    partial: int
    remarks: tuple[str, ...]


def to_episodes(
    spec: PrometheusSpec,
    slices: SliceSet,
    node: Mapping[str, float | None],
    requested: Range,
    weights: RewardWeights,
    on_step: Callable[[float], object] = lambda share: None,
) -> Imported:
    """Ask a server for a range, and make episodes of the answers.

    Args:
        node: ``uplink_mbps`` and ``logical_cpus``, None where not known.
        on_step: called with the share of queries that is done.

    Raises:
        ConfigError: settings that do not fit, or nothing in the range that a step can be scored by.
        PrometheusError: the server does not answer.
    """
    queries = spec.loaded_queries()
    rows = rows_of(queries, spec, slices.names, float(requested.period_s))
    client = Client(spec, secrets_of(spec))
    times_s = requested.times_s
    step = max(1, min(MOST_STEPS, MOST_POINTS // (2 * len(slices))))
    tables: dict[tuple[str, str], list[Array]] = {(row.kind, row.name): [] for row in rows}
    newest: list[Array] = []
    partial, remarks, why = 0, dict[str, None](), dict[str, None]()
    for first in range(0, len(times_s), step):
        part, doubted = times_s[first : first + step], False
        oldest = np.full((len(part), len(slices)), np.inf)
        for row in rows:
            reading = client.over(row, queries.most_age_s, part)
            tables[row.kind, row.name].append(reading.values)
            remarks |= dict.fromkeys(f"{row.name}: {text}" for text in reading.infos)
            if reading.partial is not None:
                partial += 1
                # Without a knob's row the knob would be taken for none: nothing of slices counts as measured then.
                doubted = doubted or row.kind == "knob"
                why[reading.partial] = None
            if row.kind == "slice":
                oldest = np.minimum(oldest, np.where(np.isfinite(reading.newest_s), reading.newest_s, -np.inf))
                of_slices = zip(slices.names, reading.why, strict=True)
                why |= dict.fromkeys(f"{name}: {text}" for name, text in of_slices if text is not None)
        if doubted:
            for (kind, _), parts in tables.items():
                if kind == "slice":
                    parts[-1] = np.full_like(parts[-1], np.nan)
        newest.append(part[:, None] - oldest)
        on_step(min(1.0, (first + step) / len(times_s)))
    whole = {key: np.concatenate(parts) for key, parts in tables.items()}
    cpus = node.get("logical_cpus") or os.cpu_count() or 1
    context = Context.alike(slices, requested.period_s, cpus, node.get("uplink_mbps") or None, requested.episode_steps)
    trace = _trace(whole, rows, context)
    episodes, left_out = _episodes(trace, np.concatenate(newest), slices, context, requested, weights, spec, tuple(why))
    return Imported(episodes, left_out, tuple(why), partial, tuple(remarks))


def _trace(whole: Mapping[tuple[str, str], Array], rows: list[Row], context: Context) -> Trace:
    """One lane of all measurements."""
    slices, node, knobs = (
        {name: values for (own, name), values in whole.items() if own == kind} for kind in ("slice", "node", "knob")
    )
    of_node = {name: values[:, 0] for name, values in node.items()}
    if "uplink_use_ratio" not in of_node and np.isfinite(context.uplink_mbps[0]):
        of_node["uplink_use_ratio"] = slices["carried_mbps"].sum(axis=1) / float(context.uplink_mbps[0])
    return Trace.of_columns(slices, of_node, knobs, [row.name for row in rows if row.kind == "slice"])


def _episodes(
    trace: Trace,
    age_s: Array,
    slices: SliceSet,
    context: Context,
    requested: Range,
    weights: RewardWeights,
    spec: PrometheusSpec,
    why: tuple[str, ...],
) -> tuple[EpisodeSet, int]:
    """Episodes of what was measured, and how many steps they leave out; raises ConfigError."""
    result: list[Episode] = []
    left_out = 0
    for first, end, episode in episodes_of(trace, slices, context, weights, BEHAVIOUR, requested.episode_steps):
        if episode is None:
            left_out += end - first
            continue
        # Of what each decision would have been taken on; infinite where nothing was known of the slice.
        age = {"age_s": age_s[first:end].astype(np.float32)}
        info = {
            "backend": "prometheus",
            "scenario": None,
            "start": _said(requested.start_s + first * requested.period_s),
            "server": urlsplit(spec.url).netloc,
            "queries": spec.queries,
            "request_mcpu": slices.column("cpu_request_mcpu")[:, 0].tolist(),
        }
        result.append(replace(episode, decisions={**episode.decisions, **age}, info=info))
    assert trace.readings is not None
    if not result:
        reason = why[0] if why else "nothing was measured"
        raise ConfigError(f"start, end: no step of which enough was measured for a reward: {reason}")
    lacking = [name for name in SLICE_FIELDS if not np.isfinite(trace.readings[:, SLICE_FIELDS.index(name)]).any()]
    stand_ins = dict.fromkeys(lacking, "not measured") | dict.fromkeys(
        ("delay_p50_us", "delay_p99_us"), "round trips of the queries"
    )
    facts = facts_of(slices, context, weights) | {"stand_ins": stand_ins}
    return EpisodeSet(tuple(result), facts), left_out


def _said(seconds: int) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat()
