"""Lines that Arrow refuses together are judged as Arrow judges each of them alone."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicepilot.data.arrow import values_of
from slicepilot.data.csv.layout import Layout, Rows
from slicepilot.data.csv.sifting import sift

NAME = pa.dictionary(pa.int32(), pa.string())
TYPES = {"name": NAME, "value": pa.float64(), "size": pa.int32(), "time": pa.int64(), "text": pa.string()}

numbers = st.sampled_from(
    ["0", "7", "-3", "007", "-0", "12.5", "-0.0", ".5", "5.", "1e5", "+1", "", " 1", "1 ", "x", "é", "1_0", "0x10",
     "nan", "inf", "-", ".", "e5", "1e", "1e400", "-1e400", "1e-400", "2147483647", "2147483648", "-2147483648",
     "-2147483649", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809",
     "0x7fffffff", "0xffffffff", "0x1ffffffff", "00000000000000000000000000007", "9" * 400, "0" * 5000 + "7", "1\t",
     "--1", "-0x1", "1E+05", "1.5e3.2", "0." + "0" * 400 + "1", "\x00", "1\x00"]
) | st.from_regex(r"[-+]?[0-9]{1,20}(\.[0-9]{0,20})?([eE][-+]?[0-9]{1,3})?", fullmatch=True)  # fmt: skip
names = st.sampled_from(
    ["a", "", " b", "é", '"a"', '"a,b"', '"a""b"', '"a"b', 'a"b', '"a', '""', '"', '"""', '"a" ', "\ufeff"]
)
lines_of_fields = st.tuples(names, numbers, numbers, numbers, names).map(lambda fields: ",".join(fields).encode())
any_line = lines_of_fields | st.text('a1",\r é.', max_size=12).map(str.encode) | st.binary(max_size=12)


def alone(line: bytes, nullable: bool) -> list[Any] | None:
    """What Arrow's reader makes of one line, None where it refuses it."""
    if b"\r" in line or not line:
        return None
    layout = Layout(TYPES, nullable=nullable)
    try:
        # Between two others, or Arrow would swallow a byte order mark and forgive a quote that is not closed.
        table = layout.read(b"a,1,1,1,a\n" + line + b"\na,1,1,1,a\n", TYPES, quoted=b'"' in line)
    except pa.ArrowInvalid:
        return None
    if table.num_rows != 3:
        return None
    value = table.column("value")
    if value[1].is_valid and not np.isfinite(values_of(value)[1]):
        return None
    return [column[1].as_py() for column in table.columns]


@given(lines=st.lists(any_line, min_size=1, max_size=8), nullable=st.booleans(), last_end=st.booleans())
def test_each_line_is_judged_as_arrow_judges_it_alone(lines: list[bytes], nullable: bool, last_end: bool) -> None:
    lines = b"\n".join(lines).split(b"\n")
    text = b"\n".join(lines) + (b"\n" if last_end else b"")
    if not text:
        return
    rows = sift(Layout(TYPES, nullable=nullable), text)
    stripped = [line.removesuffix(b"\r") for line in lines]
    expected = {n: found for n, line in enumerate(stripped) if (found := alone(line, nullable)) is not None}
    assert rows.lines is not None
    assert rows.lines.tolist() == list(expected)
    for row, found in zip(rows.table.to_pylist(), expected.values(), strict=True):
        assert list(map(repr, row.values())) == list(map(repr, found))
    assert rows.num_lines == len(lines) - (not last_end and not lines[-1])
    assert bad_lines(rows) == [n for n, line in enumerate(stripped) if line and n not in expected]


def bad_lines(rows: Rows) -> list[int]:
    return sorted(int(line) for bad in rows.bad for line in bad.lines)


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int64(), pa.float32()])
@given(texts=st.lists(numbers | st.integers(-(2**65), 2**65).map(str), min_size=1, max_size=8))
def test_numbers_of_every_type_are_judged_so(kind: Any, texts: list[str]) -> None:
    types = {"number": kind, "name": pa.string()}
    rows = sift(Layout(types), "".join(f"{text},a\n" for text in texts).encode())
    expected = {}
    for n, text in enumerate(texts):
        try:
            table = Layout(types).read(f"{text},a\n".encode(), types, quoted=False)
        except pa.ArrowInvalid:
            continue
        [value] = values_of(table.column("number"))
        if np.isfinite(value):
            expected[n] = value
    assert rows.lines is not None
    assert rows.lines.tolist() == list(expected)
    assert values_of(rows.table.column("number")).tolist() == list(expected.values())
