"""Finds, reads and validates YAML files; every error is one line with field, value and what is expected.

Configurations are frozen dataclasses in the modules that use them; pydantic checks them here, at the edge.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from .documents import adapter
from .errors import ConfigError, did_you_mean, expectation
from .limited_yaml import MOST_BYTES, parse_yaml
from .reading import Roots, read_file

T = TypeVar("T")

NAMED_BY = ("name", "slice")  # fields that identify the entries of a list
PLAIN_NAME = re.compile(r"[A-Za-z][\w.-]{0,62}", re.ASCII)
UNKNOWN_FIELD = {"unexpected_keyword_argument", "extra_forbidden"}

PACKAGE = __name__.rpartition(".")[0]


def available(kind: str) -> list[str]:
    """Names of the shipped configurations of a kind (a folder of ``configs/``), sorted."""
    folder = resources.files(PACKAGE).joinpath(kind)
    return sorted(p.name.removesuffix(".yaml") for p in folder.iterdir() if p.name.endswith(".yaml"))


def kinds() -> list[str]:
    """Folders of shipped configurations, sorted."""
    folders = [folder.name for folder in resources.files(PACKAGE).iterdir() if folder.is_dir()]
    return sorted(name for name in folders if available(name))


def locate(kind: str, name_or_path: str | Path, hint: bool = True) -> Path:
    """Path of a shipped configuration by name, or of a user's file by path; raises ConfigError if there is neither.

    With ``hint`` the error names a file of the working folder that only lacks its ``.yaml``.
    """
    path = Path(name_or_path)
    if _is_path(path):
        if not _is_file(path):
            raise ConfigError(f"file {str(path)!r} does not exist")
        return path
    names = available(kind)
    if str(name_or_path) not in names:
        given = str(name_or_path)
        if hint and _is_file(Path(f"{given}.yaml")):
            raise ConfigError(f"{kind}: unknown name {given!r}; did you mean {given}.yaml?")
        raise ConfigError(f"{kind}: unknown name {given!r}; {did_you_mean(given, names, most=3)}")
    with resources.as_file(resources.files(PACKAGE).joinpath(kind, f"{name_or_path}.yaml")) as shipped:
        return shipped.resolve()  # in a clone the path has links of the user who cloned it


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that no file can have
        return False


def _is_path(given: Path) -> bool:
    """Whether it is a user's file rather than a shipped name."""
    return given.suffix in {".yaml", ".yml"} or given.parent != Path()


def beside(file: Path, name_or_path: str) -> str:
    """A name or path as a configuration file means it: relative paths count from the file's folder."""
    path = Path(name_or_path)
    return str(file.parent / path) if _is_path(path) and not path.is_absolute() else name_or_path


def read_yaml(path: Path, roots: Roots | None = None) -> Any:
    """Parse a YAML file within the limits of `limited_yaml`.

    Args:
        path: of the file.
        roots: where it has to be; None: anywhere.

    Raises:
        ConfigError: unreadable file or invalid YAML, with line and column.
    """
    what = f"file {str(path)!r}"
    return parse_yaml(read_file(path, MOST_BYTES, what, roots), what)


