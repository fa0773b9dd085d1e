import csv
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from slicepilot.data.csv import blocks as csv_blocks
from slicepilot.data.faults import EXAMPLES, DatasetError, Faults
from slicepilot.data.studies.mishra import checks as mishra_checks
from slicepilot.data.studies.mishra.checks import REORDERED_NS
from slicepilot.data.studies.mishra.tables import FORWARDING, FORWARDING_COLUMNS, PFCP, forwarding_batches, pfcp_batches

START_NS = 7_000_000_000_000
Row = dict[str, Any]


def row(sent_ns: int, delay_us: float = 21.5, **others: Any) -> Row:
    """A row of a forwarding file in order."""
    received_ns = sent_ns - round(1e3 * delay_us)
    usual = {"slice": "mMTC", "pkt_len": 66, "ts_rx_ns": received_ns, "ts_tx_ns": sent_ns, "netif_rx": "eth0"}
    return {"delay_us": delay_us} | usual | others


def rows_at(count: int, every_ns: int = 50_000) -> list[Row]:
    return [row(START_NS + n * every_ns, 20 + n % 7 + 0.125) for n in range(count)]


def written(path: Path, rows: list[Row], columns: tuple[str, ...] = FORWARDING_COLUMNS) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path


def tidy(item: Row) -> Row:
    return dict(zip(FORWARDING.names, (item[name] for name in FORWARDING_COLUMNS), strict=True))


def read(path: Path) -> tuple[list[Row], Faults]:
    faults = Faults()
    result = []
    for batch in forwarding_batches(path, faults):
        assert batch.schema == FORWARDING
        result += batch.to_pylist()
    return result, faults


def noted(faults: Faults) -> list[tuple[int, str, str | None]]:
    return [(fault.line, fault.kind, fault.column) for fault in faults.examples()]


def test_a_file_with_the_newest_row_first_is_sorted_and_noted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_at(30_000)  # more than a block
    result, faults = read(written(tmp_path / "f.csv", rows[::-1]))
    assert result == list(map(tidy, rows))
    assert faults.total == 0
    assert faults.notes == ["rows come newest first: sorted by time"]
    monkeypatch.setattr(csv_blocks, "MOST_SORTED_BYTES", 1000)
    with pytest.raises(DatasetError, match=r"the newest row is first in .* GB; expected the oldest first"):
        read(tmp_path / "f.csv")


def test_columns_in_the_order_of_the_published_script_and_slices_by_number(tmp_path: Path) -> None:
    columns = ("ts_rx_ns", "ts_tx_ns", "delay_us", "pkt_len", "netif_rx", "slice")
    rows = [row(START_NS + n, slice=str(n % 2), netif_rx="2") for n in range(4)]
    result, faults = read(written(tmp_path / "f.csv", rows, columns))
    assert result == [tidy(item) for item in rows]
    assert not faults


@pytest.mark.parametrize(
    ("change", "kind", "column"),
    [
        ({"delay_us": -21.5}, "range", "delay_us"),
        ({"pkt_len": 0}, "range", "pkt_len"),
        ({"pkt_len": 70_000}, "range", "pkt_len"),
        ({"ts_rx_ns": -5}, "range", "ts_rx_ns"),
        ({"ts_tx_ns": -5, "ts_rx_ns": 0}, "range", "ts_tx_ns"),
        ({"delay_us": 21500.0}, "unit", "delay_us"),
        ({"delay_us": 0.0215}, "unit", "delay_us"),
        ({"delay_us": 25.0}, "mismatch", "delay_us"),
        ({"ts_rx_ns": START_NS * 2}, "mismatch", "delay_us"),
    ],
)
def test_a_bad_row_is_left_out_and_named(tmp_path: Path, change: Row, kind: str, column: str) -> None:
    rows = rows_at(50)
    rows[20] = row(rows[20]["ts_tx_ns"]) | change
    result, faults = read(written(tmp_path / "f.csv", rows))
    assert noted(faults) == [(22, kind, column)]
    assert faults.left_out == 1
    assert result == [tidy(item) for n, item in enumerate(rows) if n != 20]


