"""Rows of Moreira et al. (2026): latencies of a sensor's packets beside neighbours, described, tested and regressed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from slicepilot.data.intervals import Interval
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


Table = dict[str, npt.NDArray[Any]]
"""Columns (N,) of latencies: ``latency_us``; ``traffic_class`` of the neighbours, one of `CLASSES`; ``qfi`` of the
sensor's packets; ``cpu``, use of the user plane in the unit of its source, and ``packets`` that reached it in a second,
both NaN where they are not known."""


def table_of(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Of rows with ``traffic_class``, ``qfi``, and lists ``latency_us``, ``cpu``, ``packets`` of equal length."""
    rows = list(rows)
    lengths = [len(row["latency_us"]) for row in rows]
    lists = {name: np.concatenate([row[name] for row in rows]) for name in ("latency_us", "cpu", "packets")}
    table = {name: column.astype(np.float64) for name, column in lists.items()}
    words = np.asarray([row["traffic_class"] for row in rows], object)
    return table | {"traffic_class": np.repeat(words, lengths), "qfi": np.repeat([row["qfi"] for row in rows], lengths)}


def analysis_of(table: Table, by: str, seed: int) -> Analysis:
    """The suite of a table by ``traffic_class`` or ``qfi``; the baseline is `BASELINE`, or the QFI of highest priority.

    Raises:
        ConfigError: a group with fewer than two latencies.
    """
    batch = pa.record_batch(
        {
            "traffic_class": pa.array(table["traffic_class"], pa.string()),
            "qfi": pa.array(table["qfi"], pa.int16()),
            "latency_us": pa.array(table["latency_us"]),
            "cpu_user_pct": pa.array(table["cpu"]),
            "net_packets_n3_received_pps": pa.array(table["packets"]),
        }
    )
    stream = Stream(batch.schema, iter([batch]), ("traffic_class", "qfi"))
    delays = collect([Source("moreira", stream)], value="latency_us", by=by, seed=seed)
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
    known = np.isfinite(table["cpu"]) & np.isfinite(table["packets"])
    table = {name: column[known] for name, column in table.items()}
    if len(set(table["qfi"].tolist())) < len(QFIS):
        return {}
    numbers = {"cpu": table["cpu"], "packets": table["packets"]}
    qfi9 = (table["qfi"] == QFIS[1]).astype(np.float64)
    words = {"qfi9": qfi9, "traffic_class": table["traffic_class"]}
    crossed = {f"{name}_x_qfi9": (numbers[name] - numbers[name].mean()) * qfi9 for name in INTERACTIONS}
    references = {"traffic_class": BASELINE}
    result = dict[str, Figure]()
    for covariates, wanted in ((numbers | words, set(TERMS)), (numbers | words | crossed, set(crossed))):
        for fit in regress(table["latency_us"], covariates, references, QUANTILES).fits:
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
