"""Rows of Moreira et al. (2026): latencies of a sensor's packets beside neighbours, described, tested and regressed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from slicepilot.data.intervals import Array, Interval
from slicepilot.data.tables.tidy import Stream
from slicepilot.training.statistics.analysis import Analysis, analyse
from slicepilot.training.statistics.collect import Source, collect
from slicepilot.training.statistics.quantile_regression import regress
from slicepilot.training.studies.study import Figure

CLASSES = ("Baseline", "Constant-Rate", "Multimedia", "Anomaly")
BASELINE = CLASSES[0]
QFIS = (1, 9)
STATISTICS = ("median", "p90", "p95", "p99", "iqr")
TESTS = ("delta_median", "p_perm_median", "delta_p95", "p_perm_p95", "mann_whitney_p", "cliffs_delta")
RATIOS = ("median", "p95")
"""Also shown over Baseline's, since the latencies of two user planes have different sizes."""
TERMS = ("cpu", "packets", "qfi9", "constant_rate")
QUANTILES = (0.5, 0.95, 0.99)
INTERACTIONS = ("cpu", "packets")
_TERM = {"Constant-Rate": "constant_rate"}


@dataclass(frozen=True)
class Table:
    """Latencies (N,) in microseconds, and the load when each was measured.

    Attributes:
        traffic_class: of the neighbours, one of `CLASSES`.
        qfi: of the sensor's packets.
        cpu: use of the user plane in the unit of its source; NaN where it is not known.
        packets: that reached the user plane in a second; NaN where that is not known.
    """

    latency_us: Array
    traffic_class: tuple[str, ...]
    qfi: tuple[int, ...]
    cpu: Array
    packets: Array

    @classmethod
    def of_rows(cls, rows: Iterable[Mapping[str, Any]]) -> Table:
        """Of rows with ``traffic_class``, ``qfi``, and lists ``latency_us``, ``cpu``, ``packets`` of equal length."""
        rows = list(rows)
        lengths = [len(row["latency_us"]) for row in rows]
        columns = {
            name: np.asarray([value for row in rows for value in row[name]], np.float64)
            for name in ("latency_us", "cpu", "packets")
        }
        classes = [row["traffic_class"] for row, length in zip(rows, lengths, strict=True) for _ in range(length)]
        qfis = [row["qfi"] for row, length in zip(rows, lengths, strict=True) for _ in range(length)]
        return cls(columns["latency_us"], tuple(classes), tuple(qfis), columns["cpu"], columns["packets"])

    def stream(self) -> Stream:
        """As a table that the statistics of this project read."""
        columns = {
            "traffic_class": pa.array(self.traffic_class, pa.string()),
            "qfi": pa.array(self.qfi, pa.int16()),
            "latency_us": pa.array(self.latency_us),
            "cpu_user_pct": pa.array(self.cpu),
            "net_packets_n3_received_pps": pa.array(self.packets),
        }
        batch = pa.record_batch(columns)
        return Stream(batch.schema, iter([batch]), ("traffic_class", "qfi"))


def analysis_of(table: Table, by: str, seed: int) -> Analysis:
    """The suite of a table by ``traffic_class`` or ``qfi``; the baseline is `BASELINE`, or the QFI of highest priority.

    Raises:
        ConfigError: a group with fewer than two latencies.
    """
    delays = collect([Source("moreira", table.stream())], value="latency_us", by=by, seed=seed)
    return analyse(delays, BASELINE if by == "traffic_class" else str(QFIS[0]), seed=seed)


def figures_of_table(table: Table, seed: int) -> dict[str, Figure]:
    """All rows that a table of latencies gives; raises ConfigError where a group has fewer than two."""
    classes, qfis = analysis_of(table, "traffic_class", seed), analysis_of(table, "qfi", seed)
    result = dict[str, Figure]()
    for kind, analysis in (("class", classes), ("qfi", qfis)):
        rows = {d.group: d for d in analysis.suite.descriptions}
        for group, row in rows.items():
            for statistic in STATISTICS:
                result[f"{kind}/{group}/{statistic}"] = _figure(getattr(row, statistic))
    for comparison in classes.suite.comparisons:
        for name in TESTS:
            value = getattr(comparison, name.removeprefix("delta_") if name.startswith("delta_") else name)
            result[f"test/{comparison.group}/{name}"] = _figure(value)
        for name in RATIOS:
            own, base = (result[f"class/{group}/{name}"].value for group in (comparison.group, BASELINE))
            result[f"ratio/{comparison.group}/{name}"] = Figure(own / base)
    return result | _regression(table)


def _regression(table: Table) -> dict[str, Figure]:
    """The study's regression, and the same with the interactions that it leaves to future work."""
    known = np.isfinite(table.cpu) & np.isfinite(table.packets)
    qfi = np.asarray(table.qfi)[known]
    if not known.any() or len(set(qfi.tolist())) < len(QFIS):
        return {}
    numbers = {"cpu": table.cpu[known], "packets": table.packets[known]}
    qfi9 = (qfi == QFIS[1]).astype(np.float64)
    words = {"qfi9": qfi9, "traffic_class": np.asarray(table.traffic_class, object)[known]}
    crossed = {f"{name}_x_qfi9": (numbers[name] - numbers[name].mean()) * qfi9 for name in INTERACTIONS}
    references = {"traffic_class": BASELINE}
    result = dict[str, Figure]()
    for covariates, wanted in ((numbers | words, set(TERMS)), (numbers | words | crossed, set(crossed))):
        for fit in regress(table.latency_us[known], covariates, references, QUANTILES).fits:
            for coefficient in fit.coefficients:
                level = coefficient.term.level
                name = _TERM.get(level, coefficient.term.name) if level else coefficient.term.name
                if name not in wanted:
                    continue
                slope = coefficient.slope if name == "qfi9" else coefficient.beta
                result[f"regression/{fit.quantile:.2f}/{name}_beta"] = Figure(slope)
                if coefficient.p is not None:
                    result[f"regression/{fit.quantile:.2f}/{name}_p"] = Figure(coefficient.p)
    return result


def _figure(value: float | Interval) -> Figure:
    return Figure(value.value, value.low, value.high) if isinstance(value, Interval) else Figure(float(value))
