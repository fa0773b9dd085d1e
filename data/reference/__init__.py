"""Published figures on slice isolation, as CSV, with typed readers; README.md has their sources."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from importlib import resources
from typing import Any, TypeVar

Row = TypeVar("Row")
_CONVERSIONS: dict[str, Any] = {"int": int, "float": float, "str": str, "bool": "true".__eq__}


def _rows(name: str) -> Iterator[dict[str, str]]:
    text = resources.files(__name__).joinpath(f"{name}.csv").read_text(encoding="utf-8")
    yield from csv.DictReader(text.splitlines())


def _typed(kind: type[Row], name: str, /, **columns: str) -> tuple[Row, ...]:
    """The rows of a table as a dataclass: its fields from the columns of their names, or of ``columns``.

    An empty cell is the field's default.
    """

    def value(field: Any, text: str) -> Any:
        return field.default if text == "" and field.default is not MISSING else _CONVERSIONS[field.type](text)

    named: Any = kind
    return tuple(
        kind(**{own.name: value(own, row[columns.get(own.name, own.name)]) for own in fields(named)})
        for row in _rows(name)
    )


@dataclass(frozen=True)
class PublishedSetting:
    """One of the 26 experiments of Andrade and Wickboldt (2025): what was set for slice 1 and for the others.

    Limits are inf where not set; egress 0 = bandwidth manager on without a rate; nice is of process scope.
    """

    experiment: int
    active_slices: int
    s1_cpu_mcpu: float = math.inf
    s1_nice: float = 0.0
    s1_egress_mbps: float = math.inf
    others_cpu_mcpu: float = math.inf
    others_nice: float = 0.0
    others_egress_mbps: float = math.inf


@dataclass(frozen=True)
class PublishedRow:
    """Result of a group over the last five minutes of an experiment: throughput in Mbit/s or round trip in ms.

    ``iqr`` is NaN where it is not printed.
    """

    experiment: int
    metric: str
    group: str
    mean: float
    median: float
    std: float
    iqr: float = math.nan


@dataclass(frozen=True)
class SeriesRow:
    """Figures of a group of slices at a time of an experiment, means over the study's cycles.

    Attributes:
        time_s: end of the 30 s that the figures are of.
        upf_cpu_mcpu: CPU of one UPF.
        upf_mbps, server_mbps: what one UPF received and what its server did, in 10^6 bit/s; the tables of the paper
            count 2^20.
        latency_ms: 10th, 50th and 90th percentile of the round trip over slices and cycles, unanswered pings left out.
    """

    experiment: int
    time_s: float
    group: str
    upf_cpu_mcpu: float = math.nan
    upf_mbps: float = math.nan
    server_mbps: float = math.nan
    latency_ms_p10: float = math.nan
    latency_ms_p50: float = math.nan
    latency_ms_p90: float = math.nan

    @property
    def latency_ms(self) -> tuple[float, float, float]:
        return self.latency_ms_p10, self.latency_ms_p50, self.latency_ms_p90


@dataclass(frozen=True)
class ReplayedApplication:
    """One recorded application: how long, at which mean rate and with which mean packet size it sent."""

    application: str
    duration_s: float
    mean_mbps: float
    mean_packet_bytes: float


@dataclass(frozen=True)
class ApplicationMix:
    """Averages over the nine applications replayed by Moreira et al.: rate per user and packet size."""

    mean_mbps: float
    mean_packet_bytes: float


@dataclass(frozen=True)
class ForwardingDelay:
    """Delay from N3 to N6 of a slice under a load, in us (Mishra and Pandey, 2026)."""

    slice: str
    load: str
    n: int
    mean: float
    p50: float
    p99: float


@dataclass(frozen=True)
class PfcpLatency:
    """Latency of a PFCP session transaction under a load, in us (Mishra and Pandey, 2026)."""

    load: str
    kind: str
    n: int
    mean: float
    p99: float


@cache
def published_settings() -> tuple[PublishedSetting, ...]:
    """All 26 settings in order."""
    return _typed(PublishedSetting, "andrade_experiments")


@cache
def calibration_rows() -> tuple[PublishedRow, ...]:
    """The published results the simulator is fitted on."""
    return _typed(PublishedRow, "andrade_results_calibration")


@cache
def verification_rows() -> tuple[PublishedRow, ...]:
    """The other published results: to be shown beside the simulator's, never to be fitted."""
    return _typed(PublishedRow, "andrade_results_verification")


