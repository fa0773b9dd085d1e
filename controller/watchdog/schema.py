"""Plain values of JSON as the dataclasses they were written from, checked: what pydantic does, in few kilobytes."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")


class JournalError(ValueError):
    """A journal that cannot be read: the message is one line that names the file, the field and what is accepted."""


def as_value(kind: type[T], raw: Any, where: str) -> T:
    """``raw`` as a dataclass of str, int, bool, tuples, None and such dataclasses; raises JournalError."""
    value = _convert(kind, raw, f"{where}: ")
    assert isinstance(value, kind)
    return value


def _convert(kind: Any, raw: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:  # X | None
        return None if raw is None else _convert(arguments[0], raw, where)
    if origin is tuple:
        return _tuple(arguments, raw, where)
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, raw, where)
    if type(raw) is not kind:  # not isinstance: True is no number
        raise JournalError(f"{where.rstrip('.: ')} = {raw!r:.60}; accepted: {kind.__name__}")
    return raw


def _tuple(arguments: tuple[Any, ...], raw: Any, where: str) -> tuple[Any, ...]:
    lengths = "any length" if arguments[-1] is ... else f"{len(arguments)} entries"
    if not isinstance(raw, list) or (arguments[-1] is not ... and len(raw) != len(arguments)):
        raise JournalError(f"{where.rstrip('.: ')} = {raw!r:.60}; accepted: a list of {lengths}")
    kinds = [arguments[0]] * len(raw) if arguments[-1] is ... else arguments
    return tuple(
        _convert(kind, item, f"{where}{index}.") for index, (kind, item) in enumerate(zip(kinds, raw, strict=True))
    )


def _dataclass(kind: Any, raw: Any, where: str) -> Any:
    fields = {field.name: field for field in dataclasses.fields(kind)}
    if not isinstance(raw, dict):
        raise JournalError(f"{where.rstrip('.: ')} = {raw!r:.60}; accepted: an object with {', '.join(fields)}")
    wrong = sorted(raw.keys() ^ fields.keys())
    if wrong:
        state = "unknown" if wrong[0] in raw else "missing"
        raise JournalError(f"{where}{wrong[0]}: {state}; accepted: {', '.join(fields)}")
    hints = typing.get_type_hints(kind)
    return kind(**{name: _convert(hints[name], raw[name], f"{where}{name}.") for name in fields})
