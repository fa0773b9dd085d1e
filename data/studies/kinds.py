"""Which kinds of files the released datasets consist of: how to recognise each, and how to read it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from slicepilot.configs import ConfigError
from slicepilot.data.csv.blocks import OTHER_DELIMITERS
from slicepilot.data.csv.chunks import UTF16, OnProgress, other_kind_of, read_start, uncompressed_name, utf16_of
from slicepilot.data.faults import DatasetError, Faults
from slicepilot.data.files import what_else
from slicepilot.data.tables.tidy import Stream

from .andrade import figures as andrade_figures
from .andrade import tables as andrade
from .andrade.mongo_exports import ending_of
from .andrade.units import COLLECTIONS, unit_of
from .mishra import figures as mishra_figures
from .mishra import tables as mishra
from .moreira import netdata
from .moreira import tables as moreira


@dataclass(frozen=True)
class Options:
    """Facts about a file that its contents lack.

    Attributes:
        units: of exports of Andrade and Wickboldt; a collection without an entry has the plausible unit.
        qfi, condition: of a run of Moreira et al.; None: taken from the name of its folder.
        traffic_classes: of their UEs, by address.
    """

    units: tuple[str, ...] = ()
    qfi: int | None = None
    condition: str | None = None
    traffic_classes: Mapping[str, str] = field(default_factory=dict)


Read = Callable[[Path, Faults, Options, OnProgress | None], Stream]
StudyTable = andrade_figures.StudyTable | mishra_figures.StudyTable
"""Makes the rows that a study publishes of a file while the batches of its tidy table go by."""


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes:
        name: what commands call it.
        release: that it belongs to; see `slicepilot.data.studies.releases`.
        fits: whether a file, with its first bytes, is of this kind.
        label: what tells a file from others of its kind; may be empty.
        study: of the tidy table's schema and the file's name: what makes the rows that the study publishes of such a
            file; None where that is not known.
    """

    name: str
    release: str
    fits: Callable[[Path, bytes], bool]
    read: Read
    label: Callable[[Path, Options], str] = lambda path, options: ""
    study: Callable[[Any, str], StudyTable] | None = None


PAPERWORK = frozenset({"readme", "license", "licence", "copying", "notice", "changelog", "citation", "makefile"})
"""Names, without endings, of files in a repository that are no data."""
PROSE_AND_CODE = frozenset(
    {".md", ".rst", ".py", ".sh", ".bt", ".c", ".h", ".awk", ".yaml", ".yml", ".toml", ".cfg", ".ipynb", ".pdf"}
)
"""Endings of such files. A README may quote lines of a log, and a probe's source prints them; neither is a log."""


_LINE_END = re.compile(rb"[\r\n]")


def is_paperwork(path: Path) -> bool:
    """Whether a file's name says that it belongs to a repository and not to its data: README.md, LICENSE, plot.py."""
    return path.stem.lower() in PAPERWORK or path.suffix.lower() in PROSE_AND_CODE


def find(name: str) -> Kind:
    """A kind by name; raises ConfigError with those that there are."""
    for kind in KINDS:
        if kind.name == name:
            return kind
    raise ConfigError(f"kind = {name!r}: expected {', '.join(kind.name for kind in KINDS)}")


def detect(path: Path) -> Kind | None:
    """The kind that a file's name and first bytes say it is of; None for others.

    Raises:
        DatasetError: it cannot be read, or it would be of a kind if it were UTF-8 with commas between fields.
    """
    if is_paperwork(path):
        return None
    start = read_start(path)
    kind = _fitting(path, start)
    if kind is None and (problem := _misfit(path, start)):
        raise DatasetError.at(path, problem)
    return kind


def detected(path: Path) -> Kind:
    """As `detect`; raises DatasetError for a file of no known kind."""
    kind = detect(path)
    if kind is None:
        start = read_start(path)
        if not start:
            raise DatasetError.at(path, "is empty; expected a file of a release")
        if utf16_of(start) is not None:
            raise DatasetError.at(path, UTF16)
        if other := other_kind_of(start):
            raise DatasetError.at(path, f"is {other}; expected a file of a release")
        names = ", ".join(known.name for known in KINDS)
        raise DatasetError.at(path, f"of no known kind; expected --kind with one of {names}")
    return kind


def _fitting(path: Path, start: bytes) -> Kind | None:
    return next((kind for kind in KINDS if kind.fits(path, start)), None)


