"""Estimates (`slicepilot.controller.record.estimate`) as Parquet: one row per window and slice.

The columns are an estimate's figures with their parts joined by ``_``: ``carried_mbps_held``, ``carried_mbps_policy``,
``carried_mbps_difference``, ``carried_mbps_error``. NaN stands for what could not be told.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from slicepilot.data.arrow import numbers, texts, values_of

from .columns import FORMAT, encode
from .segment_file import open_segment

_TEXTS = ("run_id", "bundle", "mode", "slice")
_TIMES = ("start", "end")
_WINDOW = ("run_id", "bundle", "mode", "start_ns", "end_ns", "window_s")
QUANTITIES = ("carried_mbps", "delay_p99_us", "broken_s")
PARTS = ("held", "policy", "difference", "error", "measured")


def rows_of(estimate: dict[str, Any]) -> list[dict[str, Any]]:
    """An estimate's slices, flat."""
    window = {name: estimate[name] for name in _WINDOW}
    rows = []
    for figures in estimate["slices"]:
        row = window | {"slice": figures["slice"], "offered_mbps": figures["offered_mbps"]}
        for quantity in QUANTITIES:
            known = figures[quantity]
            row |= {f"{quantity}_{part}": float("nan") if known is None else known[part] for part in PARTS}
        rows.append(row)
    return rows


def encode_estimates(estimates: Sequence[dict[str, Any]]) -> bytes:
    """Estimates of one run as a Parquet file."""
    rows = [row for estimate in estimates for row in rows_of(estimate)]
    columns: dict[str, Any] = {
        "start": numbers(np.asarray([row["start_ns"] for row in rows], np.int64), pa.timestamp("ns", "UTC")),
        "end": numbers(np.asarray([row["end_ns"] for row in rows], np.int64), pa.timestamp("ns", "UTC")),
    }
    for name in rows[0] if rows else ():
        if name in _TEXTS:
            columns[name] = texts([row[name] or "" for row in rows])
        elif name not in ("start_ns", "end_ns"):
            columns[name] = numbers(np.asarray([row[name] for row in rows], np.float64))
    return encode(pa.table(columns), {"format": FORMAT, "models": [estimate["model"] for estimate in estimates[-1:]]})


def decode_estimates(path: Path) -> list[dict[str, Any]]:
    """The rows of a file; raises OSError or ValueError for a damaged one."""
    with open_segment(path) as file:
        table = file.read(use_threads=False)
        columns = {}
        for name in table.column_names:
            plain = table.column(name).to_pylist() if name in _TEXTS else values_of(table.column(name)).tolist()
            columns[f"{name}_ns" if name in _TIMES else name] = plain
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
