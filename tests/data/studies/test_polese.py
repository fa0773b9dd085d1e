from pathlib import Path
from typing import Any

import pytest

from slicepilot.data.faults import DatasetError, Faults
from slicepilot.data.studies.kinds import detected
from slicepilot.data.studies.polese.base_stations import SCHEMA, read_base_station

SAMPLE = Path(__file__).parents[1] / "samples" / "polese" / "rome_static_medium" / "sched0" / "tr0" / "exp1" / "bs1"
HEADER = "time,nof_ue,dl_brate,ul_brate\n"


def read(path: Path) -> tuple[list[dict[str, Any]], Faults]:
    faults = Faults()
    stream = read_base_station(path, faults)
    assert stream.schema == SCHEMA
    return [row for batch in stream.batches for row in batch.to_pylist()], faults


def test_a_file_as_released_comes_through_whole() -> None:
    path = SAMPLE / "bs1.csv"
    assert detected(path).name == "polese-base-station"
    rows, faults = read(path)
    assert not faults
    given = [line.split(",") for line in path.read_text().splitlines()[1:]]
    assert [round(1e3 * row["time"].timestamp()) for row in rows] == [int(time) for time, *_ in given]
    assert [row["attached_ues"] for row in rows] == [int(ues) for _, ues, *_ in given]
    assert [row["downlink_mbps"] for row in rows] == pytest.approx([1e-6 * float(rate) for *_, rate, _ in given])
    assert [row["uplink_mbps"] for row in rows] == pytest.approx([1e-6 * float(rate) for *_, rate in given])


def test_what_is_wrong_is_named_by_line(tmp_path: Path) -> None:
    path = tmp_path / "bs2.csv"
    path.write_text(HEADER + "1000,1,8.0,0.0\n1250,-1,8.0,0.0\n1500,2,x,0.0\n1750,2,8.0\n900,2,8.0,1.0\n")
    rows, faults = read(path)
    assert [row["attached_ues"] for row in rows] == [1, 2]
    assert [(fault.line, fault.kind, fault.column) for fault in faults.examples()] == [
        (3, "range", "nof_ue"),
        (4, "number", "dl_brate"),
        (5, "columns", None),
        (6, "clock", "time"),
    ]
    assert faults.left_out == 3


def test_a_file_without_a_good_row_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bs3.csv"
    path.write_text(HEADER + "1000,-1,8.0,0.0\n")
    with pytest.raises(DatasetError, match="none of its 1 rows can be used: range"):
        read(path)
