"""The part of Helm's templates that the chart is written in, so that it is the one source of its objects.

Text with actions: ``{{ .Values.NAME }}``, ``if``/``else if``/``else``/``end``, ``range``/``end`` over a list (``.`` is
an item of it, and ``$`` what a path begins in outside), pipelines, and the functions of `FUNCTIONS`; ``{{-`` and
``-}}`` take the white space before and after (https://pkg.go.dev/text/template,
https://helm.sh/docs/chart_template_guide/). Anything else is an error, never a guess. What helm makes of the chart and
what this makes of it are compared in `tests/charts`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml

_ACTION = re.compile(r"\{\{(-\s+|)\s*(.*?)\s*(\s-|)\}\}", re.DOTALL)
_WORD = re.compile(r'\s*("(?:[^"\\]|\\.)*"|\||[^\s|]+)')


class TemplateError(ValueError):
    """A template says something that is not in this part of the language."""


def _indented(width: int, text: str) -> str:
    return "\n" + "\n".join(" " * width + line for line in text.split("\n"))


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "int": int,
    "quote": lambda value: json.dumps(_text(value)),
    "toYaml": lambda value: yaml.safe_dump(value, default_flow_style=False).removesuffix("\n"),
    "nindent": _indented,
}


def rendered(text: str, values: Mapping[str, Any]) -> str:
    """A template's text with its actions done.

    Args:
        text: the template.
        values: what a path begins in: ``Values``, ``Release``, ``Chart``.

    Raises:
        TemplateError: an action that is not known, a name that is not there, a block that is not closed.
    """
    parts = _parts(text)
    out, ended_by = _block(parts, values, run=True)
    if ended_by is not None:
        raise TemplateError(f"{ended_by!r} without an if")
    return out


def _parts(text: str) -> Iterator[tuple[bool, str]]:
    """Text, and actions (True), in turn; white space is trimmed."""
    position, trim = 0, False
    for found in _ACTION.finditer(text):
        before = text[position : found.start()]
        before = before.lstrip() if trim else before
        yield False, before.rstrip() if found[1] else before
        yield True, found[2]
        position, trim = found.end(), bool(found[3])
    rest = text[position:]
    yield False, rest.lstrip() if trim else rest


def _block(parts: Iterator[tuple[bool, str]], values: Mapping[str, Any], run: bool) -> tuple[str, str | None]:
    """Up to the end of a block, and the action that ended it; None at the end of the text."""
    out: list[str] = []
    for is_action, part in parts:
        if not is_action:
            out.append(part)
        elif part == "end" or part.split(" ")[0] == "else":
            return "".join(out), part
        elif part.startswith("if "):
            out.append(_choice(parts, values, part.removeprefix("if "), run))
        elif part.startswith("range "):
            out.append(_repeated(parts, values, part.removeprefix("range "), run))
        elif run:
            out.append(_text(_pipeline(part, values)))
    return "".join(out), None


def _choice(parts: Iterator[tuple[bool, str]], values: Mapping[str, Any], condition: str, run: bool) -> str:
    """The rest of an ``if``: of its branches the first whose condition holds."""
    chosen = ""
    open_yet, holds = run, run and bool(_pipeline(condition, values))
    while True:
        body, ended_by = _block(parts, values, holds)
        if holds:
            chosen, open_yet = body, False
        if ended_by is None:
            raise TemplateError(f"if {condition}: no end")
        if ended_by == "end":
            return chosen
        if ended_by == "else":
            holds = open_yet
        elif ended_by.startswith("else if "):
            holds = open_yet and bool(_pipeline(ended_by.removeprefix("else if "), values))
        else:
            raise TemplateError(f"{ended_by!r} is not known")


def _repeated(parts: Iterator[tuple[bool, str]], values: Mapping[str, Any], over: str, run: bool) -> str:
    """What is inside of a ``range``, once for each item of a list."""
    inside: list[tuple[bool, str]] = []
    depth = 1
    for is_action, part in parts:
        depth += is_action and part.startswith(("if ", "range "))
        depth -= is_action and part == "end"
        if not depth:
            break
        inside.append((is_action, part))
    else:
        raise TemplateError(f"range {over}: no end")
    items = _pipeline(over, values) if run else []
    if not isinstance(items, list):
        raise TemplateError(f"range {over}: accepted: a list")
    out = []
    for item in items:
        body, ended_by = _block(iter(inside), {"": item, "$": values.get("$", values)}, run=True)
        if ended_by is not None:
            raise TemplateError(f"{ended_by!r} in a range without an if")
        out.append(body)
    return "".join(out)


def _pipeline(text: str, values: Mapping[str, Any]) -> Any:
    """The value of ``a b c | d e``: what is before a bar is the last argument of what is after it."""
    words = _WORD.findall(text)
    commands: list[list[str]] = [[]]
    for word in words:
        if word == "|":
            commands.append([])
        else:
            commands[-1].append(word)
    passed: list[Any] = []
    for command in commands:
        if not command:
            raise TemplateError(f"{text!r}: nothing beside a bar")
        name, *arguments = command
        given = [_operand(one, values) for one in arguments] + passed
        if name in FUNCTIONS:
            passed = [FUNCTIONS[name](*given)]
        elif given:
            raise TemplateError(f"{text!r}: no function {name!r}")
        else:
            passed = [_operand(name, values)]
    return passed[0]


def _operand(word: str, values: Mapping[str, Any]) -> Any:
    if word.startswith((".", "$.")):
        found: Any = values["$"] if word.startswith("$.") and "$" in values else values
        for name in word.removeprefix("$").removeprefix(".").split("."):
            if not isinstance(found, Mapping) or name not in found:
                raise TemplateError(f"{word}: no {name!r}")
            found = found[name]
        return found
    try:
        return json.loads(word)
    except ValueError as error:
        raise TemplateError(f"{word!r} is not known") from error


def _text(value: Any) -> str:
    """As Go prints it, of the kinds that values have."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int):
        return str(value)
    raise TemplateError(f"a {type(value).__name__} in the middle of text; accepted: text, whole numbers, true, false")
