"""Files of each kind that people bring are mapped without an edit, and mean what they say."""

from __future__ import annotations

import json
import zoneinfo
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slicepilot.data.faults import DatasetError, Faults
from slicepilot.data.own.join import joined
from slicepilot.data.own.json_files import iperf3_rows
from slicepilot.data.own.map import read_map
from slicepilot.data.own.propose import propose
from slicepilot.data.own.reading import read_files
from slicepilot.data.own.rows import date_ns
from tests.command import slicepilot

PROMETHEUS = '{"status": "success", "data": {"resultType": "matrix", "result": [%s]}}'
IPERF3 = {
    "start": {"timestamp": {"timesecs": 1764000000}},
    "intervals": [
        {
            "streams": [],
            "sum": {"start": n, "end": n + 1, "bits_per_second": 44.8e6, "jitter_ms": 0.05, "sender": False},
        }
        for n in range(3)
    ],
}


def table_of(folder: Path, *files: Path, edit: tuple[str, str] | None = None) -> Any:
    """The table that the proposed map makes of files."""
    text = propose(files).text
    if edit is not None:
        assert edit[0] in text
        text = text.replace(*edit)
    return table_by(folder, text, *files)


def table_by(folder: Path, text: str, *files: Path) -> Any:
    """The table that a map makes of files."""
    (folder / "map.yaml").write_text(text)
    data_map = read_map(folder / "map.yaml")
    stream = joined(read_files(data_map, files, Faults()), data_map.period_s)
    return pa.Table.from_batches(list(stream.batches), stream.schema)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


LONG = "time,slice,metric,value\n0.0,a,offered_mbps,50\n0.0,a,delay_p99_us,900\n0.1,a,offered_mbps,51\n"
WIDE = "ts_ms;s_nssai;Throughput (kbit/s);RTT [us];cpu_limit\n1764000000000;1;45000,5;1800;500m\n"
WIDE += "1764000001000;1;1,5;;none\n"
GRAFANA = '"Time","{pod=""upf-1""}","{pod=""upf-2""}"\n2026-11-24 10:00:00,150134364,90847434\n'
LEGEND = "Time,upf-1,upf-2\n2026-11-24 10:00:00,10.5 Mb/s,20 Mb/s\n2026-11-24 10:00:30,900 kb/s,2 Mb/s\n"
NETDATA = "time,user,system\n2026-11-24 10:00:01,10,2.5\n2026-11-24 10:00:00,20,1\n"
PING = "PING a (a) 56(84) bytes of data.\n[1764000001.5] 64 bytes from a: icmp_seq=1 ttl=64 time=1.80 ms\n"
PING += "[1764000003.5] 64 bytes from a: icmp_seq=3 ttl=64 time=0.5 ms\n"
SERIES = ",".join(
    json.dumps({"metric": {"pod": pod, "interface": "n3"}, "values": [[1764000000, "150000000"], [1764000030, "NaN"]]})
    for pod in ("upf-1", "upf-2")
)


@pytest.mark.parametrize(
    ("name", "text", "first", "rows"),
    [
        ("long.csv", LONG, {"time_s": 0.0, "slice": "a", "offered_mbps": 50.0, "delay_p99_us": 900.0}, 2),
        (
            "wide.csv",
            WIDE,
            {"slice": "1", "carried_mbps": 45.0005, "latency_ms": 1.8, "cpu_limit_mcpu": 500.0, "time_s": 0.0},
            2,
        ),
        ("prom_wide.csv", GRAFANA, {"slice": "upf-1", "carried_mbps": 150.134364}, 2),
        ("netdata.csv", NETDATA, {"time_s": 0.0, "slice": "netdata", "cpu_use_mcpu": 210.0}, 2),
        ("range.json", PROMETHEUS % SERIES, {"slice": "upf-1", "offered_mbps": 150.0}, 4),
        ("iperf3.json", json.dumps(IPERF3), {"carried_mbps": 44.8, "jitter_ms": 0.05}, 3),
        ("ping-slice1.log", PING, {"slice": "slice1", "latency_ms": 1.8}, 3),
        ("legend.csv", LEGEND, {"slice": "upf-1", "carried_mbps": 10.5}, 4),
        ("delays.csv", "slice,delay_us\na,2.96\nb,15.07\n", {"slice": "a", "delay_us": 2.96}, 2),
    ],
)
def test_files_of_each_kind(tmp_path: Path, name: str, text: str, first: dict[str, Any], rows: int) -> None:
    table = table_of(tmp_path, written(tmp_path / name, text))
    assert table.num_rows == rows
    seen = table.to_pylist()[0]
    assert {key: seen[key] for key in first} == pytest.approx(first)


