"""What of an answer is believed: a single series for a slice, recent samples, numbers from 0 on.

Formats are those of the server's HTTP API: https://prometheus.io/docs/prometheus/latest/querying/api/.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from slicepilot.configs.text import on_a_line

from .config import TAG, Row

FUTURE_S = 5.0
"""Clocks of this machine, the server and what it scrapes may differ by so much."""
MOST = 1e12
"""No row has so much of anything, in its unit; what is more would be infinite in telemetry's 32 bits."""
Floats = npt.NDArray[np.float64]


class NoAnswerError(Exception):
    """What a server said is not what the API describes; the message is one line."""


@dataclass(frozen=True)
class Reading:
    """One row at N times of S slices, of the node, or of knobs.

    Attributes:
        values: float64 (N, S) in the row's unit; NaN where there is none that is believed.
        newest_s: float64 (N, S), when the newest sample was taken that it rests on; NaN where there is none.
        why: of each slice, what was wrong at the last time; None where nothing was.
        partial: what the server said of an answer that it called partial, or warned of, as a line: no value of it is
            believed. None where it said nothing.
        infos: what it remarked otherwise, as lines.
    """

    values: Floats
    newest_s: Floats
    why: tuple[str | None, ...]
    partial: str | None = None
    infos: tuple[str, ...] = ()

    def marked(self, partial: str | None, infos: tuple[str, ...]) -> Reading:
        """The same with the server's remarks; without values if the answer is partial."""
        if partial is None:
            return dataclasses.replace(self, infos=infos)
        nothing = np.full_like(self.values, np.nan)
        return Reading(nothing, nothing.copy(), (None,) * len(self.why), partial, infos)


@dataclass
class _Series:
    labels: dict[str, str]
    at: Floats


def read(row: Row, result: Any, times_s: Floats, most_age_s: float, now_s: float) -> Reading:
    """The answer to ``row.parts``, at the times of a range query or at the time of an instant query.

    Args:
        row: that was requested.
        result: ``data.result`` of the answer, a vector or a matrix.
        times_s: (N,), ascending: those requested. Of a vector, N is 1 and the time is now.
        most_age_s: older samples are not believed.
        now_s: by this machine's clock: what is later, by `FUTURE_S`, is of a clock that is wrong.

    Raises:
        NoAnswerError: not an answer to that.
    """
    grid: dict[str, list[_Series]] = {f"{s}:{kind}": [] for s in range(len(row.samples)) for kind in "vt"}
    for labels, points in _series(result):
        tag = labels.pop(TAG, "")
        if tag not in grid:
            raise NoAnswerError(f"{row.name}: an answer to something else")
        grid[tag].append(_Series(labels, _placed(points, times_s)))
    values = np.full((len(times_s), len(row.samples)), np.nan)
    newest = np.full_like(values, np.nan)
    why = []
    for s, selector in enumerate(row.samples):
        column, newest[:, s], problem = _slice(grid[f"{s}:v"], grid[f"{s}:t"], times_s, most_age_s, now_s)
        values[:, s] = row.scale * column
        why.append(None if problem is None else f"{row.name}: {problem.replace('SELECTOR', on_a_line(selector))}")
    return Reading(values, newest, tuple(why))


def _series(result: Any) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
    """Labels and points of each series; raises NoAnswerError."""
    try:
        return [
            (
                {str(name): str(label) for name, label in item["metric"].items()},
                [(float(at), float(value)) for at, value in (item["values"] if "values" in item else [item["value"]])],
            )
            for item in result
        ]
    except (AttributeError, KeyError, TypeError):
        raise NoAnswerError("not an answer of a Prometheus server: a series without labels or values") from None
    except (OverflowError, ValueError):
        raise NoAnswerError("not an answer of a Prometheus server: a value that is no number") from None


def _placed(points: Sequence[tuple[float, float]], times_s: Floats) -> Floats:
    """Values at the requested times, NaN between; of a vector its single value."""
    column = np.full(len(times_s), np.nan)
    if len(times_s) == 1 and len(points) == 1:
        column[0] = points[0][1]
        return column
    for at, value in points:
        position = int(np.searchsorted(times_s, at - 0.01))
        if position < len(times_s) and abs(times_s[position] - at) < 0.01:
            column[position] = value
    return column


def _slice(
    values: list[_Series], samples: list[_Series], times_s: Floats, most_age_s: float, now_s: float
) -> tuple[Floats, Floats, str | None]:
    """Values (N,), times of their samples (N,), and what was wrong at the last time.

    NaN of a value says that there is none; the server's own NaN is none either.
    """
    none = np.full(len(times_s), np.nan)
    if not samples:
        return none, none, "no series fits SELECTOR"
    taken = np.stack([sample.at for sample in samples])
    there = np.isfinite(taken)
    future = there & (taken > np.minimum(times_s, now_s) + FUTURE_S)
    fresh = there & ~future & (taken >= times_s - most_age_s)
    newest = np.where(fresh.any(axis=0), np.where(fresh, taken, -np.inf).max(axis=0), np.nan)
    given = np.stack([item.at for item in values]) if values else none[None]
    count = np.isfinite(given).sum(axis=0)
    value = np.where(count == 1, np.where(np.isfinite(given), given, -np.inf).max(axis=0), np.nan)
    believed = (fresh.sum(axis=0) == 1) & (count == 1) & (value >= 0) & (value < MOST)
    why = None
    if not believed[-1]:
        ages = times_s[-1] - taken[there[:, -1], -1]
        why = _why(samples, there[:, -1], future[:, -1], fresh[:, -1], ages, values, float(value[-1]))
    return np.where(believed, value, np.nan), np.where(believed, newest, np.nan), why


def _why(
    samples: list[_Series],
    there: npt.NDArray[np.bool_],
    future: npt.NDArray[np.bool_],
    fresh: npt.NDArray[np.bool_],
    ages_s: Floats,
    values: list[_Series],
    value: float,
) -> str:
    """Why a slice's value is not believed, in words."""
    if not there.any():
        return "no series fits SELECTOR"
    if future.any():
        return f"samples of SELECTOR are {-ages_s.min():.0f} s ahead of this machine's clock"
    if not fresh.any():
        return f"the newest sample of SELECTOR is {ages_s.min():.0f} s old"
    if fresh.sum() > 1:
        which = [item.labels for item, is_fresh in zip(samples, fresh, strict=True) if is_fresh]
        return f"{fresh.sum()} series fit SELECTOR, expected one; they differ in {_differences(which)}"
    numbers = [item.at[-1] for item in values]
    if len(numbers) > 1:
        return f"its query gives {len(numbers)} values, expected one"
    if not numbers:
        return "its query gives nothing yet: two samples are needed"
    number = value if math.isfinite(value) else numbers[0]
    return f"its query gives {number:g}, which is not believed"


def _differences(labels: list[dict[str, str]]) -> str:
    names = sorted({name for label in labels for name in label})
    return on_a_line(", ".join(name for name in names if len({label.get(name, "") for label in labels}) > 1))
