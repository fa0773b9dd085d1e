"""Ticks as a Parquet segment: one row per tick, one column per quantity (and slice), units in the names.

Columns of the node carry plain names (``time``, ``mode``, ``infer_ns``, ``cpu_idle_ratio``), those of a slice its name
in front: ``slice1.offered_mbps``, ``slice1.wanted_cpu_limit_mcpu``. ``reasons`` and ``flags`` are bit masks. The
header, JSON under the key `KEY` of the file's metadata, has their bits and the description of the run.

Stochastic policies have columns of their draws (``slice1.drawn_cpu_limit``).

A column with few repeated values is stored as byte streams, which compress to half the size. All others have a
dictionary, since most knobs seldom change.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from slicepilot.configs import ConfigError
from slicepilot.controller.contracts.modes import Level, Mode
from slicepilot.controller.contracts.reasons import Reason
from slicepilot.data import arrow
from slicepilot.env.encoding import KNOB_FEATURES
from slicepilot.env.knobs import KNOB_FIELDS
from slicepilot.env.telemetry import NODE_FIELDS, SLICE_FIELDS

from .ring import APPLY_ERROR, HELD, LATE, POWERLESS, STAGES_NS, UNUSABLE, Records, record_dtype

FORMAT, KEY = 1, "slicepilot"
LONGEST_NAME = 256
DECISIONS = ("wanted", "allowed", "applied")
FLAGS = {"late": LATE, "unusable": UNUSABLE, "apply_error": APPLY_ERROR, "held": HELD, "powerless": POWERLESS}
_SCALARS = ("monotonic_ns", "description", "flags", "node_reasons", "missed", *STAGES_NS, "age_s", "log_density")
_WORDS = {"mode": tuple(mode.label for mode in Mode), "level": tuple(level.label for level in Level)}
_DRAWN = "drawn_"
_STEADY = ("sequence", "time", "monotonic_ns")  # grow by similar amounts from row to row


def slice_names(description: dict[str, Any]) -> tuple[str, ...]:
    """The slices of a run's description, in order."""
    return tuple(spec["name"] for spec in description["slice_set"]["slices"])


def header_of(records: Records, description: dict[str, Any], generation: int) -> dict[str, Any]:
    """The header of a segment."""
    return {
        "format": FORMAT,
        "generation": generation,
        "description": description,
        "rows": len(records),
        "sequence": [int(records["sequence"][0]), int(records["sequence"][-1])],
        "time_ns": [int(records["time_ns"].min()), int(records["time_ns"].max())],
        "bits": {"flags": FLAGS, "reasons": {reason.label: reason.bit for reason in Reason}},
    }


def read_header(metadata: dict[bytes, bytes] | None) -> dict[str, Any]:
    """`header_of` a file's key-value metadata.

    Raises:
        ConfigError: there is none, or it is of another format.
    """
    text = (metadata or {}).get(KEY.encode())
    if text is None:
        raise ConfigError("not a segment of records")
    try:
        header: dict[str, Any] = json.loads(text)
        if header.get("format") != FORMAT:
            raise ConfigError(f"format = {header.get('format')!r}: expected {FORMAT}")
        _check_header(header)
    except ConfigError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        raise ConfigError("not a header that a publisher has written") from None
    return header


def _check_header(header: dict[str, Any]) -> None:
    """Check what every reader of a segment relies on; raises errors of several types."""
    for at in (*header["sequence"], *header["time_ns"]):
        if not 0 <= operator.index(at) < 1 << 63:
            raise ValueError
    if len(header["sequence"]) != 2 or len(header["time_ns"]) != 2:
        raise ValueError
    description = header["description"]
    texts = [description["run_id"], description["agent"], *slice_names(description)]
    bundle = description["bundle"]
    if bundle is not None:
        texts.append(bundle["digest"])
    # They are shown in terminals.
    if not all(text.isprintable() and 0 < len(text) <= LONGEST_NAME for text in texts):
        raise ValueError
    for field in ("period_s", "budget_s"):
        if not (isinstance(description[field], (int, float)) and 0 < description[field] < math.inf):
            raise ValueError
    operator.index(description["pid"])