def test_the_same_data_in_three_formats_are_the_same_table(tmp_path: Path) -> None:
    times, pods = [1764000000.0, 1764000030.5], ("upf-1", "upf-2")
    rates = {"upf-1": [150134364.0, 90847434.0], "upf-2": [1.5, 2e9 / 3]}
    rows = [(time, pod, rates[pod][n]) for n, time in enumerate(times) for pod in pods]
    lines = [f"{time},{pod},{rate!r}" for time, pod, rate in rows]
    csv = written(tmp_path / "data.csv", "time,pod,offered_bps\n" + "\n".join(lines) + "\n")
    columns = {"time": [r[0] for r in rows], "pod": [r[1] for r in rows], "offered_bps": [r[2] for r in rows]}
    pq.write_table(
        pa.table(columns | {"time": pa.array([int(1e6 * t) for t in times for _ in pods], pa.timestamp("us"))}),
        tmp_path / "data.parquet",
    )
    series = [
        {
            "metric": {"__name__": "offered_bps", "pod": pod},
            "values": [[t, repr(v)] for t, v in zip(times, own, strict=True)],
        }
        for pod, own in rates.items()
    ]
    answer = written(tmp_path / "data.json", PROMETHEUS % ",".join(map(json.dumps, series)))
    tables = [table_of(tmp_path, path) for path in (csv, tmp_path / "data.parquet", answer)]
    assert tables[0].schema.names == ["time", "time_s", "slice", "offered_mbps"]
    assert tables[0].column("offered_mbps").to_pylist()[0] == 150.134364
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])


def test_several_files_are_joined_by_time(tmp_path: Path) -> None:
    rates = written(
        tmp_path / "rates.csv",
        "time,slice,carried_mbps\n"
        + "".join(f"{1764000000 + n},{s},{10 * n + k}\n" for n in range(4) for k, s in enumerate(("slice1", "slice2"))),
    )
    ping = written(tmp_path / "ping-slice1.log", PING)
    table = table_of(tmp_path, rates, ping)
    assert table.num_rows == 8
    assert table.column("latency_ms").to_pylist() == [None, None, 1.8, None, None, None, 0.5, None]


def test_a_slice_is_looked_for_in_all_files_of_an_entry(tmp_path: Path) -> None:
    files = [written(tmp_path / f"ping-slice{n}.log", PING) for n in (1, 2)]
    proposed = table_of(tmp_path, *files)
    assert proposed.column("slice").to_pylist() == ["ping-slice1", "ping-slice2"] * 3
    edit = ("ping-slice1: ping-slice1, ping-slice2: ping-slice2", "ping-slice1: a, ping-slice2: b")
    assert table_of(tmp_path, *files, edit=edit).column("slice").to_pylist() == ["a", "b"] * 3
    with pytest.raises(DatasetError, match=r"slices\.ping-slice3: not in file; did you mean ping-slice2"):
        table_of(tmp_path, *files, edit=("ping-slice2: ping", "ping-slice3: ping"))


@pytest.mark.parametrize("period", ["period_s: 1", "period_s: 2", ""])
def test_a_kept_word_is_that_of_the_file_that_has_it(tmp_path: Path, period: str) -> None:
    """A file without it is joined where the word is one, and is not where several runs are at the same time."""
    lines = [f"{n},a,{run},{10 * run + n}\n" for run in (1, 2) for n in range(4 * run - 4, 4 * run)]
    rates = written(tmp_path / "rates.csv", "time_s,slice,run,carried_mbps\n" + "".join([*lines, "0,b,1,5\n0,b,2,6\n"]))
    trips = [f"{n}{s},{n + 1}\n" for n in range(8) for s in (",a", ",b")]
    delays = written(tmp_path / "delays.csv", "time_s,slice,rtt_ms\n" + "".join(trips))
    table = table_of(tmp_path, rates, delays, edit=("period_s: 1", period))
    whole = [row for row in table.to_pylist() if row["slice"] == "a"]
    assert [(row["time_s"], row["run"]) for row in whole] == [
        (n, "1" if n < 4 else "2") for n in range(0, 8, 2 if "2" in period else 1)
    ]
    assert all(row["carried_mbps"] is not None and row["latency_ms"] is not None for row in whole)
    unsure = [row for row in table.to_pylist() if row["slice"] == "b" and row["time_s"] == 0]
    mean = 1.5 if "2" in period else 1
    assert [(row["run"], row["latency_ms"]) for row in unsure] == [(None, mean), ("1", None), ("2", None)]


