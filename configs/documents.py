"""JSON documents that go out: how their schemas are written, and the check that a document fits its own.

A schema is a `Document`, a typed dictionary. The text under a field says what it is; its unit is in its name
(``offered_mbps``), else in that text. The manual's page of JSON is made from the same schemas.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from typing_extensions import TypedDict

SHOWN = 60  # characters of a value
Schema = TypeVar("Schema")


def configured(extra: Literal["forbid", "allow"]) -> Callable[[Schema], Schema]:
    """Says what becomes of fields that a schema does not name; those that are derived from it inherit this.

    pydantic reads it. It is not imported for that: it takes as long as NumPy, and most commands do without it until
    they print.
    """

    def mark(schema: Schema) -> Schema:
        marked: Any = schema
        marked.__pydantic_config__ = {"extra": extra, "strict": True}
        return schema

    return mark


@configured("forbid")
class Document(TypedDict):
    """What every object in a document is derived from: the fields that it names, of exactly these types, no others."""


@dataclass(frozen=True, eq=False)  # by identity, so that a list can be one
class Example:
    """Beside a type: what a value may look like, and what a key of this type is called in a path.

    ``...`` leaves an optional field out of examples.
    """

    value: Any
    name: str = ""


@dataclass(frozen=True)
class Text:
    """Beside the type of a field whose name Python cannot write as one: what it is."""

    text: str


class DocumentError(ValueError):
    """A document that does not fit its schema: names the field, its value and what was expected. A fault of ours."""


def dumps(value: Any, schema: Any) -> str:
    """A document as strict JSON (no NaN, no infinity), as it is, if it fits its schema.

    Args:
        value: dictionaries, lists, tuples, texts, numbers, None.
        schema: a `Document`, or a type made of some: ``list[Row]``.

    Raises:
        DocumentError: it does not fit.
    """
    if (found := _not_json(value, ())) is not None:
        where, what = found
        raise DocumentError(f"{_path(where)} = {what!r:.{SHOWN}}: JSON has no such value")
    text = json.dumps(value, indent=2, allow_nan=False)
    check(text, schema)
    return text


def check(text: str | bytes, schema: Any) -> None:
    """Raises DocumentError for JSON that does not fit a schema.

    What is printed is checked, and not what it is made from: whether that was a tuple or a list is no matter.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        TypeAdapter(schema).validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        message = "not in the schema" if first["type"] == "extra_forbidden" else first["msg"]
        shown = "" if first["type"] == "missing" else f" = {first['input']!r:.{SHOWN}}"
        raise DocumentError(f"{_path(first['loc'])}{shown}: {message}") from error


def _not_json(value: Any, where: tuple[str | int, ...]) -> tuple[tuple[str | int, ...], Any] | None:
    """Where the first value is that JSON does not have, and what it is."""
    if isinstance(value, dict):
        parts: Any = value.items()
    elif isinstance(value, list | tuple):
        parts = enumerate(value)
    else:
        known = value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
        return None if known else (where, value)
    return next((found for key, part in parts if (found := _not_json(part, (*where, key)))), None)


def _path(where: Sequence[str | int]) -> str:
    """``slices[0].delay_us``."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in where)
    return "".join(parts).removeprefix(".") or "document"
