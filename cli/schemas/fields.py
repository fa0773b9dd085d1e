"""What a schema says of its fields, for the manual: a row for each, and an example of the whole."""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints

from typing_extensions import is_typeddict

from slicepilot.configs.documents import Example, Text

# Longer endings first: a field's unit is that of the first one that its name, or that of what it is in, ends with.
UNITS = {
    "_ratio": "",
    "_factor": "",
    "_env_steps_per_s": "1/s",
    "_core_s": "core-seconds",
    "_per_cpu_s": "1/s",
    "_per_s": "1/s",
    "_mbps": "Mbit/s",
    "_mcpu": "mCPU",
    "_seconds": "s",
    "_bytes": "B",
    "_pct": "%",
    "_mib": "MiB",
    "_kb": "KB",
    "_ns": "ns",
    "_us": "µs",
    "_ms": "ms",
    "_s": "s",
}
WORDS = {str: "string", int: "integer", float: "number", bool: "boolean"}
FIGURES = {"Mbit/s": 45.0, "µs": 850.0, "ms": 12.5, "s": 10.0, "%": 1.5, "mCPU": 800.0, "1/s": 27000.0}


@dataclass(frozen=True)
class Row:
    """A field.

    Attributes:
        path: from the document to it: ``slices[].knobs.wanted``; a key that is a name is in angle brackets.
        kind: its type, in JSON's words.
        unit: empty where it has none, or the text says it.
        text: what it is.
        optional: whether it may be left out.
    """

    path: str
    kind: str
    unit: str
    text: str
    optional: bool


@dataclass(frozen=True)
class _Field:
    """A field's type without what stands around it."""

    name: str
    type: Any
    optional: bool
    text: str


def object_of(schema: Any) -> Any:
    """The object that a document is, or is a list of."""
    return get_args(schema)[0] if get_origin(schema) is list else schema


def rows(schema: Any) -> list[Row]:
    """Every field of a document's object, objects before what is in them.

    What is in an object of a kind that has been shown is shown there alone.
    """
    return list(_rows("", "", object_of(schema), {}))


def example(schema: Any) -> Any:
    """A document that fits the schema: of lists and of names one each."""
    return _example(schema, "")


def _rows(path: str, unit: str, kind: Any, seen: dict[Any, str]) -> Iterator[Row]:
    plain, _ = _stripped(kind)
    if get_origin(plain) is list:
        yield from _rows(f"{path}[]", unit, get_args(plain)[0], seen)
    elif get_origin(plain) is dict:
        key, value = get_args(plain)
        yield from _rows(f"{path}.<{_key(key)}>", unit, value, seen)
    elif is_typeddict(plain):
        seen[plain] = path
        for field in _fields(plain):
            yield from _field_rows(path, unit, field, seen)


def _field_rows(path: str, unit: str, field: _Field, seen: dict[Any, str]) -> Iterator[Row]:
    own, inside = f"{path}.{field.name}".lstrip("."), _unit(field.name, unit)
    objects, shown = _object(field.type), _shown_unit(field, unit)
    if objects in seen:
        yield Row(own, _words(field.type), "", f"{field.text} As `{seen[objects]}`.".strip(), field.optional)
        return
    about = " ".join((inspect.getdoc(objects) or "").split()) if objects is not None else ""
    yield Row(own, _words(field.type), shown, f"{field.text} {about}".strip(), field.optional)
    yield from _rows(own, inside, field.type, seen)


def _fields(schema: Any) -> list[_Field]:
    texts = _texts(schema)
    hints = get_type_hints(schema, include_extras=True)
    return [_field(name, hint, name in schema.__optional_keys__, texts.get(name, "")) for name, hint in hints.items()]


def _field(name: str, hint: Any, optional: bool, text: str) -> _Field:
    if get_origin(hint) is NotRequired:
        optional, [hint] = True, get_args(hint)
    said = "".join(mark.text for mark in _stripped(hint)[1] if isinstance(mark, Text))
    return _Field(name, hint, optional, text or said)


def _texts(schema: Any) -> dict[str, str]:
    """The texts under fields, those of what it is derived from as well."""
    texts: dict[str, str] = {}
    for base in getattr(schema, "__orig_bases__", ()):
        if is_typeddict(base):
            texts |= _texts(base)
    return texts | _module_texts(schema.__module__).get(schema.__name__, {})