def test_delays_may_be_rounded(tmp_path: Path) -> None:
    rows = [row(START_NS + n * 10**7, delay) for n, delay in enumerate((93.4, 93.5, 0.9, 1234567.0, 0.0))]
    for item, text in zip(rows, ("93", "94", "0", "1.23457e+06", "0"), strict=True):
        item["delay_us"] = text
    result, faults = read(written(tmp_path / "f.csv", rows))
    assert not faults
    assert [item["delay_us"] for item in result] == [93, 94, 0, 1.23457e6, 0]


@pytest.mark.parametrize(("factor", "name"), [(1e3, "nanoseconds"), (1e-3, "milliseconds"), (1e-6, "seconds")])
@pytest.mark.parametrize(("count", "share"), [(1, 1.0), (400, 0.5), (20_000, 0.02)])
def test_a_file_in_another_unit_is_refused(tmp_path: Path, factor: float, name: str, count: int, share: float) -> None:
    rows = rows_at(count)
    for n in range(0, count, round(1 / share)):
        rows[n]["delay_us"] = round(rows[n]["delay_us"] * factor, 9)
    with pytest.raises(DatasetError, match=f"delay_us = {name} in .* expected microseconds") as caught:
        read(written(tmp_path / "f.csv", rows))
    first = rows_at(1)[0]["delay_us"]
    assert f"line 2 has {first * factor:g} where {first:g} passed" in str(caught.value)
    assert f"{factor:g} times what the clock says" in str(caught.value)
    # A few such rows are faults.
    rows = rows_at(1000)
    for n in range(0, 1000, 20):
        rows[n]["delay_us"] *= factor
    result, faults = read(written(tmp_path / "few.csv", rows))
    assert faults.counts == {"unit": 50}
    assert len(result) == 950


def test_the_clock_may_go_back_a_little_and_not_more(tmp_path: Path) -> None:
    rows = rows_at(200)
    rows[3], rows[90] = rows[90], rows[3]
    latest_ns = rows[99]["ts_tx_ns"]
    rows.insert(100, row(latest_ns - REORDERED_NS))
    result, faults = read(written(tmp_path / "f.csv", rows))
    assert not faults
    assert len(result) == 201
    rows[100] = row(latest_ns - REORDERED_NS - 1)
    result, faults = read(written(tmp_path / "f.csv", rows))
    assert noted(faults) == [(102, "clock", "ts_tx_ns")]
    assert (faults.left_out, len(result)) == (0, 201)


@pytest.mark.parametrize("block_bytes", [400, 2000, 1 << 20])
def test_rows_that_occur_twice_are_left_out_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    defaults = csv_blocks.read_blocks.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "block_bytes", block_bytes)
    rows = rows_at(300)
    tied = [row(rows[40]["ts_tx_ns"], 3.0, slice=name) for name in ("eMBB", "URLLC")]
    twice = [*rows[:41], *tied, *rows[41:200], rows[60], rows[61], tied[0], *rows[200:], rows[299], rows[299]]
    result, faults = read(written(tmp_path / "f.csv", twice))
    assert faults.counts == {"duplicate": 5}
    assert [fault.line for fault in faults.examples()] == [204, 205, 206, 307, 308]
    assert result == [tidy(item) for item in (*rows[:41], *tied, *rows[41:])]


