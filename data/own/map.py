"""The map: which column of which file is which quantity, in which unit, of which slice.

A table's columns are named as everywhere here, with their unit at the end (`slicepilot.data.tables.tidy.UNITS`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from slicepilot.configs import ConfigError, read_yaml, validate

from .units import factor

KIND = "own"
"""Kind of a table made of a user's own files, beside the kinds of releases."""
Format = Literal["csv", "parquet", "prometheus", "netdata", "iperf3", "ping", "pcap"]
TimeUnit = Literal["s", "ms", "us", "ns", "text"]
Delimiter = Literal[",", ";", "\t", "|"]
Decimal = Literal[".", ","]
NS_OF: dict[str, float] = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}
OWN_COLUMNS = ("time", "time_s", "slice")
FILE = "file"
"""In fields that name a column or label of words: use the name of the row's file, without its ending."""
PER_TIME = 1_000
"""Nanoseconds: times of all files are rounded to it, so that the same time written in another way is the same."""

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"
SliceName = Annotated[str, Field(pattern=_NAME)]
Text = Annotated[str, Field(min_length=1, max_length=500)]


def _check_quantity(name: str) -> str:
    if name in OWN_COLUMNS:
        raise ValueError(f"a column that every table has; expected the name of a quantity, such as {name}_s")
    return name


@dataclass(frozen=True)
class Mapped:
    """How a column or series is converted.

    Attributes:
        quantity: name of the table's column; its ending is its unit: ``carried_mbps``.
        unit: of the file's values, as in ``bit/s``, ``ms``, ``%``; None: that of the quantity's name.
        slice: the slice, where the file has a column for each slice.
        counter: values are cumulative: the table has their increase per second.
        sum: several columns or series with this mark, of one quantity and slice, are added up.
    """

    __pydantic_config__ = _STRICT
    quantity: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$"), AfterValidator(_check_quantity)]
    unit: str | None = None
    slice: SliceName | None = None
    counter: bool = False
    sum: bool = False

    def factor(self) -> float:
        """Conversion factor of the values; raises ConfigError for units that do not fit."""
        return factor(self.unit, self.quantity, self.counter)


@dataclass(frozen=True)
class FileMap:
    """How files of one layout are read.

    Attributes:
        match: name of the files; ``*`` matches any characters.
        columns: by the file's name of a column, what it becomes. In a long table by the words of the column
            ``quantity``; of series by ``name{label="value"}``, where all labels have to fit; other columns are left
            out.
        time: column of the time; None: rows have no time.
        time_unit: of numbers, since 1970 or since the start; ``text`` for dates.
        time_format: of dates as in `datetime.datetime.strptime`; None: ISO 8601.
        time_zone: of dates without a zone, as in ``Europe/Berlin``.
        start: date of the time 0, of files whose times begin at their start.
        slice: column or label that names the slice, or `FILE`; ``slices`` says what its words become, others are kept.
        slice_name: the slice, for a file of a single slice.
        quantity, value: columns of a long table, with a row for each value.
        keep: columns or labels of words that the table keeps, such as run or load, or `FILE`.
        delimiter, decimal: of CSV.
        interval_s: between pings, of logs without times.
    """

    __pydantic_config__ = _STRICT
    match: Text
    format: Format
    columns: Annotated[dict[str, Mapped], Field(min_length=1, max_length=4096)]
    time: Text | None = None
    time_unit: TimeUnit = "text"
    time_format: Text | None = None
    time_zone: Text = "UTC"
    start: Text | None = None
    slice: Text | None = None
    slice_name: SliceName | None = None
    slices: dict[str, SliceName] = field(default_factory=dict)
    quantity: Text | None = None
    value: Text | None = None
    keep: tuple[Text, ...] = ()
    delimiter: Delimiter = ","
    decimal: Decimal = "."
    interval_s: Annotated[float, Field(gt=0, le=3600)] = 1.0

    @property
    def labels(self) -> list[str]:
        """Columns of words that are read."""
        names = (self.slice, self.quantity, *self.keep)
        return list(dict.fromkeys(name for name in names if name is not None and name != FILE))

    @property
    def is_long(self) -> bool:
        """Whether a row has one value, and a column says of which quantity."""
        return self.quantity is not None


@dataclass(frozen=True)
class DataMap:
    """Files that make up one table.

    Attributes:
        name: of the table's file.
        period_s: the table has a row for each slice and so many seconds; None: a row for each measurement.
        episodes: what episodes need besides, see `slicepilot.training.recording.own_files`; None: there are none.
    """

    __pydantic_config__ = _STRICT
    files: Annotated[tuple[FileMap, ...], Field(min_length=1, max_length=256)]
    name: Annotated[str, Field(pattern=_NAME)] = "own"
    period_s: Annotated[float, Field(ge=1e-3, le=86_400)] | None = None
    episodes: dict[str, Any] | None = None


def read_map(path: Path) -> DataMap:
    """Read and check a map.

    Raises:
        ConfigError: it cannot be read or is invalid; the message has the field and its value.
    """
    result = validate(DataMap, read_yaml(path), str(path))
    for number, file in enumerate(result.files):
        try:
            _check(file)
        except ConfigError as error:
            raise ConfigError(f"{path}: files.{number} ({file.match}): {error}") from None
    return result


def _check(file: FileMap) -> None:
    """Raises ConfigError for fields that do not go together."""
    if (file.quantity is None) != (file.value is None):
        raise ConfigError("quantity, value: expected both, of a long table, or neither")
    if file.is_long and file.format not in {"csv", "parquet", "netdata"}:
        raise ConfigError(f"value = {file.value!r}: of a long table; expected none in files of format {file.format}")
    if file.slice is not None and file.slice_name is not None:
        raise ConfigError(f"slice_name = {file.slice_name!r}: expected none, because slice names a column")
    for name, column in file.columns.items():
        try:
            column.factor()
        except ConfigError as error:
            raise ConfigError(f"columns.{name}.{error}") from None
        if column.slice is None and file.slice is None and file.slice_name is None:
            raise ConfigError(f"columns.{name}: no slice; expected slice_name, or slice with the name of a column")


def entries_of(data_map: DataMap, paths: Sequence[Path]) -> list[tuple[Path, FileMap]]:
    """Pair each file with its entry of the map; raises ConfigError for an unmatched file or entry."""
    result: list[tuple[Path, FileMap]] = []
    for path in paths:
        entry = next((file for file in data_map.files if fnmatchcase(path.name, file.match)), None)
        if entry is None:
            known = ", ".join(file.match for file in data_map.files[:8])
            raise ConfigError(f"{path}: no entry of the map matches; expected one of {known}")
        result.append((path, entry))
    used = {id(entry) for _, entry in result}
    if unused := [file.match for file in data_map.files if id(file) not in used]:
        raise ConfigError(f"files = {unused[0]!r}: no file of this name is given; expected a path of it")
    return result