@cache
def _module_texts(module: str) -> dict[str, dict[str, str]]:
    """By class and field, as they stand in a module's source."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: dict(_class_texts(node)) for node in tree.body if isinstance(node, ast.ClassDef)}


def _class_texts(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in zip(node.body, node.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        ):
            yield field.target.id, inspect.cleandoc(str(below.value.value)).replace("\n", " ")


def _stripped(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type that may be null, without that and without its marks; and these."""
    marks: tuple[Any, ...] = ()
    while True:
        if get_origin(kind) is Annotated:
            kind, *more = get_args(kind)
            marks += tuple(more)
        elif get_origin(kind) in {Union, UnionType} and len(_members(kind)) == 1:
            [kind] = _members(kind)
        else:
            return kind, marks


def _members(kind: Any) -> list[Any]:
    """Of a union, without null."""
    return [one for one in get_args(kind) if one is not NoneType]


def _nullable(kind: Any) -> bool:
    if get_origin(kind) is Annotated:
        return _nullable(get_args(kind)[0])
    return get_origin(kind) in {Union, UnionType} and NoneType in get_args(kind)


def _object(kind: Any) -> Any:
    """The object that a field is, or that is in its list or under its names; None where it has none."""
    plain, _ = _stripped(kind)
    if get_origin(plain) in {list, dict}:
        return _object(get_args(plain)[-1])
    return plain if is_typeddict(plain) else None


def _words(kind: Any) -> str:
    """A type in JSON's words."""
    plain, _ = _stripped(kind)
    origin, arguments = get_origin(plain), get_args(plain)
    words = [WORDS.get(plain, "anything")]
    if origin is list:
        words = [f"list of {_plural(arguments[0])}"]
    elif origin is dict:
        words = [f"{_plural(arguments[1])} by {_key(arguments[0])}"]
    elif origin is tuple:
        words = [f"list of {len(arguments)} {_plural(arguments[0])}"]
    elif origin is Literal:
        words = [f"`{json.dumps(one)}`" for one in arguments]
    elif origin in {Union, UnionType}:
        words = [_words(one) for one in _members(plain)]
    elif is_typeddict(plain):
        words = ["object"]
    *most, last = [*words, *(["null"] if _nullable(kind) else [])]
    return f"{', '.join(most)} or {last}" if most else last


def _plural(kind: Any) -> str:
    """Several of a type; what is null or by name itself is set apart."""
    plain, _ = _stripped(kind)
    if not _nullable(kind) and (plain in WORDS or is_typeddict(plain)):
        return f"{_words(kind)}s"
    return f"({_words(kind)})" if _nullable(kind) or get_origin(plain) is dict else _words(kind)


def _key(kind: Any) -> str:
    """What the names in an object are names of."""
    return next((mark.name for mark in _stripped(kind)[1] if isinstance(mark, Example)), "") or "name"


def _shown_unit(field: _Field, around: str) -> str:
    """The unit of a field that is a number, or a list of some; numbers of things have none but their own."""
    plain, _ = _stripped(field.type)
    while get_origin(plain) in {list, tuple, Union, UnionType}:
        members = get_args(plain) if get_origin(plain) in {list, tuple} else _members(plain)
        plain, _ = _stripped(next((one for one in members if one in WORDS), members[0]))
    return {float: _unit(field.name, around), int: _unit(field.name, "")}.get(plain, "")


def _unit(name: str, around: str) -> str:
    """The unit of a field by its name's ending, else that of the object it is in."""
    return next((unit for ending, unit in UNITS.items() if f"_{name}".endswith(ending)), around)


def _example(kind: Any, unit: str) -> Any:
    plain, marks = _stripped(kind)
    given = [mark.value for mark in marks if isinstance(mark, Example)]
    origin, arguments = get_origin(plain), get_args(plain)
    if given:
        return given[-1]
    if plain is str and _nullable(kind):
        return None
    if origin is list:
        return [_example(arguments[0], unit)]
    if origin is tuple:
        return [_example(one, unit) for one in arguments]
    if origin is dict:
        return {_example(arguments[0], ""): _example(arguments[1], unit)}
    if origin is Literal:
        return arguments[0]
    if origin in {Union, UnionType}:
        return _example(_members(plain)[0], unit)
    if is_typeddict(plain):
        values = {field.name: _example(field.type, _unit(field.name, unit)) for field in _fields(plain)}
        return {name: value for name, value in values.items() if value is not ...}
    return {str: "...", bool: True, int: 12, float: FIGURES.get(unit, 0.5)}.get(plain)
