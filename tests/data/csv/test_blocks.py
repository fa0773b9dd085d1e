import bz2
import csv
import gzip
import io
import lzma
import re
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slicepilot.configs.text import has_controls
from slicepilot.data.csv.blocks import arrow_table, read_blocks
from slicepilot.data.faults import DatasetError, Faults, shown
from tests.effort import examples

NAME = pa.dictionary(pa.int32(), pa.string())
TYPES = {"name": NAME, "value": pa.float64(), "size": pa.int32(), "time": pa.int64()}
HEADER = b"name,value,size,time\n"
SMALL = 300  # bytes of a block, so that a few lines are many blocks
same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(60))


@dataclass
class Read:
    """What came of a file."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    faults: Faults = field(default_factory=Faults)


def read(path: Path, types: dict[str, Any] | None = None, **options: Any) -> Read:
    result = Read()
    for block in read_blocks(path, types or TYPES, result.faults, **options):
        assert len(block) == block.table.num_rows > 0
        assert all(column.num_chunks == 1 for column in block.table.columns)
        result.rows += block.table.to_pylist()
        result.lines += block.lines().tolist()
    return result


def written(folder: Path, text: bytes, name: str = "f.csv") -> Path:
    path = folder / name
    path.write_bytes(text)
    return path


names = st.text("abcdefgh-_. é", max_size=9)
good_rows = st.tuples(
    names,
    st.floats(allow_nan=False, allow_infinity=False, width=32) | st.decimals(-(10**6), 10**6, places=3).map(float),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1),
)


@same_folder
@given(
    rows=st.lists(good_rows, min_size=1, max_size=40),
    end=st.sampled_from(["\n", "\r\n"]),
    last_end=st.booleans(),
    mark=st.booleans(),
    packed=st.booleans(),
    block_bytes=st.sampled_from([SMALL, 1000, 1 << 20]),
)
def test_good_rows_come_through_unchanged(
    tmp_path: Path,
    rows: list[tuple[str, float, int, int]],
    end: str,
    last_end: bool,
    mark: bool,
    packed: bool,
    block_bytes: int,
) -> None:
    text = "name,value,size,time" + end + end.join(",".join(map(str, row)) for row in rows) + (end if last_end else "")
    data = (b"\xef\xbb\xbf" if mark else b"") + text.encode()
    path = written(tmp_path, gzip.compress(data) if packed else data)
    result = read(path, block_bytes=block_bytes)
    assert result.rows == [dict(zip(TYPES, row, strict=True)) for row in rows]
    assert result.lines == list(range(2, len(rows) + 2))
    noted = [(fault.line, fault.kind, fault.value) for fault in result.faults.examples()]
    # What has no line end may have been cut off in its last field.
    assert noted == ([] if last_end else [(len(rows) + 1, "truncated", shown(text.rpartition(end)[2]))])
    assert result.faults.left_out == 0


FIELDS = {
    "name": ["a", "mMTC", "", " b c", "0", "long" * 40],
    "value": ["1", "-0.5", "12.375", " 7 ", "1e3", "123456789.123456789", "", "x", "nan", "inf", "1.2.3", "--1", "1,5"],
    "size": ["0", "-7", "2147483647", " 12", "2147483648", "", "1.0", "x", "99999999999999999999"],
    "time": ["1", "-9223372036854775808", "7000000015432", "9223372036854775808", "", "1e5", "1 2"],
}
GOOD = {
    "value": re.compile(r"[ \t]*-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?[ \t]*"),
    "size": re.compile(r"[ \t]*-?[0-9]+(\.0)?[ \t]*"),
    "time": re.compile(r"[ \t]*-?[0-9]+(e5)?[ \t]*"),
}
LIMITS = {"size": 2**31, "time": 2**63}


def fault_of(fields: Sequence[str]) -> tuple[str, str | None] | None:
    """What is wrong with a row, as a person would judge it."""
    if len(fields) != len(TYPES):
        return "columns", None
    for name, text in zip(TYPES, fields, strict=True):
        if name in GOOD and not GOOD[name].fullmatch(text):
            return "number", name
        if name in LIMITS and not -LIMITS[name] <= int(Fraction(text)) < LIMITS[name]:
            return "number", name
    return None


any_rows = st.tuples(*(st.sampled_from(choices) for choices in FIELDS.values()))
any_lines = any_rows.map(",".join) | st.just("") | st.sampled_from(["a", ",,,,", "a,1,2,3,4", "#", ",,,"])


@same_folder
@given(
    good=st.lists(good_rows.map(lambda row: ",".join(map(str, row))), max_size=30),
    others=st.lists(st.tuples(st.integers(0, 30), any_lines), max_size=12),
    last_end=st.booleans(),
    block_bytes=st.sampled_from([1000, 2000, 1 << 20]),
)
def test_bad_rows_are_named_and_the_rest_is_kept(
    tmp_path: Path, good: list[str], others: list[tuple[int, str]], last_end: bool, block_bytes: int
) -> None:
    lines = ["first,1.5,2,3", *good]
    for offset, line in others:
        lines.insert(1 + offset, line)
    text = "\n".join(lines) + ("\n" if last_end else "")
    result = read(written(tmp_path, HEADER + text.encode()), block_bytes=block_bytes)
    rows = {n: line.split(",") for n, line in enumerate(lines, 2) if line}
    wrong = {n: fault for n, fields in rows.items() if (fault := fault_of(fields))}
    if not last_end and len(lines) + 1 in wrong:
        wrong[len(lines) + 1] = ("truncated", wrong[len(lines) + 1][1])
    assert result.lines == [n for n in rows if n not in wrong]
    assert [row["name"] for row in result.rows] == [rows[n][0] for n in result.lines]
    assert [row["time"] for row in result.rows] == [int(Fraction(rows[n][3])) for n in result.lines]
    assert [row["value"] for row in result.rows] == [float(rows[n][1]) for n in result.lines]
    assert result.faults.left_out == len(wrong)
    if not last_end and len(lines) + 1 in result.lines:
        wrong[len(lines) + 1] = ("truncated", None)
    assert {f.line: (f.kind, f.column) for f in result.faults.examples()} == wrong
    assert result.faults.total == len(wrong)


@same_folder
@given(data=st.binary(max_size=400), headed=st.booleans())
def test_any_bytes_give_rows_faults_or_a_clear_error(tmp_path: Path, data: bytes, headed: bool) -> None:
    check_accounts(written(tmp_path, (HEADER if headed else b"") + data), data if headed else None)


VALID = HEADER + b"".join(b"mMTC,%d.%03d,%d,%d\n" % (n % 50, n, n * 7, 7 * 10**12 + n) for n in range(60))
bits = st.sampled_from([b"", b",", b"\n", b'"', b"\r", b"\x00", b"\xff", b"\xc3", b"e", b"-", b".", b" ", b"9" * 30])


@same_folder
@given(
    changes=st.lists(st.tuples(st.integers(len(HEADER), len(VALID)), st.integers(0, 3), bits), max_size=6),
    packed=st.booleans(),
    cut=st.integers(0, 40),
)
def test_damaged_files_are_accounted_for(
    tmp_path: Path, changes: list[tuple[int, int, bytes]], packed: bool, cut: int
) -> None:
    text = VALID
    for at, removed, added in changes:
        text = text[:at] + added + text[at + removed :]
    if packed:
        data = gzip.compress(text)
        check_accounts(written(tmp_path, data[: len(data) - cut]), text if not cut else None)
    else:
        check_accounts(written(tmp_path, text[: len(text) - cut]), text[len(HEADER) : len(text) - cut])


def check_accounts(path: Path, body: bytes | None) -> None:
    """Whatever there is in a file, each of its lines is a row or a fault, or the file is refused in one line."""
    result, refused = Read(), ""
    try:
        for block in read_blocks(path, TYPES, result.faults, block_bytes=700):
            result.lines += block.lines().tolist()
    except DatasetError as error:
        refused = str(error)
    if refused:
        assert str(path) in refused
        assert "\n" not in refused
        return
    assert result.lines == sorted(set(result.lines))
    last = {fault.line for fault in result.faults.examples("truncated")}
    assert not {fault.line for fault in result.faults.examples()} & set(result.lines) - last
    assert result.faults.total - result.faults.left_out == len(last & set(result.lines))
    if body is not None and not path.read_bytes().startswith(b"\x1f\x8b"):
        lines = [n for n, line in enumerate(body.split(b"\n"), 2) if line.removesuffix(b"\r")]
        assert len(result.lines) + result.faults.left_out == len(lines)
        assert set(result.lines) <= set(lines)


numbers = st.sampled_from(
    ["0", "7", "-3", "007", "-0", "12.5", "-0.0", ".5", "5.", "1e5", "+1", "", " 1", "1 ", "x", "é", "1_0", "0x10",
     "nan", "inf", "-", ".", "e5", "1e", "1e400", "-1e400", "1e-400", "2147483647", "2147483648", "-2147483648",
     "-2147483649", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809",
     "0x7fffffff", "0xffffffff", "0x1ffffffff", "00000000000000000000000000007", "9" * 400, "0" * 5000 + "7", "1\t",
     "--1", "-0x1", "1E+05", "1.5e3.2", "0." + "0" * 400 + "1", "\x00", "1\x00"]
) | st.from_regex(r"[-+]?[0-9]{1,20}(\.[0-9]{0,20})?([eE][-+]?[0-9]{1,3})?", fullmatch=True)  # fmt: skip
quoted_names = st.sampled_from(
    ["a", "", " b", "é", '"a"', '"a,b"', '"a""b"', '"a"b', 'a"b', '"a', '""', '"', '"""', '"a" ', "\ufeff"]
)


