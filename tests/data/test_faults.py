import json
import pickle
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicepilot.configs import ConfigError
from slicepilot.data.faults import EXAMPLES, MEANINGS, SHOWN, DatasetError, Fault, FaultKind, Faults, shown


def test_counts_are_exact_and_the_first_of_each_kind_are_kept() -> None:
    faults = Faults()
    assert not faults
    for line in range(2, 102):
        faults.add("number", line, "delay_us", f"x{line}")
    faults.add("clock", 7, "ts_tx_ns", 5, left_out=False)
    assert faults
    assert faults.counts == {"number": 100, "clock": 1}
    assert (faults.total, faults.left_out) == (101, 100)
    assert faults.examples("number") == [Fault(n, "number", "delay_us", f"x{n}") for n in range(2, 2 + EXAMPLES)]
    assert faults.examples("unit") == []
    lines = [fault.line for fault in faults.examples()]
    assert lines == sorted(lines)


@given(st.lists(st.tuples(st.sampled_from(list(MEANINGS)), st.lists(st.integers(1, 10**12), max_size=30)), max_size=20))
def test_many_at_once_are_the_same_as_one_by_one(batches: list[tuple[FaultKind, list[int]]]) -> None:
    one_by_one, at_once = Faults(), Faults()
    for kind, lines in batches:
        for line in lines:
            one_by_one.add(kind, line, "column", line * 2)
        at_once.add_many(kind, np.asarray(lines, np.int64), "column", [line * 2 for line in lines])
    assert one_by_one.to_json() == at_once.to_json()
    for kind in at_once.counts:
        noted = sorted(line for own, lines in batches if own == kind for line in lines)
        assert [fault.line for fault in at_once.examples(kind)] == noted[:EXAMPLES]
    assert at_once.total == at_once.left_out == sum(len(lines) for _, lines in batches)


def test_descriptions_are_one_line_for_each_kind() -> None:
    faults = Faults()
    faults.add_many("columns", [9, 3], None, [b"a,b\n\x00c", "d"])
    faults.add_many("grid", np.arange(4, 1204))
    columns, grid = faults.describe()
    assert columns == "columns: 2 rows with too many or too few fields (line 3: 'd'; line 9: 'a,b\\n\\x00c')"
    assert grid == "grid: 1,200 times between the steps of the measurement (line 4; line 5; line 6; ...)"


def test_every_kind_of_fault_has_a_meaning() -> None:
    # That readers note no other kinds than `FaultKind` has is what type checkers see to.
    assert list(MEANINGS) == list(get_args(FaultKind))
    faults = Faults()
    for kind in MEANINGS:
        faults.add(kind, 1)
    assert faults.describe() == [f"{kind}: 1 {meaning} (line 1)" for kind, meaning in MEANINGS.items()]


def test_json_holds_everything_and_is_strict() -> None:
    faults = Faults()
    faults.add("range", 3, "delay_us", float("nan"))
    text = json.dumps(faults.to_json(), allow_nan=False)
    first = {"line": 3, "column": "delay_us", "value": "nan"}
    assert json.loads(text) == {"total": 1, "left_out": 1, "kinds": {"range": {"count": 1, "first": [first]}}}


@given(st.one_of(st.text(), st.binary(), st.integers(), st.floats()))
def test_shown_values_are_short_and_printable(value: object) -> None:
    text = shown(value)
    assert len(text) <= SHOWN
    assert text.isprintable()


@pytest.mark.parametrize(
    ("line", "expected"), [(None, "f.csv: no; accepted: yes"), (4, "f.csv, line 4: no; accepted: yes")]
)
def test_errors_name_file_and_line(line: int | None, expected: str) -> None:
    error = DatasetError.at("f.csv", "no; accepted: yes", line)
    assert isinstance(error, ConfigError)
    assert str(error) == expected
    assert str(pickle.loads(pickle.dumps(error))) == expected
