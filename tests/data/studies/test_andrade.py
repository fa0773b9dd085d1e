"""Exports of Andrade and Wickboldt: every format gives the same rows, and what is wrong is said with its line."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import bson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicepilot.data.faults import DatasetError, Faults
from slicepilot.data.studies.andrade.figures import StudyTable
from slicepilot.data.studies.andrade.mongo_exports import read_documents
from slicepilot.data.studies.andrade.tables import collection_of, read_andrade, schema_of
from slicepilot.data.studies.andrade.units import COLLECTIONS

# Of a slice with traffic, in the unit that the study exported: CPUs, seconds, bit/s.
TYPICAL = {"cpu": 0.31, "latency": 0.12, "receive": 88e6}
TIDY = {"cpu": 310.0, "latency": 120.0, "receive": 88.0}
WORKLOADS = {"cpu": "open5gs-upf-{}", "latency": "open5gs-my5gran0{}", "receive": "open5gs-iperf0{}"}
TIMES = range(0, 1201, 30)


def documents(
    collection: str, experiment: int = 7, cycle: int = 1, slices: int = 2, scale: float = 1.0
) -> list[dict[str, Any]]:
    """All points of some slices of one run."""
    return [
        {
            "_id": {"$oid": f"{number:020x}{time:04x}"},
            "ts": time,
            "exp": experiment,
            "cycle": cycle,
            "value": scale * TYPICAL[collection],
            "workload": WORKLOADS[collection].format(number),
            "priority": WORKLOADS[collection].format(number) if number == 1 else "others",
        }
        for number in range(1, slices + 1)
        for time in TIMES
    ]


def lines_of(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def read(path: Path, collection: str, unit: str | None = None) -> tuple[pa.Table, Faults]:
    faults = Faults()
    stream = read_andrade(path, collection, faults, unit)
    return pa.Table.from_batches(stream.batches, stream.schema), faults


def read_lines(folder: Path, rows: list[Any], collection: str, unit: str | None = None) -> tuple[pa.Table, Faults]:
    path = folder / f"{collection}.json"
    path.write_bytes(lines_of(rows))
    return read(path, collection, unit)


def as_csv(rows: list[dict[str, Any]]) -> bytes:
    names = [name for name in rows[0] if name != "_id"]
    return "\n".join([",".join(names), *(",".join(str(row[name]) for name in names) for row in rows)]).encode() + b"\n"


def canonical(row: dict[str, Any]) -> dict[str, Any]:
    """The same document as ``mongoexport --jsonFormat=canonical`` writes it."""
    whole = {name: {"$numberInt": str(row[name])} for name in ("ts", "exp", "cycle")}
    return row | whole | {"value": {"$numberDouble": repr(row["value"])}, "at": {"$date": {"$numberLong": "0"}}}


FORMATS = {
    "json": lambda rows: ("cpu.json", lines_of(rows)),
    "json array": lambda rows: ("cpu.json", json.dumps(rows).encode()),
    "pretty array": lambda rows: ("cpu.json", json.dumps(rows, indent=2).encode()),
    "pretty documents": lambda rows: ("cpu.json", "\n".join(json.dumps(row, indent=2) for row in rows).encode()),
    "canonical json": lambda rows: ("metrics.cpu.json", lines_of([canonical(row) for row in rows])),
    "byte order mark": lambda rows: ("cpu.json", b"\xef\xbb\xbf" + lines_of(rows)),
    "carriage returns": lambda rows: ("cpu.json", lines_of(rows).replace(b"\n", b"\r\n")),
    "bson": lambda rows: ("cpu.bson", b"".join(map(bson.encode, rows))),
    "zipped bson": lambda rows: ("cpu.bson.gz", gzip.compress(b"".join(map(bson.encode, rows)))),
    "csv": lambda rows: ("cpu.csv", as_csv(rows)),
    "zipped csv": lambda rows: ("cpu.csv.gz", gzip.compress(as_csv(rows))),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_rows(name: str, tmp_path: Path) -> None:
    rows = documents("cpu")
    file, data = FORMATS[name](rows)
    path = tmp_path / file
    path.write_bytes(data)
    assert collection_of(path) == "cpu"
    table, faults = read(path, "cpu")
    assert set(faults.counts) <= {"unknown"}  # the date that only canonical documents have
    assert table.schema.equals(schema_of("cpu"))
    assert table.column("time_s").to_pylist() == [row["ts"] for row in rows]
    assert table.column("slice").to_pylist() == ["slice1"] * len(TIMES) + ["slice2"] * len(TIMES)
    assert table.column("priority").to_pylist() == [row["priority"] for row in rows]
    assert table.column("cpu_use_mcpu").to_pylist() == pytest.approx([310.0] * len(rows))


@pytest.mark.parametrize("collection", COLLECTIONS)
def test_units_are_those_that_are_plausible(collection: str, tmp_path: Path) -> None:
    for unit in COLLECTIONS[collection].units:
        scale = TIDY[collection] / unit.factor / TYPICAL[collection]
        rows = documents(collection, scale=scale)
        table, faults = read_lines(tmp_path, rows, collection, None if unit.low else unit.name)
        assert not faults
        assert table.schema.metadata[b"source_unit"] == unit.name.encode()
        values = table.column(COLLECTIONS[collection].column).to_pylist()
        assert values == pytest.approx([TIDY[collection]] * len(rows))


def test_slices_without_traffic_do_not_decide_the_unit(tmp_path: Path) -> None:
    idle = [row | {"value": 672.0} for row in documents("receive", experiment=1)[len(TIMES) :]]
    table, faults = read_lines(tmp_path, documents("receive", experiment=1, slices=1) + idle, "receive")
    assert table.schema.metadata[b"source_unit"] == b"bit/s"
    assert not faults


def test_mixed_units_are_refused_with_both_lines(tmp_path: Path) -> None:
    rows = documents("receive", slices=1) + documents("receive", cycle=2, slices=1, scale=1e-6)
    with pytest.raises(DatasetError, match=r"receive.json, line 42: mixed units: value = 88, but 8.8e\+07 \(bit/s\)"):
        read_lines(tmp_path, rows, "receive")


def test_a_few_values_in_another_unit_are_noted_and_kept(tmp_path: Path) -> None:
    rows = documents("receive")
    rows[20] |= {"value": 88.0}
    table, faults = read_lines(tmp_path, rows, "receive")
    assert faults.counts == {"unit": 1}
    assert [fault.line for fault in faults.examples()] == [21]
    assert faults.left_out == 0
    assert table.num_rows == len(rows)


def test_an_ambiguous_unit_has_to_be_given(tmp_path: Path) -> None:
    with pytest.raises(
        DatasetError, match=r"its unit cannot be detected .* expected --unit UNIT with one of bit/s, kbit/s"
    ):
        read_lines(tmp_path, documents("receive", scale=1e9), "receive")


WRONG = {
    "no number": ({"value": "fast"}, "number", "value"),
    "a truth value": ({"value": True}, "number", "value"),
    "half a cycle": ({"cycle": 1.5}, "number", "cycle"),
    "a nested value": ({"value": {"$oid": "aa"}}, "number", "value"),
    "an unknown experiment": ({"exp": 27}, "unknown", "exp"),
    "an unknown workload": ({"workload": "open5gs-upf-6"}, "unknown", "workload"),
    "a workload without a number": ({"workload": "amf"}, "unknown", "workload"),
    "too late": ({"ts": 1260}, "range", "ts"),
    "between the steps": ({"ts": 45}, "grid", "ts"),
    "a negative value": ({"value": -1.0}, "range", "value"),
    "an infinite value": ({"value": {"$numberDouble": "Infinity"}}, "range", "value"),
    "no value": ({"value": None}, "missing", "value"),
    "a value that is no number": ({"value": {"$numberDouble": "NaN"}}, "missing", "value"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_document_is_left_out_with_its_line(name: str, tmp_path: Path) -> None:
    change, kind, column = WRONG[name]
    rows = documents("cpu", slices=1)
    table, faults = read_lines(tmp_path, [*rows, rows[3] | {"cycle": 2} | change], "cpu")
    assert table.num_rows == len(rows)
    first = faults.examples(kind)[0]
    assert (first.line, first.column) == (len(rows) + 1, column)
    assert faults.left_out == 1


def test_a_field_that_lacks_is_named(tmp_path: Path) -> None:
    rows = documents("cpu", slices=1)
    [_, faults] = read_lines(tmp_path, [*rows, {"ts": 0, "exp": 1, "cycle": 1, "value": 1.0}], "cpu")
    assert [(fault.line, fault.column) for fault in faults.examples("missing")] == [(42, "workload")]
    with pytest.raises(DatasetError, match="no field workload"):
        read_lines(tmp_path, [{"ts": 0, "exp": 1, "cycle": 1, "value": 1.0}], "cpu")


def test_duplicates_and_holes_of_the_grid(tmp_path: Path) -> None:
    rows = documents("cpu", slices=1)
    table, faults = read_lines(tmp_path, [*rows[:10], rows[4], *rows[12:]], "cpu")
    assert faults.counts == {"duplicate": 1, "missing": 2}
    assert [fault.line for fault in faults.examples("duplicate")] == [11]
    assert [fault.value for fault in faults.examples("missing")] == [
        "experiment 7, cycle 1, open5gs-upf-1: 300 s",
        "experiment 7, cycle 1, open5gs-upf-1: 330 s",
    ]
    assert (table.num_rows, faults.left_out) == (39, 1)


def test_a_last_sample_at_1230_s_is_a_row_and_need_not_be_there(tmp_path: Path) -> None:
    rows = documents("latency", slices=1)
    table, faults = read_lines(tmp_path, [*rows, rows[-1] | {"ts": 1230}], "latency")
    assert not faults
    assert table.column("time_s").to_pylist()[-2:] == [1200, 1230]
    assert not read_lines(tmp_path, rows, "latency")[1], "nor is it a hole where a run has none"


def test_a_round_trip_of_0_is_no_answer_where_the_slice_has_traffic(tmp_path: Path) -> None:
    rows = documents("latency", experiment=2, slices=3)  # slice3 has no traffic in experiment 2
    zeros = [row | {"value": 0.0} if row["ts"] == 600 or row["workload"].endswith("3") else row for row in rows]
    table, faults = read_lines(tmp_path, zeros, "latency")
    assert faults.counts == {"unanswered": 2}, "not a hole of the grid besides"
    assert [fault.line for fault in faults.examples("unanswered")] == [21, 62]
    assert faults.left_out == 2
    kept = table.to_pylist()
    assert [row["latency_ms"] for row in kept if row["slice"] == "slice3"] == [0.0] * 41
    assert all(row["latency_ms"] > 0 for row in kept if row["slice"] != "slice3")


def test_a_rate_or_use_of_0_is_a_measurement(tmp_path: Path) -> None:
    for collection in ("cpu", "receive"):
        rows = documents(collection)
        rows[7] |= {"value": 0.0}
        table, faults = read_lines(tmp_path, rows, collection)
        assert not faults
        assert table.num_rows == len(rows)


def published(path: Path, rows: list[Any]) -> list[dict[str, Any]]:
    """The study's table of an export."""
    path.write_bytes(lines_of(rows))
    stream = read_andrade(path, path.stem, Faults())
    study = StudyTable(stream.schema, path)
    for batch in stream.batches:
        study.add(batch)
    return study.published()