def with_whole_numbers(line: bytes) -> bytes:
    """A line whose last two fields are in digits where they are whole numbers in another form."""
    name, *rest = line.rsplit(b",", 3)
    for position, field_text in enumerate(rest[1:], 1):
        text = field_text.strip(b" \t")
        if re.fullmatch(rb"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,3})?", text) and len(text) < 500:
            number = Fraction(text.decode())
            if number.denominator == 1 and abs(number) < 1 << 70:
                rest[position] = b"%d" % number.numerator
    return b",".join([name, *rest])


@same_folder
@given(
    line=st.tuples(quoted_names, numbers, numbers, numbers).map(",".join).map(str.encode) | st.binary(max_size=12),
    nullable=st.booleans(),
)
def test_a_line_beside_a_bad_one_is_judged_as_arrow_judges_it_alone(
    tmp_path: Path, line: bytes, nullable: bool
) -> None:
    """A bad line makes Arrow refuse the block, so that all of its lines are judged one by one."""
    if b"\n" in line or b"\r" in line or not line:
        return
    good = b"a,1,1,1\n"
    result = read(written(tmp_path, HEADER + good + line + b"\n" + good + b"bad\n" + good), nullable=nullable)
    try:
        table = arrow_table(good + with_whole_numbers(line) + b"\n" + good, TYPES, ",", nullable)
        if table.num_rows == 3 and has_controls(table.column("name")[1].as_py()):
            raise pa.ArrowInvalid("control characters")
        value = table.column("value")[1].as_py()
        expected = None if table.num_rows != 3 or (value is not None and not np.isfinite(value)) else table.slice(1, 1)
    except pa.ArrowInvalid:
        expected = None
    assert result.lines == ([2, 4, 6] if expected is None else [2, 3, 4, 6])
    if expected is not None:
        assert repr(result.rows[1]) == repr(expected.to_pylist()[0])


