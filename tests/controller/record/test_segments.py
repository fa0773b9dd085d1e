"""Records are read from disk as they were written; segments are whole and bounded, whatever the disk does."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from slicepilot.controller.record.columns import encode, header_of, slice_names, to_records, to_table
from slicepilot.controller.record.reader import SegmentReader, TickHistory
from slicepilot.controller.record.ring import Records, Tick, TickRing, record_dtype
from slicepilot.controller.record.segments import SegmentWriter
from slicepilot.env.knobs import Knobs
from slicepilot.env.telemetry import Telemetry
from tests.effort import examples

from .conftest import description, ticks

PERIOD_NS = 5_000_000
FLOATS = ("age_s", "log_density", "slices", "node", "wanted", "allowed", "applied", "drawn")


def read_all(folder: Path) -> Records:
    return np.concatenate([stretch.records for stretch in SegmentReader(folder).stretches()])


def there_and_back(records: Records, run: dict[str, Any]) -> Records:
    names = slice_names(run)
    file = pq.ParquetFile(pa.BufferReader(encode(to_table(records, names), header_of(records, run, 2))))
    return to_records(file.read(), names)


def same(left: Records, right: Records) -> bool:
    """Bit by bit, but for what NaN is made of."""
    return left.dtype == right.dtype and all(
        np.array_equal(left[name], right[name], equal_nan=name in FLOATS) for name in left.dtype.names or ()
    )


@settings(max_examples=examples(40))
@given(data=st.data(), count=st.integers(1, 40))
def test_any_record_comes_back_as_it_was(data: st.DataObject, count: int) -> None:
    records = ticks(count)
    for name in ("sequence", "time_ns", "monotonic_ns", "flags", "node_reasons", "missed", "infer_ns", "reasons"):
        kind = records[name].dtype
        values = st.integers(int(np.iinfo(kind).min), int(np.iinfo(kind).max))
        records[name] = data.draw(arrays.arrays(kind, records[name].shape, elements=values))
    records["mode"] = data.draw(arrays.arrays(np.uint8, count, elements=st.integers(0, 2)))
    records["level"] = data.draw(arrays.arrays(np.uint8, count, elements=st.integers(0, 3)))
    records["valid"][:, :5] = data.draw(arrays.arrays(np.uint8, (count, 5), elements=st.integers(0, 1)))
    for name in FLOATS:
        drawn = arrays.arrays(np.float32, records[name].shape, elements=st.floats(width=32))
        records[name] = data.draw(drawn)
    assert same(there_and_back(records, description()), records)


def test_segments_end_by_time_and_by_description(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, 1 << 20, segment_s=1.0)
    for part in np.split(ticks(450), 9):
        writer.add(part, description(), 2)
    both = np.concatenate([ticks(50, 451), ticks(50, 501, generation=4)])
    writer.add(both, description(agent="next"), 4)
    writer.close()
    segments = list(SegmentReader(tmp_path).segments())
    assert [segment.header["sequence"] for segment in segments] == [[1, 250], [251, 500], [501, 550]]
    assert [segment.description["agent"] for segment in segments] == ["captain", "captain", "next"]
    assert writer.segments == 3
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == writer.bytes
    assert same(read_all(tmp_path), np.concatenate([ticks(450), both]))


def test_a_writer_that_takes_over_writes_no_tick_twice(tmp_path: Path) -> None:
    SegmentWriter(tmp_path, 1 << 20).add(ticks(50), description(), 2)  # ended before it wrote
    first = SegmentWriter(tmp_path, 1 << 20)
    first.add(ticks(100), description(), 2)
    first.close()
    second = SegmentWriter(tmp_path, 1 << 20)
    second.add(ticks(150), description(), 2)  # the ring still holds them all
    second.add(ticks(30), description(run_id="run-2"), 2)
    second.close()
    stretches = list(SegmentReader(tmp_path).stretches())
    sequences = np.concatenate([stretch.records["sequence"] for stretch in stretches if stretch.key == "run-1"])
    assert sequences.tolist() == list(range(1, 151))
    assert [len(stretch.records) for stretch in stretches if stretch.key == "run-2"] == [30]


def test_the_oldest_segments_of_ours_go_first(tmp_path: Path) -> None:
    for foreign in ("notes.txt", "run-1.parquet"):
        (tmp_path / foreign).write_bytes(bytes(100_000))
    probe = SegmentWriter(tmp_path / "probe", 1 << 30)
    probe.add(ticks(100), description(), 2)
    probe.close()
    writer = SegmentWriter(tmp_path, 3 * probe.bytes + 500, segment_s=0.4)
    for first in range(1, 2000, 100):
        writer.add(ticks(100, first), description(), 2)
        assert sum(p.stat().st_size for p in tmp_path.glob("run-1-*")) <= writer.max_bytes
    writer.close()
    reader = SegmentReader(tmp_path)
    kept = [segment.header["sequence"] for segment in reader.segments()]
    assert kept[-1][1] == 2000
    assert 2 <= len(kept) <= 3
    assert writer.segments == 20
    assert set(reader.broken) == {"notes.txt", "run-1.parquet", "probe"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("needs root: a small file system is mounted")
    (disk := tmp_path / "disk").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "slicepilot-test", str(disk)], check=True)
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_costs_segments_and_nothing_else(small_disk: Path) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(bytes(200_000))
    writer = SegmentWriter(small_disk, 1 << 30)
    noise = np.random.default_rng(0)
    records = ticks(2000)
    records["slices"] = noise.uniform(size=records["slices"].shape)
    writer.add(records[:1000], description(), 2)
    writer.flush()
    assert (writer.segments, writer.dropped_rows, writer.errors) == (0, 1000, 1)
    assert "No space left" in str(writer.last_error)
    assert [path.name for path in small_disk.iterdir()] == ["filler"]
    filler.unlink()
    writer.add(records[1000:], description(), 2)
    writer.close()
    assert (writer.segments, writer.dropped_rows, writer.errors) == (1, 1000, 1)
    assert same(read_all(small_disk), records[1000:])


WRITE_FOREVER = """
import json, sys
from pathlib import Path
import numpy as np
from slicepilot.controller.record.ring import record_dtype
from slicepilot.controller.record.segments import SegmentWriter

