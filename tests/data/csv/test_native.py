import ctypes
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicepilot.data.csv import native
from slicepilot.data.studies.mishra.checks import inspect
from slicepilot.data.tables.tally import Tally

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@needs_compiler
def test_code_is_compiled_once_and_by_many_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    with ThreadPoolExecutor(4) as pool:
        [path] = set(pool.map(native._compiled, [folder] * 4))
    assert path is not None
    assert list(folder.iterdir()) == [path]
    written = path.stat().st_mtime_ns
    assert native._compiled(folder) == path
    assert path.stat().st_mtime_ns == written
    assert ctypes.CDLL(str(path)).parse_plain


def test_without_a_compiler_there_is_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert native._compiled(tmp_path / "cache") is None


def test_a_compiler_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\nexit 1\n")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CC", str(compiler))
    folder = tmp_path / "cache"
    assert native._compiled(folder) is None
    assert not list(folder.iterdir())


@needs_compiler
def test_where_nothing_can_be_written_the_next_folder_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setattr(native, "_folders", lambda: iter([file / "cache", tmp_path / "cache"]))
    found = native.compiled.__wrapped__()
    assert found is not None
    assert len(list((tmp_path / "cache").iterdir())) == 1
    monkeypatch.setattr(native, "_folders", lambda: iter([file / "cache"]))
    assert native.compiled.__wrapped__() is None


@needs_compiler
def test_code_that_cannot_be_loaded_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = native._compiled(tmp_path)
    assert path is not None
    path.write_bytes(b"no machine code")
    monkeypatch.setattr(native, "_folders", lambda: iter([tmp_path]))
    assert native.compiled.__wrapped__() is None


@needs_compiler
def test_arrays_of_other_types_are_refused() -> None:
    loops = native.compiled()
    assert loops is not None
    ints, floats = np.zeros(4, np.int64), np.zeros(4)
    with pytest.raises(ctypes.ArgumentError):
        loops.inspect_packets(4, floats, ints, ints, ints, 0)  # lengths have 32 bits
    with pytest.raises(ctypes.ArgumentError):
        loops.inspect_packets(2, floats[::2], np.zeros(2, np.int32), ints[:2], ints[:2], 0)


packets = st.lists(
    st.tuples(st.floats(-2, 6), st.sampled_from([0, 1, 1500, 65_549, 65_550]), st.integers(-1, 4), st.integers(-1, 4)),
    min_size=1,
    max_size=8,
)


@needs_compiler
@given(packets, st.integers(-1, 3), st.booleans())
def test_rows_need_a_closer_look_either_way(
    rows: list[tuple[float, int, int, int]], latest_ns: int, in_order: bool
) -> None:
    delay_us, sizes, received, sent = (np.asarray(column) for column in zip(*rows, strict=True))
    if in_order:
        sent = np.sort(sent)
    given_rows = delay_us.astype(np.float64), sizes.astype(np.int32), received * 1000, sent * 1000
    compiled = inspect(*given_rows, latest_ns * 1000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slicepilot.data.studies.mishra.checks.compiled", lambda: None)
        assert inspect(*given_rows, latest_ns * 1000) == compiled


@needs_compiler
@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 2.0**40)), min_size=1, max_size=40), st.integers(1, 4))
def test_tallies_are_the_same_either_way(rows: list[tuple[int, float]], batches: int) -> None:
    groups, values = np.asarray([row[0] for row in rows]), np.asarray([row[1] for row in rows])
    compiled, other = Tally(), Tally()
    for part in np.array_split(np.arange(len(rows)), batches):
        compiled.add(groups[part], values[part], 4)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("slicepilot.data.tables.tally.compiled", lambda: None)
            other.add(groups[part], values[part], 4)
    np.testing.assert_array_equal(other.histogram, compiled.histogram)
    for figures in ("count", "least", "greatest"):
        np.testing.assert_array_equal(getattr(other, figures), getattr(compiled, figures))
    np.testing.assert_allclose(other.total, compiled.total, rtol=1e-12)
    np.testing.assert_allclose(other.std(), compiled.std(), rtol=1e-9, atol=1e-6 * values.max())
