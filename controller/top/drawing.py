"""What a terminal can show: sparklines and bars from blocks where it has them, from ASCII elsewhere."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from slicepilot.configs.text import speaks_utf8

Values = Sequence[float | None]


@dataclass(frozen=True)
class Glyphs:
    """Characters by height, lowest first; those of a bar, full and empty; and what separates parts of a line."""

    heights: str
    full: str
    empty: str
    dot: str

    def spark(self, heights: Values) -> str:
        """One character for each height 0..1; a space where there is none."""
        top = len(self.heights) - 1
        return "".join(
            " " if height is None else self.heights[round(top * min(max(height, 0.0), 1.0))] for height in heights
        )

    def bar(self, share: float, width: int) -> str:
        full = round(width * min(max(share, 0.0), 1.0))
        return self.full * full + self.empty * (width - full)

    def plain(self, text: str) -> str:
        """Text from elsewhere, as far as this terminal can and should show it."""
        return "".join(c if c.isprintable() and (self is not ASCII or c.isascii()) else "?" for c in text)


BLOCKS = Glyphs("▁▂▃▄▅▆▇█", "█", "░", "·")
ASCII = Glyphs("_.-=+*#@", "#", ".", "-")


def glyphs_for(environment: Mapping[str, str] = os.environ) -> Glyphs:
    """Blocks where the locale is UTF-8, Python writes UTF-8 and the terminal's font has them."""
    plain = environment.get("TERM") in {"linux", "dumb"} or not speaks_utf8(environment)
    encoding = environment.get("PYTHONIOENCODING", "utf-8").partition(":")[0].lower().replace("-", "")
    return ASCII if plain or encoding not in {"", "utf8"} else BLOCKS


def resample(values: Values, width: int, join: Callable[[Sequence[float]], float]) -> list[float | None]:
    """Values in ``width`` cells, the newest last; if there are more, neighbours are joined."""
    if len(values) <= width:
        return [None] * (width - len(values)) + list(values)
    ends = [len(values) * (cell + 1) // width for cell in range(width)]
    cells = [[v for v in values[start:end] if v is not None] for start, end in pairwise([0, *ends])]
    return [join(cell) if cell else None for cell in cells]


def linear(values: Values, top: float) -> list[float | None]:
    """Heights 0..1 of values from 0 to ``top``."""
    return [None if value is None else value / top if top > 0 else 0.0 for value in values]


def logarithmic(values: Values, bottom: float, top: float) -> list[float | None]:
    """Heights 0..1 of values from ``bottom`` to ``top`` on a log axis."""
    span = math.log(top / bottom)
    return [None if value is None else math.log(max(value, bottom) / bottom) / span for value in values]


def short(value: float | None) -> str:
    """A magnitude in at most five characters; ``-`` for what is not known."""
    if value is None:
        return "-"
    if value == int(value) and abs(value) < 10_000:
        return str(int(value))
    for limit, digits in ((1.0, 3), (10.0, 2), (100.0, 1), (10_000.0, 0)):
        if abs(value) < limit:
            return f"{value:.{digits}f}"
    for limit, unit, letter in ((1e6, 1e3, "k"), (1e9, 1e6, "M")):
        if abs(value) < limit:
            return f"{value / unit:.{1 if value < 10 * unit else 0}f}{letter}"
    return f"{value:.0e}".replace("e+0", "e").replace("e+", "e")


def scaled(value: float | None, factor: float) -> float | None:
    """A value in another unit; None stays."""
    return None if value is None else factor * value


def percent(ratio: float | None) -> str:
    """``12%``, with a digit more below ten."""
    if ratio is None:
        return "-"
    return f"{100 * ratio:.1f}%" if ratio < 0.0995 else f"{100 * ratio:.0f}%"


def duration(seconds: float | None) -> str:
    """``42s``, ``3m07s``, ``5h12m``, ``3d04h``."""
    if seconds is None:
        return "-"
    whole = int(seconds)
    for unit, below, high, low in ((86_400, 3600, "d", "h"), (3600, 60, "h", "m"), (60, 1, "m", "s")):
        if whole >= unit:
            return f"{whole // unit}{high}{whole % unit // below:02d}{low}"
    return f"{whole}s"