def test_the_last_five_minutes_are_the_studys(tmp_path: Path) -> None:
    """All from 900 s on, 1230 s with them, without what nobody answered and without slices that have no traffic."""
    rows = documents("latency", experiment=4, cycle=1, slices=5)
    for row in rows:
        row["value"] = 0.0 if row["workload"].endswith("5") else (0.1 if row["ts"] < 900 else row["ts"] / 1000)
    late = [row | {"ts": 1230, "value": 1.230} for row in rows if row["ts"] == 1200 and row["value"]]
    unanswered = [row | {"value": 0.0} if (row["ts"], row["priority"]) == (930, "others") else row for row in rows]
    first, others = published(tmp_path / "latency.json", [*unanswered, *late])
    window = [float(time) for time in range(900, 1231, 30)]
    assert (first["group"], first["cycles"], first["n"], first["missing"]) == ("slice1", 1, 12, 0)
    assert first["mean"] == pytest.approx(sum(window) / 12)
    assert first["median"] == pytest.approx((1050 + 1080) / 2)
    window.remove(930.0)
    assert (others["n"], others["missing"], others["unit"]) == (3 * 11, 3, "ms")
    assert others["mean"] == pytest.approx(sum(window) / 11)


def test_received_rates_are_the_servers_in_the_studys_unit(tmp_path: Path) -> None:
    servers = documents("receive", experiment=1, slices=1)
    upfs = [row | {"workload": "open5gs-upf-1", "value": 99e6} for row in servers]
    [row] = published(tmp_path / "receive.json", [*upfs, *servers])
    assert (row["n"], row["unit"]) == (11, "Mibit/s")
    assert row["mean"] == pytest.approx(88e6 / 2**20)


