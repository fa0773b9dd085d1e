"""The manual's page of commands and their JSON, made of the Typer application and the schemas."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from slicepilot.cli.app import FoundByName
from slicepilot.cli.registry import commands
from slicepilot.cli.schemas.catalogue import PRINTED, Printed
from slicepilot.cli.schemas.fields import Row, example, object_of, rows

PROGRAM = "slicepilot"
WIDTH = 110
SENTENCE = re.compile(r"(.*?[.!?])(\s|$)")
MARKUP = re.compile(r"\[/?(bold|dim|green|red|yellow)\]")

HEAD = """\
# Command line

This page is made of the commands themselves and of the types that their JSON is held against before it is printed:
`python -m slicepilot.cli.reference` writes it, and a test fails where it is not up to date.

`slicepilot COMMAND --help` lists a command's options. What people read goes to standard output as text, progress to
standard error; with `--json` standard output has one JSON document and nothing else.

| exit code | |
|---|---|
| 0 | the command did what it says |
| 1 | a failure; what has failed is on standard error, or in the document |
| 2 | bad input: one line on standard error names the field, the value and what is accepted |
| 130 | Ctrl-C; what was made is put away |
| 143 | SIGTERM, likewise |
"""
JSON_HEAD = """\
## JSON

JSON is strict: no NaN and no infinity. `null` stands for what is not known, and for a limit that there is not; each
table says where it can come. A field is always there unless it is called optional, and there are no others. A document
that did not fit its table would be a fault of slicepilot: nothing would be printed but one line on standard error that
names the field, and the exit code would be 1.

In the tables `slices[].name` is the field `name` of each entry of the list `slices`, and in `reasons.<reason>` any name
may stand for `<reason>`. Examples show the form: one entry of each list, and made-up figures.
"""


def page() -> str:
    """All of it, as Markdown."""
    found = dict(_commands())
    shown: dict[str, str] = {}
    sections = [
        "\n".join(_section(name, found[name], list(documents), shown))
        for name, documents in groupby(PRINTED, lambda printed: printed.command)
    ]
    return "\n".join([HEAD, _table(found), JSON_HEAD, *sections])


def with_json() -> set[str]:
    """Commands that have the option ``--json``."""
    return {name for name, command in _commands() if any("--json" in param.opts for param in command.params)}


def _commands() -> Iterator[tuple[str, Any]]:
    """Each command by its name."""
    for name, entry in commands().items():
        yield name, FoundByName(name.rpartition(" ")[2], entry).load()


def _table(commands: dict[str, Any]) -> str:
    lines = ["## Commands", "", "| command | what it does | JSON |", "|---|---|---|"]
    printed = {one.command for one in PRINTED}
    for name, command in commands.items():
        link = f"[JSON](#{_anchor(name)})" if name in printed else ""
        lines.append(f"| `{PROGRAM} {name}` | {_cell(_purpose(command))} | {link} |")
    return "\n".join([*lines, ""])


def _purpose(command: Any) -> str:
    """The first sentence of its help."""
    text = " ".join(MARKUP.sub("", inspect.cleandoc(command.help or "")).split())
    first = SENTENCE.match(text)
    return first[1] if first else text


def _section(name: str, command: Any, documents: list[Printed], shown: dict[str, str]) -> Iterator[str]:
    yield f"### {PROGRAM} {name}"
    yield ""
    yield "```sh"
    yield from _synopsis(name, command)
    yield "```"
    yield ""
    for printed in documents:
        yield from _document(printed, shown)


def _document(printed: Printed, shown: dict[str, str]) -> Iterator[str]:
    schema, key = object_of(printed.schema), repr(object_of(printed.schema))
    listed = schema is not printed.schema
    when = f"**{printed.when[0].upper()}{printed.when[1:]}.** " if printed.when else ""
    text = " ".join((inspect.getdoc(schema) or "").split())
    text = text[0].lower() + text[1:] if listed else text
    if key in shown:
        same = "A list of" if listed else "The same as"
        where = "the above" if shown[key] == printed.command else f"[`{shown[key]}`](#{_anchor(shown[key])})"
        yield from (*_wrapped(f"{when}{same} {where}. {printed.note}"), "")
        return
    shown[key] = printed.command
    yield from (*_wrapped(f"{when}{'A list; each entry: ' if listed else ''}{text} {printed.note}"), "")
    yield from ("| field | type | unit | what it is |", "|---|---|---|---|", *map(_row, rows(schema)), "")
    yield from ("```json", _json(example(printed.schema)), "```", "")


def _row(row: Row) -> str:
    optional = "optional; " if row.optional else ""
    return f"| `{row.path}` | {optional}{row.kind} | {row.unit} | {_cell(row.text)} |"


def _synopsis(name: str, command: Any) -> list[str]:
    """How it is called, with all its options."""
    words = [
        f"{param.name.upper()}..." if param.nargs == -1 else param.name.upper()
        for param in command.params
        if param.param_type_name == "argument"
    ]
    words += sorted(
        (
            _option(param)
            for param in command.params
            if param.param_type_name == "option" and "--json" not in param.opts
        ),
        key=lambda word: word.startswith("["),
    )
    lead = f"{PROGRAM} {name} "
    joined = " ".join(word.replace(" ", "\0") for word in [*words, "--json"])
    lines = textwrap.wrap(joined, WIDTH - len(lead), break_on_hyphens=False, break_long_words=False)
    return [f"{lead if not number else ' ' * len(lead)}{line}".replace("\0", " ") for number, line in enumerate(lines)]


def _option(param: Any) -> str:
    name = max(param.opts, key=len)
    word = "/".join([name, *param.secondary_opts]) if param.is_flag else f"{name} {param.name.upper()}"
    word += " ..." if param.multiple else ""
    return word if param.required else f"[{word}]"


def _json(value: Any, indent: int = 0) -> str:
    """JSON that is broken into lines only where it does not fit into one."""
    line = json.dumps(value, ensure_ascii=False)
    if indent + len(line) <= WIDTH or not isinstance(value, dict | list) or not value:
        return line
    inner = " " * (indent + 1)
    if isinstance(value, list):
        parts = [f"{_json(part, indent + 1)}" for part in value]
        return "[" + f",\n{inner}".join(parts) + "]"
    pieces, room = [""], WIDTH - indent
    for number, (key, part) in enumerate(value.items()):
        name = f"{json.dumps(key, ensure_ascii=False)}: "
        text = name + _json(part, indent + 1 + len(name)) + ("," if number < len(value) - 1 else "")
        if pieces[-1] and ("\n" in text or "\n" in pieces[-1] or len(pieces[-1]) + 2 + len(text) > room):
            pieces.append(text)
        else:
            pieces[-1] = f"{pieces[-1]} {text}".strip()
    return "{" + f"\n{inner}".join(pieces) + "}"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text.strip(), 120, break_on_hyphens=False, break_long_words=False)


def _cell(text: str) -> str:
    """Text without what a table would take for its own; code is left as it is."""
    parts = text.split("`")
    return "`".join(part if number % 2 else part.replace("<", "\\<") for number, part in enumerate(parts))


def _anchor(name: str) -> str:
    return f"{PROGRAM}-{name}".replace(" ", "-")