def test_quoted_fields_are_understood_and_open_quotes_are_faults(tmp_path: Path) -> None:
    rows = [("a,b", 1.5, 2, 3), ('say "x"', 2.5, 3, 4), ("plain", 3.5, 4, 5)]
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    writer.writerow(TYPES)
    writer.writerows(rows)
    result = read(written(tmp_path, text.getvalue().encode()))
    assert [tuple(row.values()) for row in result.rows] == rows
    result = read(written(tmp_path, HEADER + b'"a,1,2,3\n"b",1,2,3\n"c\n",1,2,3\nd,1,2,3\n'))
    assert [(row["name"], line) for row, line in zip(result.rows, result.lines, strict=True)] == [("b", 3), ("d", 6)]
    assert result.faults.counts == {"columns": 3}


def test_an_open_quote_is_a_fault_in_the_last_line_too(tmp_path: Path) -> None:
    types = {"value": pa.int64(), "name": pa.string()}
    for end in ("\n", "\r\n", ""):
        result = read(written(tmp_path, f'value,name\n1,"a"\n2,"b{end}'.encode()), types)
        assert result.rows == [{"value": 1, "name": "a"}]
        assert result.faults.counts == {"columns" if end else "truncated": 1}


def test_empty_numbers_are_null_only_where_they_may_be(tmp_path: Path) -> None:
    path = written(tmp_path, HEADER + b"a,,2,3\n,1,,3\nc,x,,3\nd,1,2,3\n")
    result = read(path, nullable=True)
    assert [(row["name"], row["value"], row["size"]) for row in result.rows] == [
        ("a", None, 2),
        ("", 1, None),
        ("d", 1, 2),
    ]
    assert [(f.line, f.column) for f in result.faults.examples()] == [(4, "value")]
    assert read(path).faults.counts == {"number": 3}


