"""Tidy tables of datasets as Parquet: one row per measurement, units in column names, origin and faults in the file.

The key-value metadata hold, as JSON under `KEY`, what kind of data it is, the name, size and SHA-256 of the file that
it was read from, how to cite it, and its faults.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from slicepilot.data.faults import DatasetError, Faults
from slicepilot.data.files import replacing, what_else

FORMAT, KEY = 1, "slicepilot-dataset"
ROW_GROUP = 1 << 19  # rows of a group at least, except for the last group

# Longer endings first: the first ending that matches a column's name gives its unit.
UNITS = {
    "_mbps": "Mbit/s",
    "_kibps": "KiB/s",
    "_mibps": "MiB/s",
    "_bytes": "B",
    "_mcpu": "mCPU",
    "_pps": "packets/s",
    "_per_s": "1/s",
    "_pct": "%",
    "_mib": "MiB",
    "_ns": "ns",
    "_us": "µs",
    "_ms": "ms",
    "_s": "s",
}


def unit_of(column: str) -> str | None:
    """The unit that a column's name ends with; None for names, numbers of things and ratios."""
    return next((unit for ending, unit in UNITS.items() if column.endswith(ending)), None)


@dataclass(frozen=True)
class Stream:
    """A table that is read as it comes.

    Attributes:
        schema: of every batch.
        batches: once, in the order of the file.
        groups: columns that say what a row belongs to.
    """

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class Origin:
    """Where a table comes from: kind of file, its name, and the study's citation and licence where there is a study.

    Attributes:
        others: further files that the table was made from.
    """

    kind: str
    path: Path
    citation: str | None = None
    licence: str | None = None
    others: tuple[Path, ...] = ()

    @property
    def paths(self) -> tuple[Path, ...]:
        return (self.path, *self.others)


@dataclass(frozen=True)
class Description:
    """Metadata of a tidy file.

    Attributes:
        source: ``name``, ``bytes`` and ``sha256`` of the file it was read from, or of several files concatenated.
        faults: of that file, as `slicepilot.data.faults.Faults.to_json` has them.
    """

    kind: str
    rows: int
    groups: tuple[str, ...]
    source: dict[str, Any]
    faults: dict[str, Any]
    citation: str | None = None
    licence: str | None = None
    format: int = field(default=FORMAT)


def write_tidy(path: Path, rows: Stream, origin: Origin, faults: Faults) -> Description:
    """Write a table in one pass, whatever its size; the file appears only when it is complete.

    The files of the origin are hashed meanwhile. The faults are those after the last row.

    Raises:
        DatasetError: what reading the rows raises; nothing is written then.
    """
    with replacing(path) as file, ThreadPoolExecutor(1) as pool:
        digest = pool.submit(_sha256, *origin.paths)
        writer: pq.ParquetWriter | None = None
        count = 0
        try:
            for table in _gathered(rows):
                if writer is None:
                    writer = pq.ParquetWriter(file, rows.schema, compression="zstd", write_page_checksum=True)
                writer.write_table(table, row_group_size=max(table.num_rows, 1))
                count += table.num_rows
            assert writer is not None
            names, size = ", ".join(path.name for path in origin.paths), sum(map(_bytes_of, origin.paths))
            source = {"name": names, "bytes": size, "sha256": digest.result()}
            description = Description(
                origin.kind, count, rows.groups, source, faults.to_json(), origin.citation, origin.licence
            )
            text = json.dumps(vars(description), separators=(",", ":"), allow_nan=False)
            writer.add_key_value_metadata({KEY: text})
        finally:
            if writer is not None:
                writer.close()
    return description


