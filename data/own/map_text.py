"""A map as YAML, with uncertain entries marked by comments."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slicepilot.configs.text import on_a_line

from .names import Guess

STEPS = (0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600)
"""Periods that people use, in seconds."""


@dataclass
class Entry:
    """An entry of the map that is being written.

    Attributes:
        fields: of `slicepilot.data.own.map.FileMap`, but for the columns.
        columns: what each becomes; doubts: what is not sure of a field.
        left_out: columns that are not taken, and why.
        notes: what is not sure of the file as a whole.
    """

    fields: dict[str, Any]
    columns: dict[str, Guess] = field(default_factory=dict)
    doubts: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)


def period_for(step_s: float) -> float:
    """The shortest usual period that has a measurement of every step."""
    return next((float(own) for own in STEPS if own >= 0.99 * step_s), 3600.0)


def doubts_of(entry: Entry) -> list[str]:
    """Uncertain fields of an entry, a line each."""
    result = list(entry.notes)
    result += [f"{name} = {entry.fields.get(name)}: {doubt}" for name, doubt in entry.doubts.items()]
    result += [f"{name} -> {own.quantity}: {own.doubt}" for name, own in entry.columns.items() if own.doubt]
    return [on_a_line(line, 300) for line in result]


def scalar(value: Any) -> str:
    """A YAML scalar; texts in quotes wherever they might be read as anything else."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"{value:g}"
    text = str(value)
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_./-]*", text) and text.lower() not in {
        "y", "n", "yes", "no", "on", "off", "true", "false", "null",
    }:  # fmt: skip
        return text
    if "'" not in text and text.isprintable():
        return f"'{text}'"
    return json.dumps(text, ensure_ascii=False)


def _flow(values: Any) -> str:
    if isinstance(values, dict):
        return "{" + ", ".join(f"{scalar(key)}: {scalar(value)}" for key, value in values.items()) + "}"
    return "[" + ", ".join(map(scalar, values)) + "]" if isinstance(values, list | tuple) else scalar(values)


def _commented(line: str, doubt: str) -> str:
    return f"{line.ljust(48)}  # unsure: {on_a_line(doubt, 200)}" if doubt else line


def written_map(
    entries: Sequence[Entry], period: float | None, episodes: Sequence[str], step: float | None = None
) -> str:
    """The map as YAML."""
    lines = ["# Proposed by `slicepilot dataset map`. What is unsure says so; docs/own-data.md explains the fields."]
    lines.append("name: own")
    if period is not None:
        lines.append(_commented(f"period_s: {period:g}", "files are joined in periods of the longest step"))
    elif step is not None:
        lines.append(f"# period_s: {period_for(step):g}".ljust(48) + "  # a row for each slice and so many seconds")
    lines.append("files:")
    for entry in entries:
        lines += [f"  # unsure: {on_a_line(text, 200)}" for text in entry.notes]
        for number, (name, value) in enumerate(entry.fields.items()):
            line = f"  {'- ' if not number else '  '}{name}: {_flow(value)}"
            lines.append(_commented(line, entry.doubts.get(name, "")))
        lines.append(_commented("    columns:", entry.doubts.get("columns", "")))
        for name, own in entry.columns.items():
            parts: dict[str, str | bool] = {"quantity": own.quantity}
            parts |= {"unit": own.unit.replace("µ", "u")} if own.unit else {}
            parts |= {"slice": own.slice} if own.slice else {}
            parts |= {"counter": True} if own.counter else {}
            parts |= {"sum": True} if own.sum else {}
            lines.append(_commented(f"      {scalar(name)}: {_flow(parts)}", own.doubt))
        lines += [f"      # left out: {on_a_line(text, 150)}" for text in entry.left_out[:50]]
    return "\n".join([*lines, *episodes]) + "\n"