writer = SegmentWriter(Path(sys.argv[1]), 1 << 30)
description = json.loads(sys.argv[2])
rng, first = np.random.default_rng(0), 1
while True:
    records = np.zeros(2000, record_dtype(5))
    records["sequence"] = np.arange(first, first + 2000)
    records["time_ns"] = 1_770_000_000_000_000_000 + records["sequence"] * 5_000_000
    records["slices"] = rng.uniform(size=records["slices"].shape)
    writer.add(records, description, 0)
    writer.flush()
    first += 2000
    print(writer.segments, flush=True)
"""


def test_a_killed_writer_leaves_whole_segments(tmp_path: Path) -> None:
    for round_ in range(4):
        arguments = [sys.executable, "-c", WRITE_FOREVER, str(tmp_path), json.dumps(description(f"run-{round_}"))]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.03 * (round_ + 1))
            process.send_signal(signal.SIGKILL)
        reader = SegmentReader(tmp_path)
        stretches = [s for s in reader.stretches() if s.key == f"run-{round_}"]
        assert stretches
        assert reader.broken == {}
        sequences = np.concatenate([stretch.records["sequence"] for stretch in stretches])
        assert sequences.tolist() == list(range(1, 2000 * len(stretches) + 1))
    SegmentWriter(tmp_path, 1 << 30)
    assert not list(tmp_path.glob(".*"))


def test_damaged_files_are_named_and_the_others_read(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, 1 << 30, segment_s=0.4)
    for first in range(1, 601, 100):
        writer.add(ticks(100, first), description(), 2)
    paths = sorted(tmp_path.iterdir())
    data = bytearray(paths[1].read_bytes())
    data[200] ^= 0x55  # inside a page
    paths[1].write_bytes(data)
    paths[2].write_bytes(paths[2].read_bytes()[:3000])
    paths[3].write_bytes(b"")
    (tmp_path / "run-9-1770000000000000009.parquet").write_bytes(parquet_without_header())
    reader = SegmentReader(tmp_path)
    sequences = np.concatenate([stretch.records["sequence"] for stretch in reader.stretches()])
    assert sequences.tolist() == [*range(1, 101), *range(401, 601)]
    assert set(reader.broken) == {path.name for path in paths[1:4]} | {"run-9-1770000000000000009.parquet"}
    assert reader.broken["run-9-1770000000000000009.parquet"] == "not a segment of records"


@pytest.mark.parametrize("column", ["slice1.runqueue_delay_us", "uplink_use_ratio"])
def test_records_without_a_telemetry_field_are_of_another_version(tmp_path: Path, column: str) -> None:
    records, run = ticks(10), description()
    table = to_table(records, slice_names(run)).drop_columns([column])
    path = tmp_path / "run-1-1770000000000000000.parquet"
    path.write_bytes(encode(table, header_of(records, run, 2)))
    reader = SegmentReader(tmp_path)
    assert list(reader.stretches()) == []
    assert reader.broken == {path.name: f"no column {column}: recorded by another version of slicepilot"}


def parquet_without_header() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": [1]}), sink)
    return bytes(sink.getvalue())


def test_what_the_ring_still_holds_follows_what_is_on_disk(tmp_path: Path) -> None:
    ring = TickRing(tmp_path / "ticks", 5, slots=64)
    generation = 2
    ring.describe(description())
    telemetry, knobs = Telemetry.empty(5), Knobs.none(5)
    start = int(ticks(1)["time_ns"][0])
    for number in range(100):
        at = start + number * PERIOD_NS
        ring.write(Tick(at, at), telemetry, knobs, knobs, knobs, np.zeros(5, np.uint32))
    writer = SegmentWriter(tmp_path / "records", 1 << 20)
    writer.add(ticks(60, generation=generation), description(), generation)
    writer.close()
    history = TickHistory(tmp_path / "records", tmp_path / "ticks")
    sequences = [number for part in history.stretches(0, 1 << 62) for number in part.records["sequence"].tolist()]
    assert sequences == list(range(1, 101))
    assert history.span_ns() == (start, start + 99 * PERIOD_NS)
    moment = history.at(start + 60 * PERIOD_NS)
    assert moment is not None
    assert moment.before is not None
    assert (moment.record["sequence"], moment.before["sequence"]) == (61, 60)
    assert history.at(start - 1) is None
    assert history.at(start + 99 * PERIOD_NS + 2_000_000_000) is None
    without_disk = TickHistory(tmp_path / "nothing", tmp_path / "ticks")
    assert without_disk.span_ns()[0] == start + 36 * PERIOD_NS


@pytest.mark.parametrize("run_id", ["", "a/b", "x" * 65])
def test_a_run_needs_a_name_that_a_file_can_have(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(ValueError, match="run_id"):
        SegmentWriter(tmp_path, 1 << 20).add(np.zeros(1, record_dtype(5)), description(run_id), 0)
