"""The figures that Mishra and Pandey publish of forwarding delays and PFCP latencies, out of a tidy table of theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from slicepilot.data.arrow import codes_of, values_of

LOADS = ("light", "medium", "heavy")


class StudyTable:
    """Rows of the study's table out of a tidy table whose batches go by: of delays by slice, or latencies by type.

    Args:
        schema: `slicepilot.data.studies.mishra.tables.FORWARDING` or `PFCP`.
        source: the file that the rows are from; its name says the load.
    """

    def __init__(self, schema: pa.Schema, source: str | Path) -> None:
        self._forwarding = "delay_us" in schema.names
        self._columns = ("slice", "delay_us") if self._forwarding else ("message_type", "latency_us")
        self._load = load_of(source)
        self._times_us: dict[str, list[npt.NDArray[Any]]] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        codes, words = codes_of(batch.column(self._columns[0]))
        times_us = values_of(batch.column(self._columns[1]))
        for code, word in enumerate(words):
            own = times_us[codes == code]
            if len(own):
                self._times_us.setdefault(word, []).append(own)

    def published(self) -> list[dict[str, Any]]:
        """As ``reference/mishra_forwarding_delay.csv`` or ``mishra_pfcp_latency.csv`` have them, of all rows so far."""
        rows = []
        for name, parts in self._times_us.items():
            times_us = np.concatenate(parts)
            p50_us, p99_us = np.quantile(times_us, [0.5, 0.99]).tolist()
            count, mean_us = len(times_us), float(times_us.mean())
            if self._forwarding:
                named: dict[str, Any] = {"slice": name, "load": self._load, "n": count, "mean_us": mean_us}
                rows.append(named | {"p50_us": p50_us, "p99_us": p99_us})
            else:
                rows.append({"load": self._load, "type": name, "n": count, "mean_us": mean_us, "p99_us": p99_us})
        return rows


def load_of(path: str | Path) -> str:
    """The load that a file's name ends with, as those of the study do; empty where it does not."""
    words = Path(path).name.split(".")[0].lower().split("_")
    return next((word for word in reversed(words) if word in LOADS), "")
