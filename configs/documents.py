"""Shapes of the JSON documents that commands print, and the check of a document against its shape.

A shape is a `Document`, a typed dictionary. The name of a field includes its unit (``offered_mbps``); the text under it
says what the name does not. `slicepilot.cli.reference` generates the page of commands from the shapes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

from typing_extensions import TypedDict

from .errors import expectation

SHOWN = 60  # characters of a value
Shape = TypeVar("Shape")


class Document(TypedDict):
    """The base of every object in a document: it has the fields that it declares, of exactly these types, no others."""


# pydantic reads this, also from derived shapes. It is imported only to check: the import takes as long as NumPy's.
_CONFIG = {"extra": "forbid", "strict": True, "use_attribute_docstrings": True}
setattr(Document, "__pydantic_config__", _CONFIG)  # noqa: B010


def allow_more(shape: type[Shape]) -> type[Shape]:
    """A shape whose documents may have further fields."""
    setattr(shape, "__pydantic_config__", _CONFIG | {"extra": "allow"})  # noqa: B010
    return shape


class DocumentError(ValueError):
    """A document that does not fit its shape: names the field, its value and what was expected."""


def dumps(value: Any, shape: Any) -> str:
    """A document as strict JSON: no NaN, no infinity.

    Args:
        value: dictionaries, lists, tuples, strings, numbers, None.
        shape: a `Document`, or a type made of them: ``list[Row]``.

    Raises:
        DocumentError: it does not fit its shape.
    """
    if (invalid := _not_json(value, ())) is not None:
        where, what = invalid
        raise DocumentError(f"{_path(where)} = {what!r:.{SHOWN}}: JSON has no such value")
    text = json.dumps(value, indent=2, allow_nan=False)
    check(text, shape)
    return text


def check(text: str | bytes, shape: Any) -> None:
    """Raises DocumentError for JSON that does not fit a shape."""
    from pydantic import ValidationError

    try:
        adapter(shape).validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        message = "not in the schema" if first["type"] == "extra_forbidden" else expectation(first["msg"])
        shown = "" if first["type"] == "missing" else f" = {first['input']!r:.{SHOWN}}"
        raise DocumentError(f"{_path(first['loc'])}{shown}: {message}") from error


@cache
def adapter(shape: Any) -> Any:
    """pydantic's validator of a type, cached because building it takes tens of milliseconds."""
    from pydantic import TypeAdapter

    return TypeAdapter(shape)


def _not_json(value: Any, where: tuple[str | int, ...]) -> tuple[tuple[str | int, ...], Any] | None:
    """The first value that JSON cannot express, and its location."""
    if isinstance(value, dict):
        parts: Any = value.items()
    elif isinstance(value, list | tuple):
        parts = enumerate(value)
    else:
        valid = value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
        return None if valid else (where, value)
    return next((invalid for key, part in parts if (invalid := _not_json(part, (*where, key)))), None)


def _path(where: Sequence[str | int]) -> str:
    """``slices[0].delay_us``."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in where)
    return "".join(parts).removeprefix(".") or "document"
