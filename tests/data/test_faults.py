import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slicepilot.data.faults import EXAMPLES, MEANINGS, SHOWN, Fault, FaultKind, Faults, shown


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


@given(st.one_of(st.text(), st.binary(), st.integers(), st.floats()))
def test_shown_values_are_short_and_printable(value: object) -> None:
    text = shown(value)
    assert len(text) <= SHOWN
    assert text.isprintable()