def test_rows_without_times_of_several_files_are_kept_apart(tmp_path: Path) -> None:
    """Columns of a row stay together, also where columns are slices."""
    head = "slice1 rate (Mbit/s),slice2 rate (Mbit/s),slice1 delay (us)\n"
    files = [written(tmp_path / f"d{n}.csv", head + f"{n},{n + 1},{n + 2}\n{n + 4},{n + 5},{n + 6}\n") for n in (1, 2)]
    table = table_of(tmp_path, *files)
    rates = sorted((row["slice"], row["carried_mbps"], row["delay_us"]) for row in table.to_pylist())
    assert [row for row in rates if row[0] == "slice1"] == [("slice1", n, n + 2) for n in (1, 2, 5, 6)]
    assert [row for row in rates if row[0] == "slice2"] == [("slice2", n + 1, None) for n in (1, 2, 5, 6)]


def test_directions_of_a_table_stay_in_its_periods(tmp_path: Path) -> None:
    lines = [f"{n},a,{way},{rate}\n" for n in range(4) for way, rate in (("uplink", 10), ("downlink", 20))]
    source = written(tmp_path / "d.csv", "time_s,slice,direction,carried_mbps\n" + "".join(lines))
    table = table_of(tmp_path, source, edit=("files:", "period_s: 2\nfiles:"))
    assert [(row["direction"], row["carried_mbps"]) for row in table.to_pylist()] == [
        ("downlink", 20), ("uplink", 10),
    ] * 2  # fmt: skip


def test_counters_of_several_series_are_added_up_by_their_increase(tmp_path: Path) -> None:
    """One of them begins anew, which is no increase of the sum."""
    counted = {"n3": (1000, 2000, 3000), "n6": (5_000_000, 0, 500)}
    series = [
        {
            "metric": {"__name__": "rx_bytes_total", "pod": "upf-1", "interface": name},
            "values": [[1764000000 + 10 * n, str(count)] for n, count in enumerate(counts)],
        }
        for name, counts in counted.items()
    ]
    source = written(tmp_path / "range.json", PROMETHEUS % ",".join(map(json.dumps, series)))
    text = "files:\n  - match: range.json\n    format: prometheus\n    slice: pod\n    columns:\n"
    text += "      rx_bytes_total: {quantity: offered_bytes, counter: true, sum: true}\n"
    rates = table_by(tmp_path, text.replace("_bytes,", "_mbps, unit: B,"), source).column("offered_mbps").to_pylist()
    assert rates == [None, None, pytest.approx(8e-6 * (1000 + 500) / 10)]


def test_units_behind_the_numbers_of_a_long_table_count(tmp_path: Path) -> None:
    values = {"delay": "5 ms", "nice": "-1", "limit": "500m", "rate": "2 Gbit/s", "plain": "7"}
    lines = [f"0,a,{name},{value}\n" for name, value in values.items()] + ["1,a,limit,-1\n", "1,a,nice,5\n"]
    source = written(tmp_path / "long.csv", "time_s,slice,metric,value\n" + "".join(lines))
    text = "files:\n  - {match: long.csv, format: csv, time: time_s, time_unit: s, slice: slice, quantity: metric,\n"
    text += (
        "     value: value, columns: {delay: {quantity: delay_us}, nice: {quantity: nice}, plain: {quantity: other},\n"
    )
    text += "     limit: {quantity: cpu_limit_mcpu}, rate: {quantity: carried_mbps, unit: kbit/s}}}\n"
    first, second = table_by(tmp_path, text, source).to_pylist()
    assert (first["delay_us"], first["nice"], first["cpu_limit_mcpu"]) == pytest.approx((5000, -1, 500))
    assert (first["carried_mbps"], first["other"]) == (2000, 7)
    assert (second["nice"], second["cpu_limit_mcpu"]) == (5, float("inf"))