def validate(kind: type[T], raw: Any, source: str, quote: bool = True) -> T:
    """Turn parsed YAML into a dataclass with annotated constraints.

    Args:
        kind: the dataclass.
        raw: parsed YAML.
        source: begins errors.
        quote: whether errors may show contents of ``raw``; else they name only fields of ``kind``.

    Raises:
        ConfigError: the first violation, as ``source: field = value: what is expected``.
    """
    if raw is None:
        raise ConfigError(f"{source}: empty; expected the fields {_listed(kind, ())}")
    try:
        return adapter(cast(Any, kind)).validate_python(raw)
    except ValidationError as error:
        first = _most_telling(error.errors(include_url=False))
        where, value, message = first["loc"], first.get("input"), expectation(first["msg"])
        names = list(_names_along(kind, where))
        if first["type"] in UNKNOWN_FIELD:
            message = f"unknown field; {did_you_mean(str(where[-1]), names[-1])}"
        elif first["type"] == "string_type" and value is not None and not isinstance(value, (list, dict)):
            message = "expected a string: write it in quotes"  # YAML reads 7, no and 2024-01-01 as other things
        elif first["type"] == "dataclass_type":  # pydantic's own message names a class of this program
            message = f"expected the fields {_listed(kind, where)}"
        if not quote:
            if first["type"] == "value_error":
                message = "not accepted"
            where = tuple(
                part if isinstance(part, int) or part in known else "..."
                for part, known in zip(where, names, strict=True)
            )
            # From None: a traceback would quote as well.
            raise ConfigError(f"{source}: {_field(where)}: {message}") from None
        shown = repr(value) if isinstance(value, (str, int, float, bool, type(None))) else type(value).__name__
        shown = "" if first["type"] == "missing" else f" = {shown}"
        field = f"{_field(_by_name(raw, where))}{shown}: " if where or first["type"] != "value_error" else ""
        raise ConfigError(f"{source}: {field}{message}") from error


def _most_telling(errors: list[ErrorDetails]) -> ErrorDetails:
    """The first violation; if that is a missing field, and one of a similar name is there instead, the latter."""
    from difflib import get_close_matches  # rarely needed

    first = errors[0]
    if first["type"] != "missing":
        return first
    unknown = {
        str(item["loc"][-1]): item
        for item in errors
        if item["type"] in UNKNOWN_FIELD and item["loc"][:-1] == first["loc"][:-1]
    }
    near = get_close_matches(str(first["loc"][-1]), unknown, n=1)
    return unknown[near[0]] if near else first


def _by_name(raw: Any, where: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """The same path with the names of the entries of lists, where they have names: ``slices.video``, not ``slices.1``.

    Entries with the same name, or with a name that could be a field, keep their number.
    """
    result: list[int | str] = []
    level: Any = raw
    for part in where:
        names = [_name_of(entry) for entry in level] if isinstance(level, list) else []
        known = isinstance(part, int) and part < len(names)
        name = names[cast(int, part)] if known else None
        result.append(part if name is None or names.count(name) > 1 else name)
        try:
            level = level[cast(Any, part)]
        except (KeyError, IndexError, TypeError):  # the rest of the path is pydantic's, as of a union
            level = None
    return tuple(result)


def _name_of(entry: Any) -> str | None:
    keys = [key for key in NAMED_BY if isinstance(entry, dict) and isinstance(entry.get(key), str)]
    name = entry[keys[0]] if keys else None
    return name if name and PLAIN_NAME.fullmatch(name) else None


def _listed(kind: Any, where: tuple[int | str, ...]) -> str:
    *_, names = _names_along(kind, (*where, ""))
    return ", ".join(names) or "of such a file"


def _field(where: tuple[int | str, ...]) -> str:
    return ".".join(map(str, where)) or "document"


def _names_along(kind: Any, where: tuple[int | str, ...]) -> Iterator[list[str]]:
    """The names of the fields at each step on the way to a value; none in a list or mapping."""
    for part in where:
        kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
        fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
        yield [field.name for field in fields]
        if fields:
            kind = get_type_hints(kind, include_extras=True).get(str(part), Any)
        elif get_origin(kind) in {list, tuple, dict}:
            kind = next((argument for argument in reversed(get_args(kind)) if argument is not Ellipsis), Any)
        members = get_args(kind) if get_origin(kind) in {Union, UnionType} else ()
        kind = next((member for member in members if dataclasses.is_dataclass(member) or get_origin(member)), kind)


def load(kind: str, name_or_path: str | Path, as_type: type[T], roots: Roots | None = None) -> T:
    """Locate, read and validate a configuration; raises ConfigError as the three steps do.

    With ``roots`` the name comes from a client that may not read all that this process can: a file has to be below
    them, and errors quote nothing of it.
    """
    given = Path(name_or_path)
    path = given if roots is not None and _is_path(given) else locate(kind, name_or_path, hint=roots is None)
    raw = read_yaml(path, roots if path is given else None)
    return validate(as_type, raw, path.name, quote=roots is None)
