"""The figures that Andrade and Wickboldt publish of the last five minutes of an experiment, from a tidy table.

Their scripts (``etl/stat.py`` in the study's repository) take all samples from 900 s on, those at 1230 s with them, of
all runs together; values of 0 are left out, the standard deviation is a sample's. Received rates are divided by 2^20.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .tables import END_S, STEP_S, active_slices

LAST_MINUTES_S = 300
PRIORITY, OTHERS = "slice1", "others"
UNITS = {"cpu_use_mcpu": ("mCPU", 1.0), "latency_ms": ("ms", 1.0), "receive_mbps": ("Mibit/s", 1e6 / 2**20)}
SERVER = "iperf"
"""In the names of the workloads that received what a slice carried; the others in such a table are UPFs."""


class StudyTable:
    """Rows of the study's tables out of a tidy table whose batches go by: each experiment's priority slice and others.

    The schema is of `slicepilot.data.studies.andrade.tables.schema_of`; the file does not matter.
    """

    def __init__(self, schema: pa.Schema, _source: str | Path) -> None:
        self._value = schema.names[-1]
        self._values: dict[tuple[int, str], dict[int, list[float]]] = {}  # by cycle
        self._points: dict[tuple[int, str], set[tuple[int, str, int]]] = {}  # cycle, slice, time
        self._cycles: dict[int, set[int]] = {}
        self._servers = False

    def add(self, batch: pa.RecordBatch) -> None:
        names = ["experiment", "cycle", "time_s", "slice", "workload", self._value]
        for experiment, cycle, time_s, name, workload, value in zip(
            *(batch.column(column).to_pylist() for column in names), strict=True
        ):
            self._cycles.setdefault(experiment, set()).add(cycle)
            number = int(name.removeprefix("slice"))
            server = SERVER in workload
            if server and not self._servers:  # what UPFs received does not count where servers show what arrived
                self._servers = True
                self._values.clear()
                self._points.clear()
            if time_s < END_S - LAST_MINUTES_S or number > active_slices()[experiment] or not value:
                continue
            if self._servers and not server:
                continue
            key = (experiment, PRIORITY if name == PRIORITY else OTHERS)
            self._values.setdefault(key, {}).setdefault(cycle, []).append(value)
            self._points.setdefault(key, set()).add((cycle, name, time_s))

    def runs(self, experiment: int, group: str) -> list[npt.NDArray[np.float64]]:
        """The values of each run (cycle) of an experiment, in the unit of the study's tables."""
        factor = UNITS[self._value][1]
        return [factor * np.asarray(own) for _, own in sorted(self._values.get((experiment, group), {}).items())]

    def published(self) -> list[dict[str, Any]]:
        """A row for each experiment and group, of all rows so far.

        ``cycles`` is how many runs of the experiment the table has, ``n`` the values, ``missing`` how many of the 11
        points of each run and slice from 900 to 1200 s have none.
        """
        unit, _ = UNITS[self._value]
        result = []
        for experiment, cycles in sorted(self._cycles.items()):
            active = active_slices()[experiment]
            for group, slices in ((PRIORITY, 1), (OTHERS, active - 1)):
                if not slices:
                    continue
                values = np.concatenate([np.empty(0), *self.runs(experiment, group)])
                points = sum(time <= END_S for _, _, time in self._points.get((experiment, group), set()))
                result.append(
                    {
                        "experiment": experiment,
                        "group": group,
                        "cycles": len(cycles),
                        "n": len(values),
                        "missing": len(cycles) * slices * (LAST_MINUTES_S // STEP_S + 1) - points,
                        "unit": unit,
                        "mean": float(values.mean()) if len(values) else None,
                        "median": float(np.median(values)) if len(values) else None,
                        "std": float(values.std(ddof=1)) if len(values) > 1 else None,
                        "iqr": float(np.subtract(*np.quantile(values, [0.75, 0.25]))) if len(values) else None,
                    }
                )
        return result