def test_columns_may_be_optional_or_of_other_names(tmp_path: Path) -> None:
    path = written(tmp_path, b"time,name,more\n1,a,2.5\n")
    types = {"name": NAME, "time": pa.int64(), "size": pa.int32()}
    assert read(path, types, optional=("size",), others=pa.float64()).rows == [{"time": 1, "name": "a", "more": 2.5}]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"\n\n", "no header"),
        (HEADER, "no rows after the header"),
        (b"name,value,size\na,1,2\n", "line 1: columns: missing time; expected name, value, size, time"),
        (b"name,value,size,time,x\na,1,2,3,4\n", "columns: unknown x; expected"),
        (b"name,value,size,time,time\na,1,2,3,4\n", "columns: twice time"),
        (HEADER.decode().encode("utf-16-be"), "is UTF-16; expected UTF-8"),
        (HEADER.replace(b",", b";"), "fields are separated by semicolons; expected commas"),
        (HEADER.replace(b",", b"\t"), "fields are separated by tabs; expected commas"),
        (b"a,1,2,3\n", "missing name, value, size, time; unknown a, 1, 2, 3"),
        ("name,värde".encode("latin-1") + b"\n", "is no text; expected CSV in UTF-8"),
        (HEADER.decode().encode("utf-16"), "is UTF-16; expected UTF-8"),
        (b"\x00\x01\x02\n", "is no text"),
        (b"a\tb\rc\td\r", "columns: missing name, value, size, time; unknown a\\tb"),
        (b"na\x1b[2Jme,value\n", "names of columns have control characters: na\\x1b[2Jme,value; expected CSV"),
        (b",value,,name\n1,2,3,4\n", "columns 1, 3 have no names; expected at most one without"),
        (b"7z\xbc\xaf\x27\x1c\x00\x04", "is a 7-Zip archive; expected CSV"),
        (b"SQLite format 3\x00\x10", "is an SQLite database; expected CSV"),
        (b"PK\x03\x04\x00", "is a damaged ZIP archive"),
        (b"BZh91AY&SY" + b"\x00" * 30, "the compressed data are damaged"),
        (b"\xfd7zXZ\x00" + b"\x01" * 30, "the compressed data are damaged"),
        (b"\x28\xb5\x2f\xfd" + b"\xff" * 30, "the compressed data are damaged"),
        (b"PAR1abc\n", "is Parquet; expected"),
        (HEADER + b"a,b,c,d\n" * 5, "none of 5 rows fits its columns, the first in line 2: value = 'b'"),
        (HEADER + b"a,1,2,3\n" + b"9" * 9000 + b"\n", "no line end in"),
        (b"n" * 5000, "no line end in"),
        (b"\x1f\x8b" + b"\x00" * 30, "the compressed data are damaged"),
    ],
)
def test_unusable_files_say_why(tmp_path: Path, data: bytes, message: str) -> None:
    path = written(tmp_path, data)
    with pytest.raises(DatasetError, match=re.escape(message)) as caught:
        read(path, block_bytes=2000)
    assert str(path) in str(caught.value)