@cache
def calibration_series() -> tuple[SeriesRow, ...]:
    """The ramps of the calibration experiments; NaN where nothing was measured."""
    return _typed(
        SeriesRow,
        "andrade_series_calibration",
        upf_cpu_mcpu="upf_cpu_mcpu_mean",
        upf_mbps="upf_received_mbps_mean",
        server_mbps="server_received_mbps_mean",
    )


def published_table(name: str) -> tuple[Mapping[str, str], ...]:
    """The rows of ``data/reference/NAME.csv`` as texts by column."""
    return tuple(_rows(name))


@cache
def replayed_applications() -> tuple[ReplayedApplication, ...]:
    """The applications that Moreira et al. recorded and replayed."""
    return _typed(ReplayedApplication, "moreira_replayed_traffic")


@cache
def application_mix() -> ApplicationMix:
    """The replayed mix, each application weighted equally for rate and by packets for size."""
    rows = list(_rows("moreira_replayed_traffic"))
    packets = [float(row["pps"]) for row in rows]
    sizes = [float(row["mean_packet_bytes"]) for row in rows]
    return ApplicationMix(
        mean_mbps=sum(float(row["mean_mbps"]) for row in rows) / len(rows),
        mean_packet_bytes=sum(p * s for p, s in zip(packets, sizes, strict=True)) / sum(packets),
    )


@cache
def forwarding_delays() -> tuple[ForwardingDelay, ...]:
    """Of three slices under three loads."""
    return _typed(ForwardingDelay, "mishra_forwarding_delay", mean="mean_us", p50="p50_us", p99="p99_us")


@cache
def pfcp_latencies() -> tuple[PfcpLatency, ...]:
    """Of establishments and modifications under three loads."""
    return _typed(PfcpLatency, "mishra_pfcp_latency", kind="type", mean="mean_us", p99="p99_us")


@dataclass(frozen=True)
class MechanismRow:
    """A policy on the bottleneck of Grosvik (2023), and the study's verdict on it.

    ``classes`` is the largest number that it serves, ``levels`` how many of priority among them; None where the study
    names no limit.
    """

    policy: str
    rule: str
    performance_isolation: bool
    resource_reallocation: bool
    classes: int | None
    levels: int | None


@dataclass(frozen=True)
class BottleneckScenario:
    """A load scenario of Grosvik (2023), in % of the link: two constant loads and an on-off load."""

    scenario: int
    critical_pct: float
    best_effort_pct: float
    on_off_pct: float
    on_s: float
    off_s: float


@cache
def published_mechanisms() -> tuple[MechanismRow, ...]:
    """Grosvik's seven policies in order."""
    result = []
    for row in _rows("grosvik_mechanisms"):
        numbers = [int(text) for text in re.findall(r"\d+", row["scalability_classes"])]
        result.append(
            MechanismRow(
                row["policy"],
                row["rule"],
                row["performance_isolation"] == "true",
                row["resource_reallocation"] == "true",
                max(numbers, default=None),
                numbers[0] if "levels" in row["scalability_classes"] else None,
            )
        )
    return tuple(result)


@cache
def bottleneck_scenarios() -> tuple[BottleneckScenario, ...]:
    """Grosvik's seven load scenarios in order."""
    return _typed(
        BottleneckScenario,
        "grosvik_scenarios",
        critical_pct="critical_static_pct",
        best_effort_pct="best_effort_static_pct",
        on_off_pct="best_effort_on_off_pct",
    )