def to_table(records: Records, names: Sequence[str]) -> Any:
    """Records as an Arrow table."""
    drew = not np.isnan(records["drawn"]).all()
    views = [(column, values) for column, values in _views(records, names) if drew or not _is_draw(column)]
    return pa.table({column: _array(column, values) for column, values in views})


def to_records(table: Any, names: Sequence[str]) -> Records:
    """The records a table was made from.

    Raises:
        ConfigError: a column is missing, since another version of slicepilot has other telemetry fields.
    """
    records = np.zeros(table.num_rows, record_dtype(len(names)))
    for column, values in _views(records, names):
        if column not in table.column_names and (_is_draw(column) or column == "log_density"):
            values[:] = np.nan  # of a deterministic policy, or of an older version
        elif column not in table.column_names:
            raise ConfigError(f"no column {column}: recorded by another version of slicepilot")
        elif len(records):
            values[:] = values_of(table, column)
    return records


def values_of(table: Any, column: str) -> npt.NDArray[Any]:
    """One column as NumPy sees it: words as their codes, times in ns since 1970."""
    given = table.column(column)
    if column in _WORDS:
        coded, words = arrow.codes_of(given.combine_chunks().dictionary_encode())
        codes = np.asarray([_WORDS[column].index(word) for word in words], np.uint8)
        return codes[coded]
    return arrow.values_of(given)


def encode(table: Any, header: dict[str, Any]) -> bytes:
    """A table as a Parquet file with a header."""
    steady = [name for name in _STEADY if name in table.column_names]
    noisy = [name for name in table.column_names if name not in steady and arrow.hardly_repeats(table.column(name))]
    encodings = dict.fromkeys(steady, "DELTA_BINARY_PACKED") | dict.fromkeys(noisy, "BYTE_STREAM_SPLIT")
    options: dict[str, Any] = {
        "compression": "zstd",
        "use_dictionary": [name for name in table.column_names if name not in encodings],
        "column_encoding": encodings or None,
        "write_statistics": [name for name in ("sequence", "time") if name in table.column_names],
        "write_page_checksum": True,
        "store_schema": False,
    }
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, **options) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({KEY: json.dumps(header, separators=(",", ":"))})
    return bytes(sink.getvalue())


def _views(records: Records, names: Sequence[str]) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Each column's name and the part of the records that it holds."""
    yield "sequence", records["sequence"]
    yield "time", records["time_ns"]
    for column in (*_WORDS, *_SCALARS):
        yield column, records[column]
    for index, column in enumerate(NODE_FIELDS):
        yield column, records["node"][:, index]
    for s, name in enumerate(names):
        for index, column in enumerate(SLICE_FIELDS):
            yield f"{name}.{column}", records["slices"][:, index, s]
        for stage in DECISIONS:
            for index, column in enumerate(KNOB_FIELDS):
                yield f"{name}.{stage}_{column}", records[stage][:, index, s]
        for index, column in enumerate(KNOB_FEATURES):
            yield f"{name}.{_DRAWN}{column}", records["drawn"][:, s, index]
        yield f"{name}.reasons", records["reasons"][:, s]
        yield f"{name}.valid", records["valid"][:, s]


def _is_draw(column: str) -> bool:
    return column.rpartition(".")[2].startswith(_DRAWN)


def _array(column: str, values: npt.NDArray[Any]) -> Any:
    if column in _WORDS:
        return arrow.words(values.astype(np.int8), _WORDS[column])
    if column.endswith(".valid"):
        return arrow.numbers(values.astype(np.bool_))
    return arrow.numbers(values, pa.timestamp("ns", "UTC") if column == "time" else None)
