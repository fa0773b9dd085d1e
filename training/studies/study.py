"""A published study: rows with its figures, findings, and other sources of the figures."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from slicepilot.configs import ConfigError
from slicepilot.data.files import appended, replace_file
from slicepilot.data.intervals import mean_interval

Source = Literal["published", "simulated", "measured", "release"]
SOURCES: tuple[Source, ...] = ("published", "simulated", "measured", "release")
Outcome = Literal["agrees", "differs", "not compared"]


@dataclass(frozen=True)
class Figure:
    """A figure with the ends of its 95% interval, where it has any."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Row:
    """A figure of a study's tables.

    Attributes:
        key: tells it from the study's other rows, as ``5/slice1/throughput/mean``.
        text: the same for people.
        unit: of all its figures.
        published: as printed; None where only text speaks of it.
        tolerance: relative difference up to which a figure agrees with it; None where nothing is compared.
        cause: of a difference, where it is known.
    """

    key: str
    text: str
    unit: str
    published: float | None
    tolerance: float | None
    cause: str = ""


Values = Mapping[str, Figure]
"""Of rows, by key."""
Holds = Callable[[Values], tuple[bool, str]]


@dataclass(frozen=True)
class Finding:
    """A general finding of a study.

    Attributes:
        claim: the finding in a sentence.
        criterion: what must hold of figures for it to hold.
        holds: whether it does by a source's figures, with the figures it rests on; KeyError where one is missing.
        published: what the study says, where its printed figures do not decide.
        cause: why another source disagrees, where that is known.
    """

    claim: str
    criterion: str
    holds: Holds
    published: bool | None = None
    cause: str = ""


@dataclass
class Findings:
    """Figures from a source.

    Attributes:
        values: figures by row.
        extra: rows that the study has not, such as those of agents.
        shown_only: rows that are of another quantity here than in print, and are not compared.
        material: of pictures.
        remarks: how the figures were made.
    """

    values: dict[str, Figure] = field(default_factory=dict)
    extra: dict[str, Figure] = field(default_factory=dict)
    shown_only: set[str] = field(default_factory=set)
    material: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


class Store:
    """Results that are kept in a file as they come, a JSON line each, so that nothing is done twice.

    Args:
        path: of the file; None keeps nothing.
        resume: whether results that are in it count; else it starts empty. A last line that a writer which was killed
            left unfinished is dropped.

    Raises:
        ConfigError: a line of the file is not of this kind.
        OSError: the file cannot be read or written.
    """

    def __init__(self, path: Path | None, resume: bool) -> None:
        self.path, self._kept = path, dict[str, Any]()
        if path is None:
            return
        lines = path.read_bytes().splitlines(keepends=True) if resume and path.exists() else []
        whole = [line for line in lines if line.endswith(b"\n")]
        try:
            for line in whole:
                entry = json.loads(line)
                self._kept[entry["key"]] = entry["value"]
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}: cannot be resumed ({error}); run without --resume") from error
        replace_file(path, b"".join(whole))

    def get(self, key: str, make: Callable[[], Any]) -> Any:
        """The stored value of a key, else the result of ``make``, which is then stored; JSON in both cases."""
        if key not in self._kept:
            value = make()
            if self.path is not None:
                with appended(self.path) as file:
                    file.write(json.dumps({"key": key, "value": value}).encode() + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
            self._kept[key] = json.loads(json.dumps(value))
        return self._kept[key]


@dataclass(frozen=True)
class Effort:
    """How a study is played.

    Attributes:
        quick: fewer repetitions and shorter runs.
        agents: names of agents to add as further rows.
        seed: of loads and noise.
        say: called with what is being done, and the share of it that is done.
    """

    quick: bool
    agents: tuple[str, ...]
    seed: int
    say: Callable[[str, float], None]


@dataclass(frozen=True)
class Study:
    """A study; `simulate`, `measure` and `release` return its figures from a source.

    Attributes:
        orders: keys of rows whose order the study shows, by a description of the order.
        pictures: HTML figures of each source that has what they show.
    """

    name: str
    title: str
    citation: str
    question: str
    rows: Sequence[Row]
    findings: Sequence[Finding]
    simulate: Callable[[Effort, Store], Findings]
    measure: Callable[[Effort, Store], Findings]
    release: Callable[[Path, Effort], Findings]
    pictures: Callable[[Mapping[Source, Findings]], Sequence[str]]
    orders: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def printed(self) -> dict[str, float]:
        """The figures that the study printed, by row."""
        return {row.key: row.published for row in self.rows if row.published is not None}


def spearman(pairs: npt.NDArray[np.float64]) -> float:
    """Rank correlation of the two columns of (N, 2)."""
    ranks = pairs.argsort(axis=0).argsort(axis=0)
    return float(np.asarray(np.corrcoef(ranks.T))[0, 1])


def figure_over(value: float, parts: Sequence[float]) -> Figure:
    """A figure of all samples, with the interval of the mean over parts of them; the figure itself is in it."""
    spread = mean_interval(parts)
    return Figure(value, min(spread.low, value), max(spread.high, value))


def read(values: Values, *keys: str) -> list[float]:
    """The figures of these rows; raises KeyError where one is missing."""
    return [values[key].value for key in keys]


def figures_of(kept: Mapping[str, Any]) -> dict[str, Figure]:
    """Figures that a `Store` has kept as JSON."""
    return {key: Figure(**value) for key, value in kept.items()}


def as_json(values: Values) -> dict[str, Any]:
    """Figures as a `Store` keeps them."""
    return {key: asdict(value) for key, value in values.items()}


def compare(row: Row, figure: Figure | None) -> tuple[float | None, Outcome]:
    """Difference of a figure from the published figure in %, and whether they agree.

    They do within the row's tolerance, or where the figure's interval has the printed figure in it.
    """
    if row.published is None or figure is None:
        return None, "not compared"
    difference = 100.0 * (figure.value / row.published - 1.0) if row.published else None
    if row.tolerance is None:
        return difference, "not compared"
    inside = figure.low is not None and figure.high is not None and figure.low <= row.published <= figure.high
    near = abs(figure.value - row.published) <= row.tolerance * abs(row.published)
    return difference, "agrees" if near or inside else "differs"
