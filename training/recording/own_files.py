"""Tables of users' files as episodes: the observations of a policy, the logged knobs, a reward.

A step is a period of the table. What was not measured of a slice in a period is marked, as in
`slicepilot.training.recording.andrade`; where a period is missing of all slices an episode ends. Delays that are not
those from N3 to N6 stand in for them, and the episodes say so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import ConfigDict, Field

from slicepilot.configs import ConfigError, did_you_mean, validate
from slicepilot.data.arrow import codes_of, values_of
from slicepilot.data.episodes.episodes import Episode, EpisodeSet
from slicepilot.data.own.needs import RATES
from slicepilot.data.own.reading import scaled
from slicepilot.data.own.units import factor
from slicepilot.data.tables.tidy import Stream, unit_of
from slicepilot.env.backend import Context
from slicepilot.env.knobs import KNOB_FIELDS
from slicepilot.env.reward import RewardWeights
from slicepilot.env.slices import KnobBounds, Sla, SliceSet, SliceSpec, SNssai
from slicepilot.env.telemetry import NODE_FIELDS, SLICE_FIELDS

from .recording import facts_of
from .relabel import Trace, episodes_of

Array = npt.NDArray[Any]
LONGEST_PERIOD_S = 30.0
BEHAVIOURS = ("behaviour", "agent", "policy")
"""Kept columns that name the acting policy."""
DELAYS = {
    "delay_p99_us": (("delay_p99_us", 1.0), ("delay_max_us", 1.0), ("delay_us", 1.0), ("delay_mean_us", 1.0),
                     ("delay_p50_us", 1.0), ("latency_p99_ms", 1e3), ("latency_ms", 1e3)),
    "delay_p50_us": (("delay_p50_us", 1.0), ("delay_mean_us", 1.0), ("delay_us", 1.0), ("latency_p50_ms", 1e3),
                     ("latency_ms", 1e3), ("delay_p99_us", 1.0)),
}  # fmt: skip
"""Substitute columns for a delay, best first, and their factors to microseconds."""
SILENT_MBPS = 1e-6
_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"
Positive = Annotated[float, Field(gt=0, le=1e9)]


@dataclass(frozen=True)
class Promise:
    """Promise of a slice; see `slicepilot.env.slices.Sla`."""

    __pydantic_config__ = _STRICT
    name: Annotated[str, Field(pattern=_NAME)]
    committed_mbps: Positive
    delay_bound_ms: Positive
    weight: Positive = 1.0


@dataclass(frozen=True)
class EpisodesSpec:
    """The section ``episodes`` of a map.

    Attributes:
        slices: their promises, which rewards need.
        period_s: of control; None: that of the table.
        knobs: ``logged``: as the table's columns say; ``none``: none was set, and nothing logged.
        stand_ins: the substitute for each column that the table lacks; it is converted to that column's unit.
        uplink_mbps, logical_cpus: of the node; None: not known.
        behaviour: name of the acting policy; None: taken from a kept column, else ``as-logged``.
        episode_s: length of an episode at most.
    """

    __pydantic_config__ = _STRICT
    slices: Annotated[tuple[Promise, ...], Field(min_length=1, max_length=256)]
    period_s: Annotated[float, Field(ge=1e-3, le=LONGEST_PERIOD_S)] | None = None
    knobs: Literal["logged", "none"] = "logged"
    stand_ins: dict[str, str] = field(default_factory=dict)
    uplink_mbps: Positive | None = None
    logical_cpus: Positive | None = None
    behaviour: Annotated[str, Field(pattern=_NAME)] | None = None
    episode_s: Positive = 3600.0


def read_spec(section: Mapping[str, Any], source: str, table_period_s: float | None) -> EpisodesSpec:
    """Check the section of a map; raises ConfigError with the field, or for no period."""
    spec = validate(EpisodesSpec, dict(section), f"{source}: episodes")
    period = spec.period_s or table_period_s
    if period is None or period > LONGEST_PERIOD_S:
        raise ConfigError(
            f"{source}: episodes.period_s = {period}: expected the control period, at most {LONGEST_PERIOD_S:g} s"
        )
    return replace(spec, period_s=period)


def to_episodes(table: Stream, spec: EpisodesSpec, weights: RewardWeights) -> EpisodeSet:
    """Episodes of a table with a row for each slice and period (`slicepilot.data.own.join.joined`) of the spec.

    Raises:
        ConfigError: what the table lacks for it, all of it; slices without promises; no step that can be scored.
    """
    columns = _Columns(table, spec)
    columns.require()
    slices = _slice_set(spec, columns)
    context = _context(spec, slices, columns)
    result: list[Episode] = []
    for run, trace in columns.traces(slices, context):
        acted = spec.behaviour or next((run[name] for name in BEHAVIOURS if run.get(name)), "as-logged")
        about = {"backend": "own files", "scenario": None, "run": dict(run), "request_mcpu": [0.0] * len(slices)}
        stretches = episodes_of(trace, slices, context, weights, acted, context.num_steps)
        result += [replace(episode, info=about) for _, _, episode in stretches if episode is not None]
    if not result:
        raise ConfigError(
            "episodes: no two periods in a row with offered and carried rate and delay of a slice; expected a longer "
            "period, or more measurements"
        )
    facts = facts_of(slices, context, weights) | {"stand_ins": columns.stand_ins()}
    return EpisodeSet(tuple(result), facts)


class _Columns:
    """A table in memory: numbers (N,) by name, words, periods."""

    def __init__(self, table: Stream, spec: EpisodesSpec) -> None:
        assert spec.period_s is not None
        whole = pa.Table.from_batches(list(table.batches), table.schema).combine_chunks()
        self.spec, self.rows = spec, whole.num_rows
        self.words: dict[str, tuple[Array, list[str]]] = {}
        self.numbers: dict[str, Array] = {}
        for name in table.schema.names:
            column = whole.column(name)
            if name in table.groups:
                array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
                missing = np.asarray(array.indices.is_null().to_pylist(), np.bool_)
                codes, names = codes_of(array)
                self.words[name] = np.where(missing, -1, codes), names
            elif pa.types.is_floating(column.type):
                self.numbers[name] = np.array(values_of(column.fill_null(math.nan)), np.float64)
        for name, other in spec.stand_ins.items():
            if other not in self.numbers:
                raise ConfigError(f"episodes.stand_ins.{name} = {other!r}: {did_you_mean(other, self.numbers)}")
            try:
                own = scaled(self.numbers[other], factor(unit_of(other), name))
            except ConfigError as error:
                raise ConfigError(f"episodes.stand_ins.{name} = {other!r}: {error}") from None
            self.numbers.setdefault(name, own)
        times = self.numbers.get("time_s", np.zeros(1))  # `require` refuses a table without
        self.step = np.rint((times - times.min()) / spec.period_s).astype(np.int64)
        self.delays = {name: self._first(choices) for name, choices in DELAYS.items()}
        self.knobs = [name for name in KNOB_FIELDS if name in self.numbers]

    def _first(self, choices: tuple[tuple[str, float], ...]) -> tuple[str, float] | None:
        return next(((name, factor) for name, factor in choices if name in self.numbers), None)

    def require(self) -> None:
        """Raise ConfigError with all that the table lacks."""
        lacks = [name for name in RATES if name not in self.numbers]
        lacks += [] if self.delays["delay_p99_us"] else ["delay_p99_us (or delay_us, latency_ms)"]
        if not self.knobs and self.spec.knobs == "logged":
            lacks.append(f"a knob ({', '.join(KNOB_FIELDS)}; knobs: none says that none was set)")
        lacks += [] if "time_s" in self.numbers else ["times"]
        if lacks:
            raise ConfigError(
                f"episodes: the table lacks {'; '.join(lacks)}; expected columns of these names, or stand_ins"
            )
        known = {promise.name for promise in self.spec.slices}
        names = self.words["slice"][1]
        if other := next((name for name in names if name not in known), None):
            raise ConfigError(f"episodes.slices: no promise of {other}; expected {', '.join(names)}")

    def stand_ins(self) -> dict[str, str]:
        """Substitutes for columns that the table lacks."""
        result = dict(self.spec.stand_ins)
        result |= {name: own[0] for name, own in self.delays.items() if own is not None and own[0] != name}
        unknown = [
            name for name in SLICE_FIELDS if name not in self.numbers and name not in {*self.delays, "loss_ratio"}
        ]
        return result | dict.fromkeys(unknown, "not measured")

    def traces(self, slices: SliceSet, context: Context) -> Iterator[tuple[dict[str, str], Trace]]:
        """Stretches of periods without a gap, with the kept words of their run."""
        names = self._run_words()
        codes = np.stack([self.words[name][0] for name in names], axis=1) if names else np.zeros((self.rows, 1), int)
        runs, index = np.unique(codes, axis=0, return_inverse=True)
        slice_of_word = np.asarray([slices.names.index(name) for name in self.words["slice"][1]])
        of_slice = slice_of_word[self.words["slice"][0]]
        for run in range(len(runs)):
            rows = np.flatnonzero(index.reshape(-1) == run)
            coded = zip(names, runs[run].tolist(), strict=False)
            words = {name: self.words[name][1][code] if code >= 0 else "" for name, code in coded}
            steps = np.unique(self.step[rows])
            for stretch in np.split(steps, np.flatnonzero(np.diff(steps) > 1) + 1):
                if len(stretch) > 1:
                    inside = rows[(self.step[rows] >= stretch[0]) & (self.step[rows] <= stretch[-1])]
                    yield words, self._trace(inside, of_slice, int(stretch[0]), len(stretch), context)

    def _run_words(self) -> list[str]:
        """Words by which runs differ: not those that only say more of a slice."""
        slices = self.words["slice"][0]
        names = [name for name in self.words if name != "slice"]
        return [
            name for name in names
            if any(len(np.unique(self.words[name][0][slices == own])) > 1 for own in np.unique(slices))
            or len(np.unique(self.words[name][0])) == 1
        ]  # fmt: skip

    def _trace(self, rows: Array, of_slice: Array, first: int, count: int, context: Context) -> Trace:
        slices = len(context.promises.weight)

        def grid(column: Array) -> Array:
            own = np.full((count, slices), np.nan)
            own[self.step[rows] - first, of_slice[rows]] = column[rows]
            return own

        columns = {}
        for name in SLICE_FIELDS:
            source, scale = self.delays.get(name) or (name, 1.0)
            if source in self.numbers:
                columns[name] = scale * grid(self.numbers[source])
        offered, carried = (columns[name] for name in RATES)
        silent = (offered <= SILENT_MBPS) & ~(carried > SILENT_MBPS)
        for name in DELAYS:
            own = columns.get(name, np.full((count, slices), np.nan))
            columns[name] = np.where(silent & np.isnan(own), 0.0, own)
        node = {}
        for name in NODE_FIELDS:
            if name in self.numbers:
                own = grid(self.numbers[name])
                known = np.isfinite(own)
                counts = known.sum(axis=1)
                node[name] = np.where(counts, np.where(known, own, 0.0).sum(axis=1) / np.maximum(counts, 1), np.nan)
        if "uplink_use_ratio" not in node and np.isfinite(context.uplink_mbps[0]):
            node["uplink_use_ratio"] = np.minimum(np.nansum(carried, axis=1) / float(context.uplink_mbps[0]), 1.0)
        there = np.zeros(slices, np.bool_)
        there[of_slice[rows]] = True
        logged = self.knobs if self.spec.knobs == "logged" else []
        knobs: dict[str, Array] = {name: _held(grid(self.numbers[name])) for name in logged}
        return Trace.of_columns(columns, node, knobs, [*RATES, "delay_p99_us"], there)


def _held(own: Array) -> Array:
    """Settings (T, S); settings that are not logged in a period are those of the period before."""
    last = np.maximum.accumulate(np.where(np.isnan(own), -1, np.arange(len(own))[:, None]), axis=0)
    return np.where(last >= 0, own[np.maximum(last, 0), np.arange(own.shape[1])], np.nan)


def _slice_set(spec: EpisodesSpec, columns: _Columns) -> SliceSet:
    """The slices with their promises, and bounds that hold all logged settings."""
    bounds = KnobBounds()
    wide: dict[str, Any] = {}
    for name in ("cpu_limit_mcpu", "egress_mbps"):
        own = columns.numbers.get(name, np.empty(0))
        own, (low, high) = own[np.isfinite(own) & (own > 0)], getattr(bounds, name)
        wide[name] = (float(own.min(initial=low)), float(own.max(initial=high)))
    wide_bounds = replace(bounds, **wide)
    specs = tuple(
        SliceSpec(
            name=own.name,
            s_nssai=SNssai(1, f"{number:06X}"),
            sla=Sla(own.committed_mbps, own.delay_bound_ms),
            weight=own.weight,
            bounds=wide_bounds,
        )
        for number, own in enumerate(spec.slices, 1)
    )
    names = [own.name for own in specs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"episodes.slices: {twice} twice; expected each slice once")
    return SliceSet(specs)


def _context(spec: EpisodesSpec, slices: SliceSet, columns: _Columns) -> Context:
    assert spec.period_s is not None
    used = columns.numbers.get("cpu_use_mcpu", np.zeros(1))
    used = used[np.isfinite(used)]
    cpus = spec.logical_cpus or max(1.0, math.ceil(len(slices) * float(used.max(initial=0.0)) / 1000.0))
    return Context.alike(slices, spec.period_s, cpus, spec.uplink_mbps, max(1, int(spec.episode_s / spec.period_s)))