def test_broken_json_is_skipped_and_the_end_that_was_cut_off_noted(tmp_path: Path) -> None:
    lines = lines_of(documents("cpu")).splitlines(keepends=True)
    path = tmp_path / "cpu.json"
    path.write_bytes(b"".join([*lines[:2], b'{"ts": 1,,}\n', b"garbage\n", *lines[2:]])[:-30])
    table, faults = read(path, "cpu")
    assert {kind: [fault.line for fault in faults.examples(kind)] for kind in ("document", "truncated")} == {
        "document": [3, 4],
        "truncated": [84],
    }
    assert table.num_rows == len(lines) - 1


def test_broken_bson_is_skipped_and_the_end_that_was_cut_off_noted(tmp_path: Path) -> None:
    parts = [bytearray(bson.encode(row)) for row in documents("cpu")]
    parts[2][4] = 0x77  # no type of BSON
    path = tmp_path / "cpu.bson"
    path.write_bytes(b"".join(parts)[:-7])
    table, faults = read(path, "cpu")
    assert [fault.line for fault in faults.examples("document")] == [3]
    assert [fault.line for fault in faults.examples("truncated")] == [82]
    assert table.num_rows == len(parts) - 2


UNUSABLE = {
    "empty": ("cpu.json", b"", "nothing in it"),
    "no documents": ("cpu.json", b"hello\n", "no document could be read, the first in line 1"),
    "an ending": ("cpu.xml", b"<a/>", r"ending '.xml'; expected .bson, .json"),
    "a length": ("cpu.bson", b"\xff\xff\xff\xff....", "no document could be read, the first in line 1: length"),
    "nothing that fits": ("cpu.json", b'{"a": 1}\n', "no field ts, exp, cycle, value, workload"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_unusable_files_are_refused_in_one_line(name: str, tmp_path: Path) -> None:
    file, data, message = UNUSABLE[name]
    path = tmp_path / file
    path.write_bytes(data)
    with pytest.raises(DatasetError, match=message) as caught:
        read(path, "cpu")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def damaged(data: bytes) -> st.SearchStrategy[bytes]:
    """A file with some of its bytes changed, cut out or put in."""
    position = st.integers(0, len(data))

    def apply(edits: list[tuple[int, int, bytes]]) -> bytes:
        changed = data
        for start, length, new in edits:
            changed = changed[:start] + new + changed[start + length :]
        return changed

    return st.lists(st.tuples(position, st.integers(0, 40), st.binary(max_size=6)), max_size=4).map(apply)


GOOD = documents("cpu", slices=1)[:6]
KEYS = ("experiment", "cycle", "time_s", "workload")


FUZZED = {
    "cpu.json": st.one_of(st.binary(max_size=300), damaged(lines_of(GOOD)), damaged(json.dumps(GOOD).encode())),
    "cpu.bson": st.one_of(st.binary(max_size=300), damaged(b"".join(map(bson.encode, GOOD)))),
    "cpu.csv": damaged(as_csv(GOOD)),
}


@pytest.mark.parametrize("name", FUZZED)
@given(data=st.data())
def test_damaged_files_are_refused_or_give_plausible_rows(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    """Every document is a row or a fault."""
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(data.draw(FUZZED[name]))
    try:
        table, faults = read(path, "cpu")
    except DatasetError:
        return
    values = table.column("cpu_use_mcpu").to_pylist()
    assert all(math.isfinite(value) and value >= 0 for value in values)
    keys = list(zip(*(table.column(name).to_pylist() for name in KEYS), strict=True))
    assert len(set(keys)) == len(keys)
    unread = Faults()
    result = sum(1 for _ in read_documents(path, tuple(GOOD[0]), unread))
    assert table.num_rows + faults.left_out == result + unread.left_out


@pytest.mark.parametrize("text", ["slice1\x00", "slice1\x1b[2J", "\u202eslice1"])
def test_control_characters_in_a_document_are_a_fault(text: str, tmp_path: Path) -> None:
    rows = documents("cpu")
    rows[3] = rows[3] | {"workload": text}
    _, faults = read_lines(tmp_path, rows, "cpu")
    assert [(fault.line, fault.column) for fault in faults.examples("control")] == [(4, "workload")]
    assert all(line.isprintable() for line in faults.describe())
