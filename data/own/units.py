"""Units as people and tools write them, and factors between them.

Prefixes are those of the SI (k, M, G) and of IEC 80000-13 (Ki, Mi, Gi). Upper-case B is a byte and lower-case b a bit,
as Grafana and iperf3 write them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain

from slicepilot.configs import ConfigError, did_you_mean
from slicepilot.data.tables.tidy import unit_of

_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}
# By what is measured: each unit's size in the first of them.
KINDS: dict[str, dict[str, float]] = {
    "rate": {f"{prefix}bit/s": size for prefix, size in _PREFIXES.items()}
    | {f"{prefix}B/s": 8.0 * size for prefix, size in _PREFIXES.items()},
    "time": {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0},
    "size": {f"{prefix}B": size for prefix, size in _PREFIXES.items()} | {"bit": 0.125},
    "CPU time": {"CPU": 1.0, "mCPU": 1e-3, "µCPU": 1e-6, "nCPU": 1e-9, "%": 1e-2},
    "share": {"1": 1.0, "%": 1e-2},
    "packets": {"packets": 1.0},
    "packet rate": {"packets/s": 1.0, "kpackets/s": 1e3},
    "frequency": {"1/s": 1.0},
}
UNITS = tuple(dict.fromkeys(chain.from_iterable(KINDS.values())))
_RATES = {"B": "B/s", "bit": "bit/s", "packets": "packets/s", "1": "1/s", "s": "CPU", "ms": "mCPU", "µs": "µCPU"}
_RATES |= {f"{prefix}B": f"{prefix}B/s" for prefix in _PREFIXES} | {"ns": "nCPU"}
_WRITTEN = {
    "us": "µs", "uCPU": "µCPU", "μs": "µs",
    "usec": "µs", "usecs": "µs", "microseconds": "µs", "micros": "µs", "msec": "ms",
    "msecs": "ms", "millis": "ms", "milliseconds": "ms", "millisecond": "ms", "sec": "s", "secs": "s", "seconds": "s",
    "second": "s", "nsec": "ns", "nanos": "ns", "nanoseconds": "ns", "percent": "%", "percentage": "%", "pct": "%",
    "perc": "%", "ratio": "1", "share": "1", "fraction": "1", "percentunit": "1", "cpu": "CPU", "cpus": "CPU",
    "core": "CPU", "cores": "CPU", "vcpu": "CPU", "mcpu": "mCPU", "millicpu": "mCPU", "millicores": "mCPU",
    "millicore": "mCPU", "mcore": "mCPU", "mcores": "mCPU", "ucpu": "µCPU", "ncpu": "nCPU", "nanocores": "nCPU",
    "bps": "bit/s", "bits": "bit/s", "bit": "bit", "byte": "B", "bytes": "B", "octets": "B", "packet": "packets",
    "pkts": "packets", "packets": "packets", "pps": "packets/s", "pkts/s": "packets/s", "p/s": "packets/s",
    "mb": "MB", "kb": "kB", "gb": "GB", "mib": "MiB", "kib": "KiB", "gib": "GiB", "mibps": "MiB/s", "kibps": "KiB/s",
    "kpps": "kpackets/s", "hz": "1/s", "minutes": "min", "hours": "h", "per_s": "1/s",
}  # fmt: skip
_RATE = re.compile(
    r"(k|K|m|M|g|G|t|T|Ki|Mi|Gi|ki|mi|gi|kilo|mega|giga)?(bits?|b|B|bytes?|octets?)(/s|/sec|ps|it/s|_per_s)?"
)
_LONG = {"kilo": "k", "mega": "M", "giga": "G"}
_BRACKETS = re.compile(r"(.*)[\[(]([^\[\]()]{1,24})[\])]\s*")
_IN = re.compile(r"(.*\S)\s+in\s+(\S.{0,40})", re.IGNORECASE)
_SLASH = re.compile(r"(.*\S)\s+/\s+(\S+)")
_LAST = re.compile(r"(?:(.*)[\s_,])?([^\s_,/]+)/([^\s_,/]+)")
_PER_SECOND = re.compile(r"\s+per\s+(?:s|sec|second)$", re.IGNORECASE)


def known_unit(text: str) -> str | None:
    """The name in `UNITS` of a unit such as ``Mbps``, ``usec``, ``MB/s`` or ``pct``; None for an unknown unit."""
    written = text.strip().strip("[]()").replace(" ", "")
    if written in UNITS:
        return written
    if written in _WRITTEN:
        return _WRITTEN[written]
    match = _RATE.fullmatch(written)
    if match is None:
        lower = written.lower()
        return known_unit(lower) if lower != written else None
    prefix, what, per = match.groups()
    prefix = _LONG.get(prefix or "", prefix or "")
    prefix = {"K": "k", "m": "M", "g": "G", "t": "T"}.get(
        prefix, prefix[:1].upper() + prefix[1:] if len(prefix) == 2 else prefix
    )
    in_bytes = what == "B" or what.startswith(("byte", "oct"))
    if not per and not in_bytes:
        return f"{prefix}bit/s" if prefix else None  # "Mb" and "Mbit" of a rate
    return f"{prefix}{'B' if in_bytes else 'bit'}{'/s' if per else ''}"


@dataclass(frozen=True)
class Written:
    """A unit as a name has it.

    Attributes:
        rest: of the name.
        text: of the unit; unit: its name in `UNITS`, None for an unknown unit.
    """

    rest: str
    text: str
    unit: str | None


def written_unit(name: str) -> Written | None:
    """The unit in ``X in UNIT``, ``X (UNIT)``, ``X [UNIT]``, ``X / UNIT`` or ``X_UNIT/s``.

    None where a name has no such unit. A unit over another is a unit even if it is unknown: the ``s`` of ``kWh/s`` are
    no seconds.
    """
    for form in (_BRACKETS, _IN, _SLASH):
        match = form.fullmatch(name.strip())
        if match is None or (form is _SLASH and match[2].lower() in {"s", "sec", "second"}):
            continue
        text = match[2].strip()
        unit = known_unit(_PER_SECOND.sub("/s", text))
        if unit is not None or is_compound(text):
            return Written(match[1].strip(), text, unit)
    match = _LAST.fullmatch(re.sub(r"\s*/\s*", "/", name.strip()))
    if match is None or (per := known_unit(match[3])) is None:
        return None
    rest, text = match[1] or "", f"{match[2]}/{match[3]}"
    unit = known_unit(text)
    if (
        unit is None and per not in {"s", "min", "h"} and known_unit(match[2]) is None
    ):  # "latency/ms", as in tables of physics
        return Written(f"{rest} {match[2]}".strip(), match[3], per)
    return Written(rest, text, unit)


def is_compound(text: str) -> bool:
    """Whether a text is a unit over another, such as ``kWh/s``."""
    over, slash, under = re.sub(r"\s+per\s+", "/", text.strip(), flags=re.IGNORECASE).rpartition("/")
    return bool(over and slash) and known_unit(under) is not None


def factor(unit: str | None, column: str, counter: bool = False) -> float:
    """Conversion factor from a unit to that of a column's name; 1 where neither has a unit.

    Args:
        unit: of the values; None: that of the column.
        column: of the table, which ends with its unit: ``carried_mbps``.
        counter: the values are counted up, and their differences by second are wanted.

    Raises:
        ConfigError: no unit, or that of another quantity.
    """
    target = unit_of(column) or ("1" if column.endswith("_ratio") else None)
    if unit is None:
        return 1.0
    given = known_unit(unit)
    if given is None:
        raise ConfigError(f"unit = {unit!r}: {did_you_mean(unit, ('us', *UNITS))}")
    if counter:
        if given not in _RATES:
            raise ConfigError(f"unit = {unit!r}: of a counter; expected one of {', '.join(_RATES)}")
        given = _RATES[given]
    if target is None:
        raise ConfigError(
            f"unit = {unit!r}: of {column!r}, whose name has none; expected a name such as {column}_ms, or no unit"
        )
    for sizes in KINDS.values():
        if given in sizes and target in sizes:
            return sizes[given] / sizes[target]
    other = ", ".join(next(list(sizes)[:8] for sizes in KINDS.values() if target in sizes))
    of = " by second" if counter else ""
    raise ConfigError(f"unit = {unit!r}: {given}{of} does not become {target} of {column}; expected one of {other}")
