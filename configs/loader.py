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

import yaml
from pydantic import TypeAdapter, ValidationError

from .errors import ConfigError, did_you_mean

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
    if path.suffix in {".yaml", ".yml"} or path.parent != Path():
        if not _is_file(path):
            raise ConfigError(f"{kind}: file {str(path)!r} does not exist")
        return path
    names = available(kind)
    if str(name_or_path) not in names:
        given = str(name_or_path)
        raise ConfigError(f"{kind}: unknown name {given!r}; {did_you_mean(given, names, most=3)}")
    with resources.as_file(resources.files(PACKAGE).joinpath(kind, f"{name_or_path}.yaml")) as found:
        return found


def read_yaml(path: Path) -> Any:
    """Parse one YAML file with the safe loader.

    Raises:
        ConfigError: unreadable file or invalid YAML, with line and column.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):  # reading a pipe would wait for whoever writes
        raise ConfigError(f"file {str(path)!r}: accepted: a YAML file")
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"file {str(path)!r}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a date that is none; nested too deeply
        where = getattr(error, "problem_mark", None)
        at = f" at line {where.line + 1}, column {where.column + 1}" if where else ""
        raise ConfigError(f"file {str(path)!r}: not valid YAML{at}") from error


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that no file can have
        return False


def validate(kind: type[T], raw: Any, source: str) -> T:
    """Turn parsed YAML into a value of ``kind`` (a dataclass with annotated constraints).

    Raises:
        ConfigError: the first violation, as ``source: field = value: what is accepted``.
    """
    try:
        return TypeAdapter(kind).validate_python(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "document"
        value = first.get("input")
        shown = repr(value) if isinstance(value, (str, int, float, bool, type(None))) else type(value).__name__
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] in {"unexpected_keyword_argument", "extra_forbidden"}:
            message = f"unknown field; {_nearest(kind, first['loc'])}"
        raise ConfigError(f"{source}: {field} = {shown}: {message}") from error


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


def load(kind: str, name_or_path: str | Path, as_type: type[T]) -> T:
    """Locate, read and validate one configuration; raises `ConfigError` as the three steps do."""
    path = locate(kind, name_or_path)
    return validate(as_type, read_yaml(path), path.name)
