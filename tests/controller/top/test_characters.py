"""Numbers, bars and sparklines in few characters, of those that the terminal has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicepilot.controller.top.drawing import ASCII, BLOCKS, Glyphs, glyphs_for, resample, short


@pytest.mark.parametrize(
    ("environment", "glyphs"),
    [
        ({"LANG": "en_US.UTF-8"}, BLOCKS),
        ({"LANG": "C"}, ASCII),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, ASCII),  # what Python makes of LANG=C
        ({"LC_ALL": "C", "LANG": "de_DE.UTF-8"}, ASCII),
        ({"LC_CTYPE": "de_DE.utf8", "LANG": "C"}, BLOCKS),
        ({"LANG": "C.UTF-8", "LC_CTYPE": "C.UTF-8"}, BLOCKS),
        ({"LANG": "en_US.UTF-8", "TERM": "linux"}, ASCII),
        ({"LANG": "en_US.ISO-8859-1"}, ASCII),
        ({}, ASCII),
    ],
)
def test_blocks_only_where_the_terminal_has_them(environment: dict[str, str], glyphs: Glyphs) -> None:
    assert glyphs_for(environment) is glyphs


@given(st.lists(st.none() | st.floats(0, 1e9), max_size=200), st.integers(1, 60))
def test_a_sparkline_has_its_width_and_keeps_the_greatest(values: list[float | None], width: int) -> None:
    placed = resample(values, width, max)
    assert len(placed) == width
    assert max((v for v in placed if v is not None), default=None) == max(
        (v for v in values if v is not None), default=None
    )
    if values:
        assert values[-1] is None or (placed[-1] or 0) >= values[-1]
    assert len(BLOCKS.spark(placed)) == width


@given(st.floats(0, 1e13))
def test_any_number_is_short(value: float) -> None:
    assert len(short(value)) <= 5


@given(st.floats(0.0011, 1e8))
def test_short_numbers_are_close(value: float) -> None:
    text = short(value)
    read = float(text.rstrip("kM")) * {"k": 1e3, "M": 1e6}.get(text[-1], 1.0)
    assert read == pytest.approx(value, rel=0.05, abs=0.0006)
