"""Rates from CSV: what is read, and what is refused in one line that names file, line and what to write."""

import numpy as np
import pytest

from slicepilot.configs import ConfigError
from slicepilot.data.traces.csv_rates import read_rates

HEAD = "time_s,slice,mbps\n"
TWO = HEAD + "0,a,1\n0,b,4\n0.5,a,2\n0.5,b,5\n1.0,a,3\n1.0,b,6\n"


def test_a_row_per_bin_and_slice() -> None:
    traces = read_rates(TWO.encode(), "file")
    assert list(traces["a"].edges_s) == [0.0, 0.5, 1.0, 1.5]
    assert list(traces["b"].mbps) == [4.0, 5.0, 6.0]
    assert traces["b"].duration_s == 1.5
    assert traces["b"].mean_mbps == 5.0
    np.testing.assert_allclose(traces["b"].mbit_before(np.array([0.0, 0.25, 0.5, 1.5])), [0.0, 1.0, 2.0, 7.5])
    assert traces["a"].faster(5.0).duration_s == pytest.approx(0.3)


@pytest.mark.parametrize(
    "text",
    [
        TWO.replace("\n", "\r\n"),
        "\ufeff" + TWO,
        TWO.replace("time_s", "Timestamp").replace("mbps", "offered_mbps"),
        "note,mbps,slice,time\n"
        + "".join(f"x,{r[2]},{r[1]},{r[0]}\n" for r in (row.split(",") for row in TWO.split()[1:])),
        HEAD + "\n".join(f"{1.7e9 + float(t)},{s},{m}" for t, s, m in (row.split(",") for row in TWO.split()[1:])),
        "time,slice,metric,value\n"
        + "\n".join(
            f"{t},{s},offered_mbps,{m}\n{t},{s},delay_p99_us,nan"
            for t, s, m in (row.split(",") for row in TWO.split()[1:])
        ),
    ],
)
def test_the_forms_that_tables_have(text: str) -> None:
    traces = read_rates(text.encode(), "file")
    np.testing.assert_allclose(traces["a"].edges_s, [0.0, 0.5, 1.0, 1.5], atol=1e-6)
    assert list(traces["b"].mbps) == [4.0, 5.0, 6.0]


def test_times_as_iso_8601_over_midnight_and_zones() -> None:
    rows = ["2026-02-28T23:59:00Z,a,1", "2026-03-01T01:00:00+01:00,a,2", "2026-03-01 00:01:00,a,3"]
    trace = read_rates((HEAD + "\n".join(rows)).encode(), "file")["a"]
    assert list(trace.edges_s) == [0.0, 60.0, 120.0, 180.0]


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ("", "file: no rows"),
        ("0,a,1\n1,a,1\n3,a,1\n4,a,1\n", "file, line 4: 'a' has 2 s since its row in line 3; expected a row every 1 s"),
        ("0,a,1\n1,a,-0.5\n", "file, line 3: Mbit/s = '-0.5'; expected a number from 0"),
        ("0,a,1\n1,a,nan\n", "line 3: Mbit/s = 'nan'"),
        ("0,a,1\n1,a,\n", "line 3: Mbit/s = ''"),
        ("0,a,1\n1,a,inf\n", "line 3: Mbit/s = 'inf'"),
        ("0,a,1\n1,a,1e7\n", "line 3: Mbit/s = '1e7'; expected a number from 0 to 1000000"),
        ("0,a,1\nnan,a,1\n", "line 3: time = nan"),
        ("0,a,1\nnoon,a,1\n", "line 3: time = 'noon'; expected seconds or ISO 8601"),
        ("1,a,1\n0,a,1\n", "line 3: time of 'a' is not after that of line 2; expected rising times"),
        ("0,a,1\n0,a,1\n", "line 3: time of 'a' is not after that of line 2"),
        ("0,a,1\n1,,1\n", "line 3: slice = ''; expected a name"),
        ("0,a\x1b[2J,1\n", "line 2: slice = 'a?[2J': control characters"),
        ("0,a,1\n1,a\n", "line 3: 2 fields; expected 3"),
        ("0,a,1\n", "'a' has a single row; expected at least two"),
        ("0,a,1\n1,a,1\n2,a,1\n1,b,1\n2,b,1\n", "'b' has rows from 1 to 3 s, the file from 0 to 3 s"),
        ("0,a,1\n1,a,1\n2,a,1\n3,a,1\n0,b,1\n1,b,1\n", "'b' has rows from 0 to 2 s, the file from 0 to 4 s"),
        ('0,a,1\n"1,a,1\n', "expected CSV"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(rows: str, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_rates((HEAD + rows).encode(), "file")
    assert error in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"time_s,mbps\n0,1\n", "no column 'slice' in its first line (time_s, mbps)"),
        (b"a,slice,mbps\n", "no column 'time_s'"),
        (b"time,slice,pps\n", "no column 'mbps'"),
        (b"", "no column 'time_s'"),
        (b"\xff\xfe\x00", "no UTF-8 text at byte 0"),
        (b"x" * 200_000, "field larger than field limit"),
    ],
)
def test_files_that_are_no_table_of_rates(content: bytes, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_rates(content, "file")
    assert error in str(raised.value)
    assert len(str(raised.value)) < 300
