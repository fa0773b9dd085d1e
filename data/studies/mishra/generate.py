"""Forwarding files made up after the published figures: the shares, delays and pace of the study's slices.

Delays are log-normal with the published median and 99th percentile, cut off where the study's matching of packets ends,
and independent of each other. That is enough to measure and test readers; it is no model of a UPF.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pacsv

from slicepilot.data.arrow import numbers, words

from .tables import FORWARDING, FORWARDING_COLUMNS

RUN_S = 600.0
MATCHED_NS = 10_000_000  # instrumentation/parse_tcbpf.awk of the study's repository
LEAST_NS = 800
START_NS = 7_000_000_000_000  # of a clock that starts with the machine
PACKET_BYTES = {"eMBB": 1512, "URLLC": 218, "mMTC": 66}
INTERFACE = b"eth0"
_P99_SIGMA = 2.3263  # standard deviations from the median to the 99th percentile
_ROWS = 1 << 18  # made at once


def write_forwarding(
    path: Path, rows: int, load: str = "heavy", seed: int = 0, on_rows: Callable[[int], None] | None = None
) -> None:
    """Write a forwarding file of so many rows; ``on_rows`` is called with the number written."""
    rng, study = np.random.default_rng(seed), _published(load)
    pace_ns = RUN_S * 1e9 / sum(study["n"])
    schema = pa.schema([(name, kind) for name, kind in zip(FORWARDING_COLUMNS, _kinds(), strict=True)])
    clock_ns, written = START_NS, 0
    with path.open("wb") as file:
        file.write(",".join(FORWARDING_COLUMNS).encode() + b"\n")
        options = pacsv.WriteOptions(include_header=False, quoting_style="none")
        with pacsv.CSVWriter(file, schema, write_options=options) as writer:
            while written < rows:
                count = min(_ROWS, rows - written)
                sent_ns = clock_ns + np.cumsum(rng.exponential(pace_ns, count)).astype(np.int64)
                writer.write_batch(_batch(rng, study, sent_ns, schema))
                clock_ns, written = int(sent_ns[-1]), written + count
                if on_rows is not None:
                    on_rows(written)


def _batch(rng: np.random.Generator, study: dict[str, Any], sent_ns: npt.NDArray[np.int64], schema: Any) -> Any:
    shares = np.asarray(study["n"]) / sum(study["n"])
    slices = rng.choice(len(shares), len(sent_ns), p=shares)
    median_us, p99_us = np.asarray(study["p50_us"])[slices], np.asarray(study["p99_us"])[slices]
    spread = np.log(p99_us / median_us) / _P99_SIGMA
    delay_ns = 1e3 * median_us * np.exp(spread * rng.standard_normal(len(sent_ns)))
    delay_ns = np.clip(delay_ns, LEAST_NS, MATCHED_NS).astype(np.int64)
    sizes = np.asarray([PACKET_BYTES[name] for name in study["slice"]], np.int32)[slices]
    columns = [
        words(slices.astype(np.int32), [name.encode() for name in study["slice"]]).dictionary_decode(),
        numbers(delay_ns / 1e3),
        numbers(sizes),
        numbers(sent_ns - delay_ns),
        numbers(sent_ns),
        words(np.zeros(len(sent_ns), np.int32), [INTERFACE]).dictionary_decode(),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _kinds() -> list[Any]:
    """Arrow types of the columns as the writer takes them."""
    return [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in FORWARDING.types]


def _published(load: str) -> dict[str, Any]:
    """The columns of the study's table at one load."""
    folder = resources.files("slicepilot.data.reference")
    text = folder.joinpath("mishra_forwarding_delay.csv").read_text(encoding="utf-8")
    rows = [row for row in csv.DictReader(text.splitlines()) if row["load"] == load]
    figures = {name: [float(row[name]) for row in rows] for name in ("n", "p50_us", "p99_us")}
    return {"slice": [row["slice"] for row in rows]} | figures