def test_compressed_data_that_end_early_are_an_error_after_the_whole_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = [b"n,%d,%d,%d" % tuple(rng.integers(0, 10**8, 3)) for _ in range(3000)]
    data = gzip.compress(HEADER + b"\n".join(lines) + b"\n")
    faults = Faults()
    seen: list[dict[str, Any]] = []
    blocks = read_blocks(written(tmp_path, data[: len(data) // 2]), TYPES, faults, block_bytes=4000)
    with pytest.raises(DatasetError, match="the compressed data end early") as caught:
        seen.extend(row for block in blocks for row in block.table.to_pylist())
    assert 1000 < len(seen) < 2000
    assert [b"n,%d,%d,%d" % (r["value"], r["size"], r["time"]) for r in seen] == lines[: len(seen)]
    assert faults.counts in ({"truncated": 1}, {})
    assert f"line {len(seen) + 2}:" in str(caught.value)


# -- files that others write -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["mM\x00TC", "mM\x1b[31mTC", "mMTC\x85", "\u202eCTMm", "mM\u2028TC", "\ufeffmMTC"])
@pytest.mark.parametrize("kind", [NAME, pa.string()])
def test_control_characters_in_text_are_a_fault_and_never_shown(tmp_path: Path, text: str, kind: Any) -> None:
    """NUL, terminal codes, directions of writing: Naviam/battery-status#15 and others."""
    rows = [b"mMTC,1,2,3\n", f"{text},1,2,3\n".encode(), "é\u00a0ü,1,2,3\n".encode()]
    result = read(written(tmp_path, HEADER + b"".join(rows)), {**TYPES, "name": kind})
    assert result.lines == [2, 4]
    assert result.faults.counts == {"control": 1}
    [line] = result.faults.describe()
    assert line.isprintable()


def test_whole_numbers_with_decimals_or_exponents_are_exact(tmp_path: Path) -> None:
    """pandas writes 823.0 for 823 in a column with empty fields (modin-project/modin#3119)."""
    rows = b"a,1,823.0,9007199254740993.0\nb,1,1460.00,9223372036854775807\n"
    assert [(row["size"], row["time"]) for row in read(written(tmp_path, HEADER + rows)).rows] == [
        (823, 9007199254740993),
        (1460, 9223372036854775807),
    ]
    rows = b"a,1,1e3,9.007199254740993E+15\nb,1,8.23e2,-1.50e1\nc,1,0.5,3\nd,1,1e999999999,3\n"
    rows += b"e,1,1e9999999999999999999,3\nf,1,%s7,3\n" % (b"0" * 5000)
    result = read(written(tmp_path, HEADER + rows))
    assert [(row["size"], row["time"]) for row in result.rows] == [(1000, 9007199254740993), (823, -15), (7, 3)]
    assert result.faults.counts == {"number": 3}


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
def test_an_index_column_without_a_name_is_left_out_with_a_note(tmp_path: Path, name: str) -> None:
    header = f"{name},".encode() + HEADER
    result = read(written(tmp_path, header + b"0,a,1,2,3\n1,b,1,2,3\n"))
    assert list(result.rows[0]) == list(TYPES)
    assert not result.faults
    assert result.faults.notes == ["column 1 has no name, as an index of pandas: left out"]


def test_thousands_of_unknown_columns_are_a_short_line(tmp_path: Path) -> None:
    names = ",".join(f"column{n}" for n in range(5000))
    with pytest.raises(DatasetError, match=r"unknown column0, .* and 4,992 more; expected name") as caught:
        read(written(tmp_path, HEADER[:-1] + f",{names}\n".encode()))
    assert len(str(caught.value)) < 500


def zipped(data: bytes, names: Sequence[str] = ("f.csv",)) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, data)
    return packed.getvalue()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
    "zip": zipped,
}


@pytest.mark.parametrize("kind", PACKERS)
def test_compressed_files_are_read_whatever_their_name_and_cut_off_ones_are_named(tmp_path: Path, kind: str) -> None:
    text = HEADER + b"".join(b"n,%d,%d,%d\n" % (n * n % 977, n, n * n * n) for n in range(3000))
    plain = read(written(tmp_path, text))
    packed = PACKERS[kind](text)
    assert read(written(tmp_path, packed, "f.data"), block_bytes=4000).rows == plain.rows
    with pytest.raises(DatasetError, match=r"compressed data end early|damaged"):
        read(written(tmp_path, packed[: len(packed) // 2]))


def test_archives_of_more_than_a_file_are_named(tmp_path: Path) -> None:
    for names, words in (
        (["a.csv", "b.csv"], "is a ZIP archive of 2 files; expected one that holds one file"),
        ([], "is a ZIP archive of 0 files"),
        (["[Content_Types].xml", "xl/workbook.xml"], "is an Excel workbook; expected it saved as CSV"),
    ):
        with pytest.raises(DatasetError, match=words):
            read(written(tmp_path, zipped(HEADER, names)))
    assert read(written(tmp_path, zipped(HEADER + b"a,1,2,3\n", ["f.csv", "__MACOSX/._f.csv"]))).lines == [2]


@pytest.mark.parametrize("block_bytes", [SMALL, 1 << 20])
def test_lines_that_end_with_a_carriage_return_alone(tmp_path: Path, block_bytes: int) -> None:
    rows = b"".join(b"n,%d,%d,%d\n" % (n, n, n) for n in range(100))
    text = (HEADER + rows).replace(b"\n", b"\r")
    assert read(written(tmp_path, text), block_bytes=block_bytes).lines == list(range(2, 102))