def test_a_list_of_cpus_does_not_make_commas_decimal(tmp_path: Path) -> None:
    text = "time_s;slice;cpus;carried_mbps\n0;a;0,1;12.345\n1;a;0,1;12.5\n"
    table = table_of(tmp_path, written(tmp_path / "d.csv", text))
    assert table.column("carried_mbps").to_pylist() == [12.345, 12.5]


def test_the_warm_up_of_iperf3_is_before_its_intervals(tmp_path: Path) -> None:
    """As iperf3 3.12 writes it: the times of intervals begin anew after the warm-up."""
    first = {"start": 0, "end": 1.000126, "bits_per_second": 1048443.9, "omitted": True, "sender": True}
    start = {"timestamp": {"timesecs": 1795935983}, "test_start": {"protocol": "UDP", "omit": 1, "duration": 3}}
    rest = [first | {"start": n + 1.8e-05, "end": n + 1, "omitted": False} for n in range(3)]
    report = {"start": start, "intervals": [{"streams": [], "sum": own} for own in (first, *rest)]}
    table = table_of(tmp_path, written(tmp_path / "iperf3.json", json.dumps(report)))
    assert table.column("time").to_pylist()[0].timestamp() == pytest.approx(1795935984, abs=0.001)


def test_a_time_that_says_utc_is_not_of_the_maps_zone() -> None:
    berlin = zoneinfo.ZoneInfo("Europe/Berlin")
    assert date_ns("2025-07-25 22:20:21", berlin) == 1753474821 * 10**9
    for text in ("2025-07-25T22:20:21Z", "2025-07-25T22:20:21z", "2025-07-25 22:20:21 UTC", "2025-07-25T22:20:21GMT"):
        assert date_ns(text, berlin) == 1753482021 * 10**9


def test_an_event_of_iperf3_without_a_name_is_passed_over(tmp_path: Path) -> None:
    path = written(tmp_path / "iperf3.json", json.dumps([{"event": []}, {"event": "start", "data": {}}]))
    with pytest.raises(DatasetError, match="no intervals with a rate in it"):
        iperf3_rows(path, json.loads(path.read_text()))


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("d.log", "format: ping, slice: host, columns: {time: {quantity: latency_ms}}", "column 'host'"),
        ("d.log", "format: ping, slice: file, keep: [run], columns: {time: {quantity: latency_ms}}", "column 'run'"),
        (
            "d.json",
            "format: iperf3, slice: host, columns: {bits_per_second: {quantity: offered_mbps, unit: bit/s}}",
            "column 'host'",
        ),
        ("n.json", "format: netdata, slice: a, columns: {user: {quantity: cpu_use_mcpu, unit: '%'}}", "column 'a'"),
        (
            "r.json",
            "format: prometheus, slice: pod, quantity: pod, value: v, columns: {'{pod=\"a\"}': {quantity: x}}",
            "value = 'v'",
        ),
        (
            "d.parquet",
            "format: parquet, time: t, time_zone: Europe/Berln, slice_name: a, columns: {v: {quantity: delay_us}}",
            "time_zone = 'Europe/Berln'",
        ),
    ],
)
def test_fields_that_do_not_fit_a_format_are_refused_in_a_line(
    tmp_path: Path, name: str, fields: str, message: str
) -> None:
    written(tmp_path / "d.log", PING)
    written(tmp_path / "d.json", json.dumps(IPERF3))
    written(tmp_path / "n.json", '{"labels": ["time", "user"], "data": [[1764000000, 5], [1764000001, 6]]}')
    written(tmp_path / "r.json", PROMETHEUS % '{"metric": {"pod": "a"}, "values": [[1764000000, "1"]]}')
    pq.write_table(pa.table({"t": pa.array([0, 10**6], pa.timestamp("us")), "v": [1.0, 2.0]}), tmp_path / "d.parquet")
    written(tmp_path / "map.yaml", f"files:\n  - {{match: {name}, {fields}}}\n")
    refused = slicepilot("dataset", "import", "--map", "map.yaml", name, "--out", "t", cwd=tmp_path)
    assert refused.returncode == 2, refused.stderr
    [line] = refused.stderr.splitlines()
    assert message in line
    assert "expected" in line
