"""Find, read and validate YAML: every error is one line with field, value and what is accepted.

Values are plain frozen dataclasses that live where they are used; pydantic checks them here, at the edge, where
outside input comes in.
"""

from __future__ import annotations

import dataclasses
from importlib import resources
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from .errors import ConfigError, did_you_mean
from .limited_yaml import MOST_BYTES, parse_yaml
from .reading import Roots, read_file

T = TypeVar("T")

PACKAGE = __name__.rpartition(".")[0]


def available(kind: str) -> list[str]:
    """Names of the shipped configurations of one kind (a folder of ``configs/``), sorted."""
    folder = resources.files(PACKAGE).joinpath(kind)
    return sorted(p.name.removesuffix(".yaml") for p in folder.iterdir() if p.name.endswith(".yaml"))


def locate(kind: str, name_or_path: str | Path) -> Path:
    """Path of a shipped configuration by name, or of a user's file by path.

    Raises:
        ConfigError: neither a file nor a shipped name; lists the nearest shipped names.
    """
    path = Path(name_or_path)
    if _is_path(path):
        if not _is_file(path):
            raise ConfigError(f"{kind}: file {str(path)!r} does not exist")
        return path
    names = available(kind)
    if str(name_or_path) not in names:
        given = str(name_or_path)
        raise ConfigError(f"{kind}: unknown name {given!r}; {did_you_mean(given, names, most=3)}")
    with resources.as_file(resources.files(PACKAGE).joinpath(kind, f"{name_or_path}.yaml")) as found:
        return found.resolve()  # in a clone there are links on the way, of whoever has cloned it


def beside(file: Path, name_or_path: str) -> str:
    """A name or path as a configuration file means it: relative paths count from the file's folder."""
    path = Path(name_or_path)
    return str(file.parent / path) if _is_path(path) and not path.is_absolute() else name_or_path


def read_yaml(path: Path, roots: Roots | None = None) -> Any:
    """Parse one YAML file with the safe loader, within the limits of `limited_yaml`.

    Args:
        path: of the file.
        roots: where it has to be; None: anywhere.

    Raises:
        ConfigError: unreadable file or invalid YAML, with line and column.
    """
    what = f"file {str(path)!r}"
    return parse_yaml(read_file(path, MOST_BYTES, what, roots), what)


def _is_path(given: Path) -> bool:
    """Whether it is a user's file; else a shipped name."""
    return given.suffix in {".yaml", ".yml"} or given.parent != Path()


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that no file can have
        return False


def validate(kind: type[T], raw: Any, source: str, quote: bool = True) -> T:
    """Turn parsed YAML into a value of ``kind`` (a dataclass with annotated constraints).

    Args:
        kind: what it becomes.
        raw: parsed YAML.
        source: begins errors.
        quote: whether errors may show what is in ``raw``; else they name fields of ``kind`` alone.

    Raises:
        ConfigError: the first violation, as ``source: field = value: what is accepted``.
    """
    try:
        return TypeAdapter(kind).validate_python(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where, value = first["loc"], first.get("input")
        message = first["msg"].removeprefix("Value error, ")
        unknown = first["type"] in {"unexpected_keyword_argument", "extra_forbidden"}
        if unknown:
            message = f"unknown field; {_nearest(kind, where)}"
        if quote:
            shown = repr(value) if isinstance(value, (str, int, float, bool, type(None))) else type(value).__name__
            raise ConfigError(f"{source}: {_field(where)} = {shown}: {message}") from error
        if first["type"] == "value_error":
            message = "not accepted"
        # From None: a traceback would quote as well.
        raise ConfigError(f"{source}: {_field(_known(kind, where))}: {message}") from None


def _field(where: tuple[int | str, ...]) -> str:
    return ".".join(map(str, where)) or "document"


def _known(kind: Any, where: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """The place of a violation without names that are the document's own."""
    known: list[int | str] = []
    for part in where:
        kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
        names = [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
        known.append(part if isinstance(part, int) or part in names else "...")
        kind = _part(kind, part)
    return tuple(known)


def _nearest(kind: Any, where: tuple[int | str, ...]) -> str:
    """What is accepted instead of an unknown field: the nearest names, then all."""
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind  # a dataclass with checks of its own
    for part in where[:-1]:
        kind = _part(kind, part)
    names = [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
    return did_you_mean(str(where[-1]), names)


def _part(kind: Any, part: int | str) -> Any:
    """Type of a field of a dataclass, or of an item of a container; of a union, the member that has parts."""
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind if isinstance(kind, type) else type(kind))
        kind = hints.get(str(part), Any)
    elif get_origin(kind) in {list, tuple, dict}:
        kind = next((argument for argument in reversed(get_args(kind)) if argument is not Ellipsis), Any)
    members = get_args(kind) if get_origin(kind) in {Union, UnionType} else ()
    return next((one for one in members if dataclasses.is_dataclass(one) or get_origin(one)), kind)


def load(kind: str, name_or_path: str | Path, as_type: type[T], roots: Roots | None = None) -> T:
    """Locate, read and validate one configuration; raises `ConfigError` as the three steps do.

    With ``roots`` the name comes from somebody who may not read all that this process can: a file has to be below
    them, and errors quote nothing of it.
    """
    given = Path(name_or_path)
    path = given if roots is not None and _is_path(given) else locate(kind, name_or_path)
    raw = read_yaml(path, roots if path is given else None)
    return validate(as_type, raw, path.name, quote=roots is None)
