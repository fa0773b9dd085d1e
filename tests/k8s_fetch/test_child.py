"""A child that was taken over, or does not end, is believed nothing and waited for no longer than that."""

from __future__ import annotations

import os
import time

import pytest

from slicepilot.cluster.fetch.child import FetchError, _files, _parsed, ask, line_of


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("this", "no answer that can be used"),  # modules that anybody has, and that print, or fail, or take a second
        ("json.tool", "it ended without an answer"),
        ("timeit", "it took too long"),
    ],
)
def test_what_is_no_answer_is_a_line(module: str, why: str) -> None:
    began_s = time.monotonic()
    with pytest.raises(FetchError, match=why):
        ask(module, {}, 0.3 if module == "timeit" else 20.0)
    assert time.monotonic() - began_s < 20.0


@pytest.mark.parametrize(
    ("head", "sent"),
    [
        ({}, b""),
        ({"files": []}, b""),
        ({"files": {"../../etc/cron.d/x": 1}}, b"x"),
        ({"files": {"SHA256SUMS": 1 << 40}}, b"x"),
        ({"files": {"SHA256SUMS": -1}}, b""),
        ({"files": {"SHA256SUMS": True}}, b"x"),
        ({"files": {"SHA256SUMS": 5}}, b"x"),
    ],
)
def test_files_of_an_answer_are_those_of_bundles(head: dict[str, object], sent: bytes) -> None:
    ours, theirs = os.pipe()
    try:
        os.write(theirs, sent)
        os.close(theirs)
        with pytest.raises(FetchError):
            _files(head, ours, time.monotonic() + 5.0)
    finally:
        os.close(ours)


@pytest.mark.parametrize("head", [b"", b"[]\n", b"[" * 4000, b'"x"\n', b"\xff\n"])
def test_the_head_of_an_answer_is_an_object(head: bytes) -> None:
    with pytest.raises(FetchError, match="no answer that can be used"):
        _parsed(head)


def test_what_a_child_says_is_one_line_for_conditions() -> None:
    assert line_of("a\n\33[2Jb\0" + "c" * 5000)[:12] == "a [2Jb ccccc"
    assert len(line_of("c" * 5000)) == 400
    with pytest.raises(FetchError, match=r"^a b$"):
        _parsed(b'{"refused": "a\\nb"}\n')