def write_csv(stream: Stream, out: Path | BinaryIO) -> int:
    """Write a table as CSV in one pass, all of it or nothing; returns its rows. CSV has no description of itself.

    A missing value is empty, and an empty text is ``""``.

    Raises:
        DatasetError: what reading the table raises.
    """
    kinds = [field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in stream.schema]
    schema = pa.schema([field.with_type(kind) for field, kind in zip(stream.schema, kinds, strict=True)])
    rows = 0
    target = replacing(out) if isinstance(out, Path) else nullcontext(out)
    with target as file, pacsv.CSVWriter(file, schema) as writer:
        for batch in stream.batches:
            writer.write_batch(batch.cast(schema))
            rows += batch.num_rows
    return rows


def read_description(path: Path) -> Description:
    """What a tidy file says about itself.

    Raises:
        DatasetError: not a Parquet file, not written by `write_tidy`, or of another format.
    """
    results = describe_if_tidy(path)
    if results is None:
        raise DatasetError.at(path, "a Parquet file of something else; expected a table of `dataset import`")
    return results


def describe_if_tidy(path: Path) -> Description | None:
    """As `read_description`, but None for Parquet files of another making."""
    metadata = opened(path).metadata.metadata or {}
    text = metadata.get(KEY.encode())
    if text is None:
        return None
    try:
        values = json.loads(text)
        number = values.get("format")
        if number == FORMAT:
            return Description(**(values | {"groups": tuple(values["groups"])}))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DatasetError.at(path, f"its description is damaged: {error}") from error
    raise DatasetError.at(path, f"format = {number}: expected {FORMAT}")


def read_tidy(path: Path) -> Stream:
    """The rows of a tidy file, group by group.

    Raises:
        DatasetError: as `read_description`; and, while rows are read, where the file is damaged.
    """
    groups = read_description(path).groups
    file = opened(path)

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            yield from file.iter_batches(batch_size=1 << 17)
        except (OSError, pa.ArrowException) as error:
            raise damaged(path, error) from error

    return Stream(file.schema_arrow, batches(), groups)


def is_parquet(path: Path) -> bool:
    """Whether a file begins as Parquet files do; raises DatasetError if it cannot be read."""
    if problem := what_else(path):
        raise DatasetError.at(path, f"{problem}; expected a regular file")
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PAR1"
    except OSError as error:
        raise DatasetError.at(path, f"{error.strerror or error}; expected a file that can be read") from error


def opened(path: Path, expected: str = "a table of `dataset import`") -> pq.ParquetFile:
    """A Parquet file; raises DatasetError for any other."""
    if problem := what_else(path):
        raise DatasetError.at(path, f"{problem}; expected {expected}")
    try:
        # Absolute: Arrow takes a relative path such as s3:x/y for the address of a server.
        return pq.ParquetFile(path.absolute(), page_checksum_verification=True)
    except (OSError, pa.ArrowException, ValueError) as error:
        raise damaged(path, error, expected) from error


def damaged(path: Path, error: Exception, expected: str = "a table of `dataset import`") -> DatasetError:
    """The error of a Parquet file that cannot be read."""
    what = " ".join(str(error).split())[:200] or type(error).__name__
    return DatasetError.at(path, f"cannot be read ({what}); expected {expected}, whole")


def _gathered(rows: Stream) -> Iterator[pa.Table]:
    """Batches combined to row groups; a single empty table where there is no row."""
    waiting: list[pa.RecordBatch] = []
    held = seen = 0
    for batch in rows.batches:
        waiting.append(batch)
        held += batch.num_rows
        seen += batch.num_rows
        if held >= ROW_GROUP:
            yield pa.Table.from_batches(waiting, rows.schema)
            waiting, held = [], 0
    if held or not seen:
        yield pa.Table.from_batches(waiting, rows.schema)


def is_made_of(path: Path, *sources: Path) -> bool:
    """Whether a tidy file was read from files with these contents, in this order; False for any other file."""
    try:
        made = read_description(path).source
        return bool(made["bytes"] == sum(map(_bytes_of, sources)) and made["sha256"] == _sha256(*sources))
    except (DatasetError, KeyError):
        return False


def _bytes_of(path: Path) -> int:
    return path.stat().st_size


def _sha256(*paths: Path) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()
