"""Hostile YAML files and orders are bounded before anything is built of them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from slicepilot.configs import ConfigError, read_yaml
from slicepilot.configs.limited_yaml import MOST_BYTES, MOST_NODES, parse_yaml
from slicepilot.controller.contracts.orders import parse
from slicepilot.controller.guard.config import GuardConfig


def laughs() -> str:
    """Ten to the power of nine words, in a few lines."""
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]" for k in range(1, 9)]
    return "\n".join(lines)


def merges() -> str:
    """The same by merge keys."""
    lines = ["a0: &a0 {x: 1, y: 2}"]
    lines += [f"a{k}: &a{k} {{<<: [{', '.join([f'*a{k - 1}'] * 10)}]}}" for k in range(1, 9)]
    return "\n".join(lines)


HOSTILE = {
    "lists": ("[" + "[]," * 300_000 + "]", f"more than {MOST_NODES} nodes"),
    "fields": ("\n".join(f"field{k}: {k}" for k in range(30_000)), f"more than {MOST_NODES} nodes"),
    "laughs": (laughs(), f"more than {MOST_NODES} nodes of YAML, aliases resolved"),
    "merges": (merges(), f"more than {MOST_NODES} nodes of YAML, aliases resolved"),
    "itself": ("&a [*a]", "an alias inside of its own anchor"),
    "deep lists": ("[" * 400_000, "nested more than"),
    "deep fields": ("{a: " * 200_000, "nested more than"),
    "deep lines": ("- " * 400_000, "nested more than"),
    "a number": ("a: " + ":".join(["59"] * 200_000), "a number of 599999 characters"),
    "an explicit number": ("a: !!int '" + "9" * 500_000 + "'", "a number of 500000 characters"),
    "digits": ("a: " + "9" * 500_000, "a number of 500000 characters"),
    "directives": ("\n".join(f"%TAG !a{k}! tag:x" for k in range(40_000)) + "\n--- 1\n", "directives of YAML"),
    "tag": ("a: !!python/object/apply:os.getcwd []", "not valid YAML"),
    "bytes": ("a" * (MOST_BYTES + 1), f"more than {MOST_BYTES} bytes"),
    "documents": ("--- 1\n" * 100_000, f"more than {MOST_NODES} nodes"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_document_is_refused_at_once(name: str, tmp_path: Path) -> None:
    text, message = HOSTILE[name]
    path = tmp_path / "guard.yaml"
    path.write_text(text)
    start_s = time.thread_time()
    with pytest.raises(ConfigError, match=message) as caught:
        GuardConfig.from_yaml(str(path))
    assert time.thread_time() - start_s < 0.5
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_ordinary_documents_with_aliases_are_read() -> None:
    assert parse_yaml(b"a: &x {b: 1}\nc: *x\nd: {<<: *x, e: 2}", "x") == {
        "a": {"b": 1}, "c": {"b": 1}, "d": {"b": 1, "e": 2}
    }  # fmt: skip
    assert parse_yaml(b"a: 100%\nb: |\n  %x\n", "x") == {"a": "100%", "b": "%x\n"}


def test_a_file_of_many_gigabytes_is_refused_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    with path.open("wb") as file:
        file.truncate(8 << 30)
    start_s = time.thread_time()
    with pytest.raises(ConfigError, match=f"more than {MOST_BYTES} bytes"):
        read_yaml(path)
    assert time.thread_time() - start_s < 1.0, (
        "reading it takes seconds; collecting garbage in a process of many tests, a tenth"
    )


@pytest.mark.parametrize("line", [b"[" * 60_000, b'{"a":' * 10_000, *(b'{"command": ' + b"[" * n for n in (800, 990))])
@pytest.mark.parametrize("closed", [False, True])
def test_an_order_of_any_depth_is_refused_at_once(line: bytes, closed: bool) -> None:
    start_s = time.thread_time()
    with pytest.raises(ConfigError, match=r"too deeply nested|not valid JSON|^command = ") as caught:
        parse(line + b"]" * line.count(b"[") + b"}" * line.count(b"{") if closed else line, [])
    assert time.thread_time() - start_s < 0.2
    assert len(str(caught.value)) < 300
