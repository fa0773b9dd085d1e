"""Functions compiled ahead do what those do that numba compiles when they are called, and take no other arrays."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slicepilot.controller.ahead import library
from slicepilot.env import compiled

from ...agents.runtime.test_program import untrained

needs_library = pytest.mark.skipif(bool(library.why_not()), reason=f"{library.why_not()}")


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Both ways, each in a process of its own: what was seen, decided, let through and recorded."""
    folder = tmp_path_factory.mktemp("played")
    (folder / "model.onnx").write_bytes(untrained(3))
    reasons = {}
    for how in ("numba", "ahead"):
        command = [sys.executable, str(Path(__file__).with_name("played.py")), str(folder / "model.onnx"), str(folder)]
        done = subprocess.run([*command, how], capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        reasons[how] = done.stdout.split()
    return {how: np.load(folder / f"{how}.npz") for how in reasons} | {"reasons": reasons}


@needs_library
def test_it_does_the_same(played: dict[str, Any]) -> None:
    reasons = played["reasons"]
    assert reasons["ahead"] == reasons["numba"]
    # Those of every kernel of the guard: it has done more than to let decisions pass.
    assert {"telemetry_implausible", "sla_floor", "floor_trial", "dwell", "slew", "oscillation"} <= set(
        reasons["ahead"]
    ), reasons["ahead"]
    for what in ("told", "records", "filled"):
        np.testing.assert_array_equal(played["ahead"][what], played["numba"][what], what)


@needs_library
def test_it_needs_no_numba(played: dict[str, Any]) -> None:
    assert "numba" in played["numba"]["modules"]
    assert not {"numba", "llvmlite"} & set(played["ahead"]["modules"].tolist())


@pytest.fixture
def doubled(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A function of a library that takes a row of wide ones, or one of its own, and a number."""

    class Library:
        @staticmethod
        def test_library_double_0(row: Any, factor: int) -> Any:
            return "wide", factor * row

        @staticmethod
        def test_library_double_1(row: Any, factor: int) -> Any:
            return "own", factor * row

    monkeypatch.setattr(compiled, "_library", Library)

    @compiled.kernel((compiled.Array(np.float32, 1, contiguous=False), int), (compiled.Array(np.int16, 1), int))
    def double(row: Any, factor: int) -> Any:
        raise AssertionError("not compiled")

    return double  # type: ignore[no-any-return]


def test_arrays_go_to_the_function_that_takes_them(doubled: Callable[..., Any]) -> None:
    assert doubled(np.ones(2, np.float32), 2)[0] == doubled(np.ones((2, 2), np.float32)[:, 0], 2)[0] == "wide"
    assert doubled(np.ones(2, np.int16), 2)[0] == "own"


@pytest.mark.parametrize(
    "row",
    [
        np.ones(2),
        np.ones((2, 1), np.float32),
        np.ones((2, 2), np.int16)[:, 0],
        np.ones(2, ">f4"),
        np.frombuffer(bytes(9), np.float32, 2, 1),
        [1.0, 2.0],
        None,
    ],
    ids=["wider", "more dimensions", "with gaps", "other byte order", "not aligned", "a list", "nothing"],
)
def test_it_never_gets_an_array_of_another_kind(doubled: Callable[..., Any], row: Any) -> None:
    with pytest.raises(TypeError, match="accepted: what it was compiled for"):
        doubled(row, 2)


def test_it_never_gets_another_number_of_arguments(doubled: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="factor"):
        doubled(np.ones(2, np.float32))


@needs_library
def test_nothing_is_loaded_with_it_from_a_folder_of_whoever_built_it() -> None:
    dynamic = subprocess.run(
        ["readelf", "--dynamic", library._library().__file__], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    assert "NEEDED" in dynamic
    assert "PATH" not in dynamic


@needs_library
def test_one_of_other_sources_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    monkeypatch.setattr(compiled, "use", taken.append)
    assert library.take() == ""
    monkeypatch.setattr(library, "digest", lambda: 0)
    assert library.take().endswith("was compiled from other sources")
    assert len(taken) == 1


@needs_library
def test_one_for_other_processors_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_flags", lambda: {"sse2"})
    assert library.why_not().endswith("is for processors with AVX2")


def test_without_one_numba_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "NAME", "absent")
    assert library.take().startswith("No module named")
