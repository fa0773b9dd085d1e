"""Tidy tables on disk: what is written is what is read, in Parquet and in CSV, and never half of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from slicepilot.data.faults import DatasetError, Faults
from slicepilot.data.tables import tidy
from slicepilot.data.tables.tidy import Origin, Stream, read_description, read_tidy, write_csv, write_tidy

SCHEMA = pa.schema(
    [("slice", pa.string()), ("sent_ns", pa.int64()), ("delay_us", pa.float64()), ("note", pa.string())],
    {"source_unit": "us"},
)


def batch(rows: int, first: int = 0) -> pa.RecordBatch:
    numbers = np.arange(first, first + rows)
    columns = [
        pa.array([f"slice{n % 3 + 1}" for n in numbers]),
        pa.array(numbers * 1_000_003 + 10**15),
        pa.array(np.sqrt(numbers)),
        pa.array([None if n % 2 else "" for n in numbers], pa.string()),
    ]
    return pa.record_batch(columns, SCHEMA)


def stream(*batches: pa.RecordBatch) -> Stream:
    return Stream(SCHEMA, iter(batches), ("slice",))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "o1.csv"
    path.write_bytes(b"what the table was read from")
    return path


def written(path: Path, source: Path, *batches: pa.RecordBatch, faults: Faults | None = None) -> Any:
    return write_tidy(
        path, stream(*batches), Origin("some-kind", source, "a citation", "a licence"), faults or Faults()
    )


def table_of(result: Stream) -> pa.Table:
    return pa.Table.from_batches(result.batches, result.schema)


def test_what_is_written_is_read(tmp_path: Path, source: Path) -> None:
    faults = Faults()
    faults.add("number", 17, "delay_us", "abc")
    path = tmp_path / "table.parquet"
    returned = written(path, source, batch(5), batch(0), batch(7, 5), faults=faults)
    result = read_tidy(path)
    assert table_of(result).equals(pa.Table.from_batches([batch(12)]))
    assert result.schema.metadata[b"source_unit"] == b"us"
    description = read_description(path)
    assert description == returned
    assert description.kind == "some-kind"
    assert (description.rows, description.groups) == (12, ("slice",))
    assert (description.citation, description.licence) == ("a citation", "a licence")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    assert description.source == {"name": "o1.csv", "bytes": source.stat().st_size, "sha256": digest}
    assert description.faults == faults.to_json()


def test_row_groups_are_large_whatever_the_batches(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tidy, "ROW_GROUP", 100)
    path = tmp_path / "table.parquet"
    batches = [batch(30, 30 * n) for n in range(9)]
    write_tidy(path, stream(*batches), Origin("k", source), Faults())
    metadata = pq.read_metadata(path)
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [120, 120, 30]
    assert table_of(read_tidy(path)).num_rows == 270


def test_nothing_is_left_of_a_table_that_breaks_off(tmp_path: Path, source: Path) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield batch(3)
        raise DatasetError("the file is broken")

    path = tmp_path / "table.parquet"
    written(path, source, batch(1))
    before = path.read_bytes()
    for write in (
        lambda: write_tidy(path, Stream(SCHEMA, batches()), Origin("k", source), Faults()),
        lambda: write_csv(Stream(SCHEMA, batches()), tmp_path / "table.csv"),
    ):
        with pytest.raises(DatasetError, match="the file is broken"):
            write()
    assert path.read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["o1.csv", "table.parquet"]


def test_other_files_are_refused(tmp_path: Path, source: Path) -> None:
    path = tmp_path / "other.parquet"
    with pytest.raises(DatasetError, match="does not exist"):
        read_description(path)
    with pytest.raises(DatasetError, match=r"cannot be read \(.*\); expected a table of `dataset import`, whole"):
        read_description(source)
    pq.write_table(SCHEMA.empty_table(), path)
    with pytest.raises(DatasetError, match="a Parquet file of something else"):
        read_tidy(path)
    for text, message in (("{", "its description is damaged"), ('{"format": 2}', "format = 2: expected 1")):
        pq.write_table(SCHEMA.empty_table().replace_schema_metadata({tidy.KEY: text}), path)
        with pytest.raises(DatasetError, match=message):
            read_description(path)


def test_a_damaged_table_is_noticed(tmp_path: Path, source: Path) -> None:
    path = tmp_path / "table.parquet"
    written(path, source, batch(1000))
    data = bytearray(path.read_bytes())
    data[len(data) // 4] ^= 0xFF
    path.write_bytes(bytes(data))
    with pytest.raises(DatasetError, match="cannot be read"):
        table_of(read_tidy(path))


def test_csv_has_all_rows(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    assert write_csv(stream(batch(5), batch(4, 5)), path) == 9
    rows = pacsv.read_csv(path)
    assert rows.column_names == SCHEMA.names
    assert rows.column("delay_us").to_pylist() == pytest.approx(batch(9).column("delay_us").to_pylist())
