"""Numbers in few characters."""

from __future__ import annotations


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
    """In another unit."""
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