def judged(rows: list[Row]) -> list[str | None]:
    """What is wrong with each row, one by one."""
    kinds: list[str | None] = []
    latest, before = -1, []
    for item in rows:
        kind = None
        passed_us = (item["ts_tx_ns"] - item["ts_rx_ns"]) / 1e3
        if item["delay_us"] < 0 or not 1 <= item["pkt_len"] <= 65_549 or min(item["ts_rx_ns"], item["ts_tx_ns"]) < 0:
            kind = "range"
        elif abs(item["delay_us"] - passed_us) > 1 + 1e-5 * abs(passed_us):
            kind = "mismatch"
        else:
            behind = item["ts_tx_ns"] < latest - REORDERED_NS
            kind = "clock" if behind else "duplicate" if item in before else None
            latest = max(latest, item["ts_tx_ns"])
            before.append(item)
        kinds.append(kind)
    return kinds


small_rows = st.builds(
    row,
    st.integers(0, 12).map(lambda n: START_NS + n * REORDERED_NS // 4) | st.just(-(10**6)),
    st.sampled_from([0.0, 2.5, 40.0, -40.0]),
    slice=st.sampled_from(["eMBB", "mMTC"]),
    pkt_len=st.sampled_from([66, 0, 1500]),
) | st.integers(0, 8).map(lambda n: row(START_NS + n * REORDERED_NS // 4) | {"delay_us": 90.0})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(small_rows, min_size=1, max_size=40))
def test_all_checks_together_are_those_of_one_row_after_the_other(tmp_path: Path, rows: list[Row]) -> None:
    rows = [row(START_NS), *rows]
    kinds = judged(rows)
    result, faults = read(written(tmp_path / "f.csv", rows))
    assume(not faults.notes)  # the newest row first, by a clock that only steps back: such files are sorted
    assert faults.counts == Counter(filter(None, kinds))
    for kind in faults.counts:
        lines = [n for n, own in enumerate(kinds, 2) if own == kind]
        assert [fault.line for fault in faults.examples(kind)] == lines[:EXAMPLES]
    assert result == [tidy(item) for item, kind in zip(rows, kinds, strict=True) if kind in (None, "clock")]


def test_a_file_without_a_good_row_is_refused(tmp_path: Path) -> None:
    rows = [item | {"delay_us": 3 * item["delay_us"]} for item in rows_at(5)]
    with pytest.raises(DatasetError, match="none of its 5 rows can be used: mismatch: 5 rows whose figures contradict"):
        read(written(tmp_path / "f.csv", rows))
    path = tmp_path / "p.csv"
    path.write_text("pfcp_type,latency_us\na,-1\n")
    with pytest.raises(DatasetError, match="none of its 1 rows can be used"):
        list(pfcp_batches(path, Faults()))


@pytest.mark.parametrize("kept_rows", [10, 1000])
def test_no_more_than_some_rows_are_kept_to_know_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_rows: int
) -> None:
    monkeypatch.setattr(mishra_checks, "RECENT_ROWS", kept_rows)
    defaults = csv_blocks.read_blocks.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "block_bytes", 1000)
    rows = [row(START_NS, 1 + n / 8) for n in range(200)]
    _, faults = read(written(tmp_path / "f.csv", [*rows, rows[0], rows[199]]))
    assert faults.counts == {"duplicate": 1 if kept_rows == 10 else 2}


def test_too_many_slices_are_something_else(tmp_path: Path) -> None:
    rows = [item | {"slice": f"10.0.{n // 256}.{n % 256}"} for n, item in enumerate(rows_at(1100))]
    with pytest.raises(DatasetError, match=re.escape("slice: more than 1024 different names")):
        read(written(tmp_path / "f.csv", rows))


def test_pfcp_files(tmp_path: Path) -> None:
    path = tmp_path / "o1_pfcp_exp_light.csv"
    path.write_text("latency_us,pfcp_type\n600.25,establishment\n-1,modification\n125,modification\nx,y\n")
    faults = Faults()
    [batch] = pfcp_batches(path, faults)
    assert batch.schema == PFCP
    assert batch.to_pylist() == [
        {"message_type": "establishment", "latency_us": 600.25},
        {"message_type": "modification", "latency_us": 125.0},
    ]
    assert noted(faults) == [(3, "range", "latency_us"), (5, "number", "latency_us")]
