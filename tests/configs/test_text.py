"""Text that others have chosen."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from slicepilot.configs.text import as_many_as_fit, name_in_cells, printable, shortened


@given(st.text(st.characters()))
def test_what_is_printed_is_one_line_of_as_many_characters(text: str) -> None:
    reported = printable(text)
    assert reported.isprintable()
    assert len(reported) == len(text)
    assert printable(reported) == reported
    reported.encode()  # halves of characters cannot be


def test_what_is_longer_says_so() -> None:
    assert [shortened(text, 3) for text in ("", "abc", "abcd")] == ["", "abc", "abc..."]


@given(st.lists(st.text(), max_size=8), st.integers(0, 100))
def test_lines_that_do_not_fit_are_counted(lines: list[str], most: int) -> None:
    reported = as_many_as_fit(lines, most)
    if reported != lines:
        kept = len(reported) - 1
        assert reported == [*lines[:kept], f"and {len(lines) - kept} more"]
        assert sum(len(json.dumps(line)) for line in lines[: kept + 1]) > most
        reported = reported[:-1]
    assert sum(len(json.dumps(line)) for line in reported) <= most


def test_names_that_differ_at_the_end_alone_still_do_in_a_table() -> None:
    assert [name_in_cells(name) for name in ("slice1", "remote-con", "remote-ctl-1", "remote-ctl-2")] == [
        "slice1", "remote-con", "remot~tl-1", "remot~tl-2",
    ]  # fmt: skip
