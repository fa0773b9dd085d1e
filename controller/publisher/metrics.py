"""The metrics for Prometheus: name, labels, unit and source of the value of each.

Names follow Prometheus' conventions (https://prometheus.io/docs/practices/naming/): base units, which are seconds and
bytes, so rates are bytes per second. Label ``slice`` is the slice's name; of a guard reason that is the node's it is
empty. Label ``stage`` of a knob is ``wanted`` by the policy, ``allowed`` by the guard or ``applied``; no limit is +Inf.
Gauges of slices and node are means over the last one to two seconds; for longer times there are counters. Counters that
are summed from ticks begin at zero with each publisher process.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from slicepilot.controller.contracts.charge import InCharge
from slicepilot.controller.contracts.modes import Level, Mode
from slicepilot.controller.contracts.reasons import MEANINGS
from slicepilot.controller.record.cpu_time import CPU_TIME_FIELDS
from slicepilot.controller.telemetry.histogram import edges_ns
from slicepilot.env.knobs import KNOB_FIELDS
from slicepilot.env.telemetry import NODE_FIELDS, SLICE_FIELDS

from .counts import BYTES_PER_MBIT, OUTCOMES, PROMISES, REASONS, STAGES, Counts, Totals
from .status import NOW_S, Status

SOURCES = {
    "hooks_taken": "Times that another program took packets before they were measured.",
    "prometheus_partial_answers": "Answers of the Prometheus server that it called partial or warned of: not used.",
    "prometheus_remarked_answers": "Answers with infos of the Prometheus server, which are used.",
}


class Metrics(Collector):
    """All metrics of one controller.

    Args:
        status, totals: kept up to date by the caller.
        publisher: figures of the publisher's own, by the metric's name without prefix: value and help text; counters
            end with ``_total``.
    """

    def __init__(
        self, status: Status, totals: Totals, publisher: Callable[[], dict[str, tuple[float, str]]] = dict
    ) -> None:
        self._status, self._totals, self._publisher = status, totals, publisher
        self._process = ProcessCollector(pid=lambda: status.description.get("pid", 0), registry=None)

    def collect(self) -> Iterable[Metric]:
        yield from self._run()
        yield from self._loop()
        yield from self._guard()
        yield from self._slices()
        yield from self._knobs()
        yield from self._node()
        for name, (value, text) in self._publisher().items():
            yield family(name, text, (), [((), value)])
        yield from self._process.collect()

    def _run(self) -> Iterator[Metric]:
        status, run, notes = self._status, self._status.description, self._status.notes
        bundle = run.get("bundle") or {}
        facts = {key: str(run.get(key, "")) for key in ("run_id", "name", "backend", "agent", "scheduling")}
        yield InfoMetricFamily("slicepilot_build", "Version of the controller.", {"version": str(run.get("version"))})
        yield InfoMetricFamily(
            "slicepilot_run", "What is fixed for the run.", facts | {"bundle_digest": str(bundle.get("digest", ""))}
        )
        yield one_hot("mode", "What becomes of decisions: 1 at the mode in force.", status.mode, Mode)
        yield one_hot("guard_level", "How far the guard trusts: 1 at the level in force.", status.level, Level)
        yield single("paused", "1 while an operator has paused the guard.", status.paused)
        yield single("ordered_safe", "1 while an operator wants the safe setting.", notes.get("ordered_safe", False))
        yield single("heartbeat_age_seconds", "Since the controller's last sign of life.", status.beat_age_s)
        if run.get("started_ns") is not None:
            yield single("start_time_seconds", "Start of the run since the epoch.", run["started_ns"] / 1e9)
        if len(status.last):
            text = "Newest tick since the epoch."
            yield single("last_tick_timestamp_seconds", text, int(status.last["time_ns"][0]) / 1e9)
        if supervisor := notes.get("supervisor"):  # in shadow there is nothing to restore, and none
            yield single("supervisor_up", "1 while the supervisor lives.", supervisor["alive"])
            yield single("supervisor_restarts_total", "Supervisors started anew.", supervisor["restarts"])
        yield single("publisher_restarts_total", "Publishers started anew.", notes.get("publisher_restarts", 0))
        if reload := notes.get("reload"):
            yield single("last_reload_timestamp_seconds", "Last reload since the epoch.", reload["time_ns"] / 1e9)
            yield single("last_reload_success", "Whether the last reload went well.", reload["ok"])

    def _loop(self) -> Iterator[Metric]:
        status, totals, run = self._status, self._totals, self._status.description
        if run:
            yield single("loop_period_seconds", "Control period.", run.get("period_s", math.nan))
            yield single(
                "loop_budget_seconds", "From observing to knobs that are ready.", run.get("budget_s", math.nan)
            )
        yield histogram(
            "loop_stage_seconds",
            "Time of each stage of a tick; wakeup is how late it began, total is all the others.",
            "stage",
            [(stage, totals.stages[i], totals.stage_s[i].item()) for i, stage in enumerate(STAGES)],
            STAGE_EDGES_NS,
        )
        yield family(
            "decisions_total",
            "Ticks by mode and outcome: ok, late (not applied), unusable (none made), failed (not applied in full).",
            ("mode", "outcome"),
            [((mode.label, outcome), totals.decisions[mode, i]) for mode in Mode for i, outcome in enumerate(OUTCOMES)],
        )
        counted = status.notes.get("totals") or {}
        for name, key, text in (
            ("loop_ticks_total", "ticks", "Ticks since the controller's start."),
            ("loop_late_ticks_total", "late_ticks", "Ticks over budget since the start; their decisions were dropped."),
            ("loop_missed_ticks_total", "missed_ticks", "Ticks that were skipped because the previous was not done."),
            ("loop_unusable_decisions_total", "unusable", "Decisions that the policy failed to make."),
            ("loop_failed_applies_total", "failed_applies", "Ticks whose knobs could not all be set."),
            ("foreign_changes_total", "foreign_changes", "Times that another program had set a knob."),
        ):
            yield single(name, text, counted.get(key, 0))
        sources = status.notes.get("counts") or {}
        for name, text in SOURCES.items():
            if name in sources:
                yield single(f"{name}_total", text, sources[name])
        yield single("ticks_lost_total", "Ticks overwritten before the publisher had read them.", status.lost)

    def _guard(self) -> Iterator[Metric]:
        names = [*self._names(), ""]
        yield family(
            "guard_interventions_total",
            "Ticks in which the guard had a reason to change or hold something.",
            ("slice", "reason", "severity"),
            [
                ((name, reason.label, MEANINGS[reason].severity.label), self._totals.reasons[s, reason])
                for s, name in enumerate(names)
                for reason in REASONS
            ],
        )
        yield family(
            "in_charge_ticks_total",
            "Ticks by what was in charge: policy, guard, safe setting or nobody; in shadow as if it had acted.",
            ("who",),
            [((each.label,), self._totals.charges[each]) for each in InCharge],
        )
        foreign = {(each.get("slice"), each.get("knob")) for each in self._status.notes.get("foreign", ())}
        knobs = [(name, knob) for name in names[:-1] for knob in KNOB_FIELDS]
        text = "1 where another program has set the knob."
        yield family("slice_foreign_knob", text, ("slice", "knob"), [(pair, pair in foreign) for pair in knobs])
        text = "Things that cannot be measured or moved, and UPFs with new limits by other programs."
        yield single("unmeasured", text, len(self._status.notes.get("unmeasured", ())))

    def _slices(self) -> Iterator[Metric]:
        status, totals, names = self._status, self._totals, self._names()
        counts, middles_s = status.delays.total, (edges_ns()[:-1] + edges_ns()[1:]) / 2e9
        yield histogram(
            "slice_delay_seconds",
            "Packets by delay from N3 to N6, since the probe's start; the sum is that of the fine buckets' middles.",
            "slice",
            [(name, counts[s], (counts[s] * middles_s).sum().item()) for s, name in enumerate(names)],
            DELAY_EDGES_NS,
        )
        means = status.history.means(status.history.rows(NOW_S))
        blind = [not status.has_cpu_time(name) for name in names]
        means[np.ix_([SLICE_FIELDS.index(field) for field in CPU_TIME_FIELDS], blind)] = math.nan
        for field, name, factor, text in _SLICE_GAUGES:
            yield self._by_slice(name, text, factor * means[SLICE_FIELDS.index(field)])
        yield self._by_slice("slice_offered_bytes_total", "Offered at N3, integrated.", totals.offered_bytes)
        yield self._by_slice("slice_carried_bytes_total", "Carried to N6, integrated.", totals.carried_bytes)
        yield self._by_slice("slice_cpu_seconds_total", "CPU time of its group, integrated.", totals.cpu_s)
        yield family(
            "slice_promise_broken_seconds_total",
            "Time with the delay bound broken (by a tick's p99) or the rate below what is owed (over 2 s).",
            ("slice", "promise"),
            [((name, p), totals.broken_s[i, s]) for s, name in enumerate(names) for i, p in enumerate(PROMISES)],
        )
        if len(status.last):
            yield self._by_slice("slice_valid", "1 where the slice is measured.", status.last["valid"][0])
        yield self._by_slice("slice_acting", "1 where decisions are applied.", [status.acts_on(n) for n in names])
        levels = [status.level_of(s) for s in range(status.num_slices)]
        text = "1 while the slice has its safe setting for a reason of its own."
        yield self._by_slice("slice_safe", text, [level >= Level.SAFE for level in levels])
        text = "1 while that stays until an operator resumes."
        yield self._by_slice("slice_latched", text, [level is Level.LATCHED for level in levels])
        promised = [spec["sla"] for spec in status.slices if "sla" in spec]
        if promised:
            rates = [BYTES_PER_MBIT * sla["committed_mbps"] for sla in promised]
            bounds = [sla["delay_bound_ms"] / 1e3 for sla in promised]
            yield self._by_slice("slice_committed_bytes_per_second", "Rate that is promised.", rates)
            yield self._by_slice("slice_delay_bound_seconds", "Bound of the p99 delay that is promised.", bounds)

    def _knobs(self) -> Iterator[Metric]:
        status = self._status
        if not len(status.last):
            return
        for row, (name, factor, text) in enumerate(_KNOBS):
            rows = [
                ((slice_name, stage), factor * float(status.last[stage][0, row, s]))
                for s, slice_name in enumerate(self._names())
                for stage in ("wanted", "allowed", "applied")
            ]
            yield family(name, text, ("slice", "stage"), rows)

    def _node(self) -> Iterator[Metric]:
        status, run = self._status, self._status.description
        node = dict(zip(NODE_FIELDS, status.history.node(status.history.rows(NOW_S)), strict=True))
        yield single("node_cpu_idle_ratio", "Idle share of the node's logical CPUs.", node["cpu_idle_ratio"])
        yield single("node_uplink_use_ratio", "Carried rate of all slices over the uplink's.", node["uplink_use_ratio"])
        if len(status.last):
            yield single("telemetry_age_seconds", "Age of the newest measurement.", status.last["age_s"][0])
        if run:
            yield single("node_cpu_cores", "Logical CPUs.", run.get("logical_cpus", math.nan))
            uplink_mbps = run.get("uplink_mbps")
            rate = math.inf if uplink_mbps is None else BYTES_PER_MBIT * uplink_mbps
            yield single("node_uplink_bytes_per_second", "Rate of the shared uplink; +Inf if there is none.", rate)
        yield single("publisher_cpu_seconds_total", "CPU time of the publisher itself.", time.process_time())

    def _names(self) -> list[str]:
        return [str(spec["name"]) for spec in self._status.slices]

    def _by_slice(self, name: str, text: str, values: Any) -> Metric:
        return family(name, text, ("slice",), [((n,), v) for n, v in zip(self._names(), values, strict=False)])


_SLICE_GAUGES = (
    ("offered_mbps", "slice_offered_bytes_per_second", BYTES_PER_MBIT, "Rate that reaches N3."),
    ("carried_mbps", "slice_carried_bytes_per_second", BYTES_PER_MBIT, "Rate that leaves at N6."),
    ("loss_ratio", "slice_loss_ratio", 1.0, "Share of the offered traffic that does not leave."),
    ("cpu_use_mcpu", "slice_cpu_use_cores", 1e-3, "CPUs its group uses."),
    ("throttled_ratio", "slice_throttled_ratio", 1.0, "Share of CFS periods in which its quota ran out."),
    ("runqueue_delay_us", "slice_runqueue_delay_seconds", 1e-6, "Mean wait from wake-up to running."),
)
_KNOBS = (
    ("slice_cpu_limit_cores", 1e-3, "CPU limit."),
    ("slice_nice", 1.0, "Nice value, -20 to 19."),
    ("slice_egress_limit_bytes_per_second", BYTES_PER_MBIT, "Rate of the egress shaper; 0: on without a rate."),
)


# All are also edges of the fine buckets: 2^k and 1.5 * 2^k ns.
DELAY_EDGES_NS = tuple(sorted([*(1 << k for k in range(15, 31)), *(3 << k for k in range(14, 25))]))
STAGE_EDGES_NS = tuple(sorted([*(1 << k for k in range(13, 25)), *(3 << k for k in range(12, 21))]))
UNITS = ("bytes_per_second", "seconds", "bytes", "cores", "ratio")
Row = tuple[Sequence[str], float]


def family(name: str, text: str, labels: Sequence[str], rows: Iterable[Row]) -> Metric:
    """A gauge, or a counter where the name ends with ``_total``; rows are label values and value."""
    stem = name.removesuffix("_total")
    unit = next((unit for unit in UNITS if stem.endswith(f"_{unit}")), "")
    kind = CounterMetricFamily if stem != name else GaugeMetricFamily
    family = kind(f"slicepilot_{stem}", text, labels=labels, unit=unit)
    for values, value in rows:
        family.add_metric(list(values), float(value))
    return family


def single(name: str, text: str, value: float) -> Metric:
    """A family with a single value and no labels."""
    return family(name, text, (), [((), value)])


def one_hot(name: str, text: str, now: Mode | Level, kinds: type[Mode] | type[Level]) -> Metric:
    """1 at the state in force, 0 at all others; the label is the name's last word."""
    label = name.rpartition("_")[2]
    return family(name, text, (label,), [((kind.label,), kind is now) for kind in kinds])


def histogram(
    name: str, text: str, label: str, rows: Iterable[tuple[str, Counts, float]], at_ns: tuple[int, ...]
) -> Metric:
    """Fine buckets (BUCKETS,) folded into those that end at ``at_ns``; rows are label value, counts, sum in seconds."""
    family = HistogramMetricFamily(f"slicepilot_{name}", text, labels=[label], unit="seconds")
    ends = np.searchsorted(edges_ns(), at_ns)
    les = [str(edge / 1e9) for edge in at_ns]
    for value, counts, sum_s in rows:
        below = np.concatenate([[0], np.cumsum(counts)])
        buckets = [(le, float(below[end])) for le, end in zip(les, ends.tolist(), strict=True)]
        family.add_metric([value], [*buckets, ("+Inf", float(below[-1]))], sum_s)
    return family
