"""Files of Moreira et al.: Netdata's columns with their units, the probe's lines, and what is wrong in either."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicepilot.data.faults import DatasetError, Faults
from slicepilot.data.studies.moreira.netdata import read_resources, tidy_column
from slicepilot.data.studies.moreira.tables import Run, read_latency, run_of
from slicepilot.data.tables.tidy import unit_of

SAMPLES = Path(__file__).parents[1] / "samples" / "moreira"
RUN = Run(1, "baseline")
HEADER = "time,cpu_user,net_n3_received,net_n3_sent,net_packets_n3_received"


def resources(path: Path, text: str) -> tuple[pa.Table, Faults]:
    path.write_text(text)
    faults = Faults()
    stream = read_resources(path, RUN, faults)
    return pa.Table.from_batches(stream.batches, stream.schema), faults


def latencies(path: Path, text: str | bytes, classes: dict[str, str] | None = None) -> tuple[pa.Table, Faults]:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    faults = Faults()
    stream = read_latency(path, RUN, faults, classes)
    return pa.Table.from_batches(stream.batches, stream.schema), faults


def second(number: int, packets: float = 1000.0, kilobits: float = 8880.0) -> str:
    return f"2025-08-01 10:20:{number:02d},0.5,{kilobits},-1.14,{packets}"


def line(latency: object = 14350, address: str = "10.1.0.44", unit: str = "ns") -> str:
    return f"UE IP: {address} | Decapsulation Overhead: {latency} {unit}"


@pytest.mark.parametrize(
    ("path", "run"),
    [
        ("x/qf1_baseline/final/resources_stats_merged.csv", Run(1, "baseline")),
        ("qf9_load/latency.txt", Run(9, "load")),
        ("qfi9_anommaly/latency.txt", Run(9, "anomaly")),
        ("qf1_anomally/cpu.csv", Run(1, "anomaly")),
        ("QFI9_Replay.log", Run(9, "replay")),
        ("qf1_load/qf9_replay.log", Run(9, "replay")),
    ],
)
def test_the_run_is_what_the_folder_is_called(path: str, run: Run) -> None:
    assert run_of(Path(path)) == run


def test_the_run_can_be_given_and_may_be_required(tmp_path: Path) -> None:
    assert run_of(tmp_path / "a.csv", 9, "load") == Run(9, "load")
    assert run_of(Path("qf1_baseline/a.csv"), qfi=5) == Run(5, "baseline")
    with pytest.raises(DatasetError, match="QFI and condition: not given"):
        run_of(tmp_path / "a.csv")
    for qfi in (-7, 64, 99999):
        with pytest.raises(DatasetError, match=f"qfi = {qfi}: expected 0 to 63"):
            run_of(Path("qf1_load/a.csv"), qfi)
    with pytest.raises(DatasetError, match="condition = 'x': expected baseline, load, replay, anomaly"):
        run_of(Path("qf1_load/a.csv"), 1, "x")


@pytest.mark.parametrize(
    ("source", "name", "unit"),
    [
        ("cpu_user", "cpu_user_pct", "%"),
        ("mem_usage_ram", "mem_usage_ram_mib", "MiB"),
        ("net_drops_n3_inbound", "net_drops_n3_inbound_per_s", "1/s"),
        ("io_read", "io_read_kibps", "KiB/s"),
        ("pgfaults_pgfault", "pgfaults_pgfault_mibps", "MiB/s"),
        ("gpu_busy", "gpu_busy", None),
    ],
)
def test_names_carry_units(source: str, name: str, unit: str | None) -> None:
    assert tidy_column(source).name == name
    assert unit_of(name) == unit


def test_the_sample_of_resources() -> None:
    path = SAMPLES / "qfi9_anommaly" / "final" / "resources_stats_merged.csv"
    faults = Faults()
    stream = read_resources(path, run_of(path), faults)
    table = pa.Table.from_batches(stream.batches, stream.schema)
    assert not faults
    assert table.column("time_s").to_pylist() == list(range(20))
    assert set(table.column("condition").to_pylist()) == {"anomaly"}
    rate, packets = (
        np.asarray(table.column(f"net_{name}")) for name in ("n3_received_mbps", "packets_n3_received_pps")
    )
    assert 1e6 * rate[5] / packets[5] == pytest.approx(8880, rel=0.01)  # bits a packet
    assert (np.asarray(table.column("net_n3_sent_mbps")) >= 0).all()
    metadata = table.schema.field("net_n3_received_mbps").metadata
    assert metadata == {b"source": b"net_n3_received", b"source_unit": b"kilobits/s"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((text, "10:20:00") for text in ("1754043600", "1754043600.0", "1754043600000")),
        *((f"2025-08-01{between}10:20:00", "10:20:00") for between in (" ", "T")),
        *((f"2025-08-01T10:20:00{end}", "10:20:00") for end in (".75", "Z", " UTC", "+00:00")),
        ("2025-08-01T10:20:00+02:00", "08:20:00"),
        ("2025-08-01T10:20:00.250+02", "08:20:00"),
        ("2025-08-01T10:20:00-0530", "15:50:00"),
    ],
)
def test_times_are_whole_seconds_of_utc(text: str, expected: str, tmp_path: Path) -> None:
    table, faults = resources(tmp_path / "r.csv", f"{HEADER}\n{text},0.5,8880,-1.14,1000\n")
    assert not faults
    assert [str(time) for time in table.column("time").to_pylist()] == [f"2025-08-01 {expected}"]


def test_rows_that_come_newest_first_are_sorted_and_noted_once(tmp_path: Path) -> None:
    """Netdata exports the newest row first unless it is asked otherwise."""
    ordered, _ = resources(tmp_path / "o.csv", "\n".join([HEADER, *map(second, range(50))]) + "\n")
    table, faults = resources(tmp_path / "r.csv", "\n".join([HEADER, *map(second, reversed(range(50)))]) + "\n")
    assert table.equals(ordered)
    assert faults.total == 0
    assert faults.notes == ["rows come newest first: sorted by time"]
    bad = [second(n, packets=-1.0 if n == 30 else 1000.0) for n in reversed(range(50))]
    _, faults = resources(tmp_path / "b.csv", "\n".join([HEADER, *bad]) + "\n")
    assert [fault.line for fault in faults.examples("range")] == [2 + 19]


def test_latencies_whose_lines_end_with_a_carriage_return(tmp_path: Path) -> None:
    table, faults = latencies(tmp_path / "l.txt", "\r".join([line(1), line(2), "nonsense", line(3), ""]))
    assert table.column("latency_ns").to_pylist() == [1, 2, 3]
    assert [(fault.line, fault.kind) for fault in faults.examples()] == [(3, "line")]


def test_a_row_out_of_order_is_no_hole_after_it(tmp_path: Path) -> None:
    rows = [second(n) for n in (0, 1, 3, 2, 4)]
    _, faults = resources(tmp_path / "a.csv", "\n".join([HEADER, *rows, ""]))
    assert [(fault.kind, fault.line) for fault in faults.examples()] == [("missing", 4), ("clock", 5)]


def test_what_is_wrong_in_resources_has_its_line(tmp_path: Path) -> None:
    rows = [
        second(0),
        second(1).replace("0.5", ""),  # 3: kept
        second(1),  # 4
        second(5),  # 5: three seconds lack before; kept
        second(4),  # 6: backwards; kept
        "noon,0.5,8880,-1,1000",  # 7
        second(6).replace("0.5", "fast"),  # 8
        second(7).replace("0.5", "-0.5"),  # 9
        second(8) + ",1",  # 10
    ]
    table, faults = resources(tmp_path / "a.csv", "\n".join([HEADER, *rows]) + "\n")
    lines = {kind: [fault.line for fault in faults.examples(kind)] for kind in faults.counts}
    assert lines == {
        "missing": [3, 5],
        "duplicate": [4],
        "clock": [6],
        "number": [7, 8],
        "range": [9],
        "columns": [10],
    }
    assert table.column("time_s").to_pylist() == [0, 1, 5, 4]
    assert table.column("cpu_user_pct").to_pylist() == [0.5, None, 0.5, 0.5]
    assert faults.left_out == 5


def test_an_unknown_column_is_kept_as_it_is_and_reported(tmp_path: Path) -> None:
    table, faults = resources(tmp_path / "a.csv", "time,cpu_user,gpu_busy\n2025-08-01 10:20:00,1,-42\n")
    assert table.column("gpu_busy").to_pylist() == [-42.0]
    assert table.schema.field("gpu_busy").metadata[b"source_unit"] == b"unknown"
    assert [(fault.kind, fault.value) for fault in faults.examples()] == [("unknown", "gpu_busy")]


def test_rates_in_another_unit_are_refused(tmp_path: Path) -> None:
    rows = [second(n, kilobits=8_880_000.0) for n in range(30)]  # bits
    with pytest.raises(DatasetError, match=r"line 2: net_n3_received_mbps: 8.88e\+06 bits a packet; expected rates in"):
        resources(tmp_path / "a.csv", "\n".join([HEADER, *rows]) + "\n")


def test_a_single_impossible_rate_is_noted(tmp_path: Path) -> None:
    rows = [second(n, kilobits=8_880_000.0 if n == 7 else 8880.0) for n in range(30)]
    table, faults = resources(tmp_path / "a.csv", "\n".join([HEADER, *rows]) + "\n")
    assert faults.counts == {"unit": 1}
    assert faults.examples()[0].line == 9
    assert table.num_rows == 30


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time,cpu_user\nnoon,1\n", "none of its 1 rows can be used: number: 1 .*; expected times such as 2025-"),
        ("time,cpu_user\n2025-08-01 10:20:00,-1\n", "none of its 1 rows can be used: range: 1 values outside"),
        ("time,cpu_user,cpu_user_pct\n2025-08-01 10:20:00,1,1\n", "several columns would have this name"),
    ],
)
def test_unusable_resources_are_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=message):
        resources(tmp_path / "a.csv", text)


def test_what_is_wrong_in_latencies_has_its_line(tmp_path: Path) -> None:
    lines = [
        "Attaching 2 probes...",
        *[line()] * 40,
        line("fast"),  # 42
        line(-5),  # 43
        line(3, unit="us"),  # 44
        line(address="10.1.0.999"),  # 45
        "Lost 17 events",  # 46: kept
        "^C",
        "",
        "@start[18446]: 123",
        "@ip_map[18446]: 9",
        line()[:20],  # 51, without an end
    ]
    table, faults = latencies(tmp_path / "latency.txt", "\n".join(lines))
    result = {kind: [fault.line for fault in faults.examples(kind)] for kind in faults.counts}
    assert result == {"line": [42], "range": [43, 45], "unit": [44], "missing": [46], "truncated": [51]}
    assert (table.num_rows, faults.left_out) == (40, 5)
    assert table.column("traffic_class").null_count == 40


def test_latencies_in_another_unit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="line 1: latency in us, in 3 lines; expected all in ns"):
        latencies(tmp_path / "latency.txt", "\n".join([line(3, unit="us")] * 3 + [line()] * 3))


@pytest.mark.parametrize("text", ["", "hello\n", "Attaching 2 probes...\n\n"])
def test_files_without_latencies_are_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no latency in it"):
        latencies(tmp_path / "latency.txt", text)


def test_many_batches_are_numbered_through(tmp_path: Path) -> None:
    table, _ = latencies(tmp_path / "latency.txt", "\n".join([line()] * 150_000))
    assert len(table.column("sequence").chunks) == 3
    assert np.array_equal(np.asarray(table.column("sequence")), np.arange(150_000))


LINES = st.lists(
    st.one_of(
        st.builds(line, st.integers(-(10**19), 10**19), st.sampled_from(["10.1.0.44", "1.2.3", "300.1.1.1"])),
        st.text(max_size=30),
        st.just(line()),
    ),
    max_size=12,
)


def plainly(text: bytes) -> list[int]:
    """The latency of a line, without a regular expression."""
    ue, _, latency = text.decode("utf-8", "replace").strip().partition(" | Decapsulation Overhead: ")
    address = ue.removeprefix("UE IP: ").split(".")
    number = latency.removesuffix(" ns")
    known = f"UE IP: {'.'.join(address)}" == ue and f"{number} ns" == latency and number.isascii() and number.isdigit()
    if not known or len(address) != 4 or not all(part.isdigit() and int(part) <= 255 for part in address):
        return []
    return [int(number)] if int(number) <= 10**10 else []


@given(LINES, st.binary(max_size=20))
def test_no_latencies_break_the_reader(tmp_path_factory: pytest.TempPathFactory, lines: list[str], rest: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "latency.txt"
    data = "\n".join(lines).encode("utf-8", "replace") + rest
    try:
        table, faults = latencies(path, data)
    except DatasetError:
        return
    assert table.column("latency_ns").to_pylist() == [value for text in data.split(b"\n") for value in plainly(text)]
    assert faults.left_out <= len(data.split(b"\n")) - table.num_rows


CELLS = st.sampled_from(
    ["2025-08-01 10:20:00", "2025-08-01 10:20:01", "1754043600", "", "1", "-1", "1e400", "nan", "x"]
)
TABLES = st.lists(st.lists(CELLS, min_size=4, max_size=6).map(",".join), max_size=8)


@given(TABLES, st.sampled_from(["", "\n", '"', "\n\n1,2"]))
def test_no_resources_break_the_reader(tmp_path_factory: pytest.TempPathFactory, rows: list[str], rest: str) -> None:
    path = tmp_path_factory.getbasetemp() / "resources.csv"
    try:
        table, faults = resources(path, "\n".join([HEADER, *rows]) + rest)
    except DatasetError:
        return
    assert table.num_rows + faults.left_out == sum(map(bool, ("\n".join(rows) + rest).split("\n")))
    assert table.column("time_s").null_count == 0
