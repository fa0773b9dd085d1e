"""Metric families from rows of values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from slicepilot.controller.contracts.modes import Level, Mode
from slicepilot.controller.publisher.state.tally import Counts
from slicepilot.controller.telemetry.histogram import edges_ns

# Edges that are edges of the fine buckets too, so that folding those moves no packet: 2^k and 1.5 * 2^k ns.
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
    """A family of one value without labels."""
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