def _misfit(path: Path, start: bytes) -> str | None:
    """Why a file is of no kind, if its encoding or delimiter is the reason."""
    if encoding := utf16_of(start):
        plain = start.decode(encoding, "replace").encode()
        readings = [plain, *(plain.replace(other.encode(), b",") for other in OTHER_DELIMITERS)]
        return UTF16 if any(_fitting(path, reading) for reading in readings) else None
    for other, word in OTHER_DELIMITERS.items():
        header = _LINE_END.split(start, maxsplit=1)[0]
        if b"," not in header and _fitting(path, header.replace(other.encode(), b",")):
            return f"fields are separated by {word}; expected commas"
    return None


def files_below(paths: list[Path]) -> Iterator[Path]:
    """Files, and all files in folders and below but hidden ones, in order of their names.

    Raises:
        ConfigError: a path that does not exist, or leads to something else than a file or a folder.
    """
    for path in paths:
        if path.is_dir():
            for file in sorted(path.rglob("*")):
                hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
                if file.is_file() and not hidden:
                    yield file
        elif problem := what_else(path):
            raise ConfigError(f"path = {str(path)!r}: {problem}; expected a regular file or folder")
        else:
            yield path


def _header(start: bytes) -> set[str]:
    """Names in the first line of a CSV file."""
    line = _LINE_END.split(start, maxsplit=1)[0].decode("utf-8-sig", "replace")
    return {name.strip().strip('"') for name in line.split(",")}


def _fits_andrade(collection: str, path: Path, start: bytes) -> bool:
    if andrade.collection_of(path) != collection:
        return False
    if ending_of(path) == ".csv":
        return {"exp", "ts", "value"} <= _header(start)
    return b"exp" in start and b"value" in start


def _read_andrade(
    collection: str, path: Path, faults: Faults, options: Options, on_progress: OnProgress | None
) -> Stream:
    return andrade.read_andrade(path, collection, faults, unit_of(collection, options.units), on_progress)


def _label_mishra(path: Path, options: Options) -> str:
    name = uncompressed_name(path.name).removesuffix(".csv")
    return name.removeprefix("o1_").removeprefix("forwarding_").removeprefix("pfcp_").removeprefix("exp_")


def _fits_resources(path: Path, start: bytes) -> bool:
    names = _header(start)
    return "time" in names and bool({"cpu_user", "cpu_limit_used", "net_packets_n3_received"} & names)


def _run_of(path: Path, options: Options) -> moreira.Run:
    return moreira.run_of(path, options.qfi, options.condition)


def _label_moreira(path: Path, options: Options) -> str:
    run = _run_of(path, options)
    return f"qfi{run.qfi}-{run.condition}"


KINDS = (
    *(
        Kind(
            name=f"andrade-{name}",
            release="andrade",
            fits=partial(_fits_andrade, name),
            read=partial(_read_andrade, name),
            study=andrade_figures.StudyTable,
        )
        for name in COLLECTIONS
    ),
    Kind(
        name="mishra-forwarding",
        release="mishra",
        fits=lambda path, start: {"slice", "delay_us", "ts_rx_ns"} <= _header(start),
        read=lambda path, faults, options, on_progress: Stream(
            mishra.FORWARDING, mishra.forwarding_batches(path, faults, on_progress), ("slice", "interface")
        ),
        label=_label_mishra,
        study=mishra_figures.StudyTable,
    ),
    Kind(
        name="mishra-pfcp",
        release="mishra",
        fits=lambda path, start: {"pfcp_type", "latency_us"} <= _header(start),
        read=lambda path, faults, options, on_progress: Stream(
            mishra.PFCP, mishra.pfcp_batches(path, faults, on_progress), ("message_type",)
        ),
        label=_label_mishra,
        study=mishra_figures.StudyTable,
    ),
    Kind(
        name="moreira-resources",
        release="moreira",
        fits=_fits_resources,
        read=lambda path, faults, options, on_progress: netdata.read_resources(
            path, _run_of(path, options), faults, on_progress
        ),
        label=_label_moreira,
    ),
    Kind(
        name="moreira-latency",
        release="moreira",
        fits=lambda path, start: b"| Decapsulation Overhead:" in start,
        read=lambda path, faults, options, on_progress: moreira.read_latency(
            path, _run_of(path, options), faults, options.traffic_classes, on_progress
        ),
        label=_label_moreira,
    ),
)
