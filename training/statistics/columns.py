"""Which columns of a table hold delays, which say what group a row belongs to, and which may explain the delays."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from slicepilot.configs import ConfigError

FILE = "file"
"""Stands for the file that a row comes from where a column is requested, unless a column has this name."""
UNITS = ("ns", "us", "ms", "s")
BASELINES = ("baseline", "none", "no-control")
"""Name of the group with which the others are compared."""

_DELAY = re.compile(rf"(delay|latency)\w*_({'|'.join(UNITS)})")
_GROUPS = ("condition", "traffic_class", "slice", "behaviour", "message_type", "mode", "qfi", "priority", "experiment")
_LOADS = (
    ("cpu", re.compile(r"cpu_limit_used\w*|cpu_use_mcpu")),
    ("cpu", re.compile(r"cpu_user\w*")),
    ("packets", re.compile(r"net_packets_n3_received\w*|packets_per_s|packets\w*_pps")),
    ("offered_mbps", re.compile(r"offered_mbps")),
    ("packet_bytes", re.compile(r"packet_bytes")),
)
"""By the name that the regression has for them; where two of a name are there, the first counts."""
_KINDS = ("qfi", "traffic_class", "condition", "slice", "behaviour", "mode")


@dataclass(frozen=True)
class Columns:
    """The columns that are read of a table.

    Attributes:
        value: the delays; ``unit`` is how its name ends, one of `UNITS` or nothing.
        by: what groups the rows, maybe `FILE`.
        by_file: whether that is the file, and no column.
        loads: numbers that may explain the delays, by the name that the regression has for them.
        kinds: texts that may, levels of categorical covariates.
    """

    value: str
    unit: str
    by: str
    by_file: bool
    loads: dict[str, str]
    kinds: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        """Each column once."""
        by = () if self.by_file else (self.by,)
        return tuple(dict.fromkeys([self.value, *by, *self.loads.values(), *self.kinds]))


def choose(
    schema: pa.Schema, value: str | None = None, by: str | None = None, on: Sequence[str] | None = None
) -> Columns:
    """The requested columns, of delays, groups (or `FILE`) and covariates; else the first that look like these.

    Raises:
        ConfigError: no such column, no similar column, or a column of the wrong type.
    """
    chosen = delay_column(schema, value)
    if chosen is None:
        raise ConfigError(
            f"value = {value}: expected a column of numbers: {', '.join(_numbers(schema)) or 'none here'}"
        )
    unit = chosen.rpartition("_")[2]
    loads, kinds = _covariates(schema, chosen, on)
    groups = [f.name for f in schema if not pa.types.is_floating(f.type) and not pa.types.is_temporal(f.type)]
    by = _by(groups, by)
    return Columns(chosen, unit if unit in UNITS else "", by, by not in groups, loads, kinds)


def delay_column(schema: pa.Schema, value: str | None = None) -> str | None:
    """The column of delays, as requested or by its name; None without such a column."""
    if value is not None:
        return value if value in _numbers(schema) else None
    alike = [name for name in _numbers(schema) if _DELAY.fullmatch(name)]
    # The tail is what promises are about.
    return next((name for name in alike if "p99" in name), alike[0] if alike else None)


def loads_of(schema: pa.Schema) -> dict[str, str]:
    """The columns of load, by the name that the regression has for them."""
    result: dict[str, str] = {}
    for term, pattern in _LOADS:
        name = next(filter(pattern.fullmatch, _numbers(schema)), None)
        if name is not None:
            result.setdefault(term, name)
    return result


def _covariates(schema: pa.Schema, value: str, on: Sequence[str] | None) -> tuple[dict[str, str], tuple[str, ...]]:
    if on is None:
        return loads_of(schema), tuple(name for name in _KINDS if name in schema.names)
    for name in on:
        if name not in schema.names or name == value:
            raise ConfigError(f"on = {name!r}: expected {', '.join(n for n in schema.names if n != value)}")
    loads = {name: name for name in on if name in _numbers(schema) and name not in _KINDS}
    return loads, tuple(name for name in on if name not in loads)


def _by(groups: Sequence[str], by: str | None) -> str:
    if by is not None:
        if by not in {*groups, FILE}:
            raise ConfigError(f"by = {by!r}: expected {', '.join(dict.fromkeys([*groups, FILE]))}")
        return by
    return next((name for name in _GROUPS if name in groups), FILE)


def _numbers(schema: pa.Schema) -> list[str]:
    return [f.name for f in schema if pa.types.is_floating(f.type) or pa.types.is_integer(f.type)]


def baseline_of(groups: Iterable[str], name: str | None = None) -> str:
    """The baseline group: as named, else a group with a name of `BASELINES`, else the first.

    Raises:
        ConfigError: no such group.
    """
    known = list(groups)
    if name is None:
        return next((group for group in known if group.lower() in BASELINES), known[0])
    if name not in known:
        raise ConfigError(f"baseline = {name!r}: expected {', '.join(known)}")
    return name


def in_order(names: Iterable[str]) -> list[str]:
    """Sorted, 2 before 10."""

    def parts(name: str) -> list[tuple[bool, int, str]]:
        return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", name)]

    return sorted(names, key=parts)


def shortened(name: str, longest: int) -> str:
    """A name of so many characters at most; its beginning and end say more than its middle."""
    return name if len(name) <= longest else f"{name[: longest // 3]}…{name[longest // 3 + 1 - longest :]}"
