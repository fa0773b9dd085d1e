"""Logs of ``ping``: iputils with and without ``-D``, BusyBox, BSD and macOS, Windows."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np

from slicepilot.data.csv.chunks import read_lines
from slicepilot.data.faults import DatasetError, Faults

from .map import PER_TIME, FileMap
from .rows import MOST_VALUES, Raw, checked, require_columns

TIME = "time"
"""Name of a round trip in ping's output, in milliseconds."""
MOST_LOST = 100_000
_NUMBER = re.compile(r"(?:icmp_)?seq[= ](\d{1,9})", re.IGNORECASE)
_FROM = re.compile(r"\bfrom\b|\bvon\b|\bde\b", re.IGNORECASE)
_LOST = re.compile(r"no answer yet|timeout|timed out|unreachable|Zeitüberschreitung", re.IGNORECASE)
_STAMP = re.compile(r"\[(\d{1,11}(?:\.\d{1,9})?)\] ")
_TRIP = re.compile(r"(?:time|Zeit|temps)([=<])(\d{1,9}(?:[.,]\d{1,9})?) ?ms", re.IGNORECASE)


def is_ping(start: bytes) -> bool:
    """Whether a file begins as a log of ping does."""
    lines = start.decode("utf-8", "replace").splitlines()[:50]
    return any(_TRIP.search(line) and _FROM.search(line) for line in lines)


def read_ping(path: Path, entry: FileMap, faults: Faults) -> Raw:
    """A row for each ping, also for those without an answer, whose round trip is NaN.

    Without times (``ping -D``) they are counted from the first ping by their numbers and the map's interval.

    Raises:
        DatasetError: it cannot be read, or has no round trip.
    """
    require_columns(path, list(entry.columns), [TIME])
    pings = replies(path, faults)
    if not any(math.isfinite(trip) for _, _, trip, _ in pings):
        raise DatasetError.at(path, "no round trips; expected lines of ping with time=... ms")
    absolute = all(stamp is not None for stamp, _, _, _ in pings)
    numbers = np.asarray([number for _, number, _, _ in pings], np.int64)
    if absolute:
        times = np.asarray([stamp for stamp, _, _, _ in pings], np.float64)
    else:
        times = (numbers - numbers.min()) * entry.interval_s
    lines = np.asarray([line for _, _, _, line in pings], np.int64)
    trips = checked(np.asarray([trip for _, _, trip, _ in pings]), lines, TIME, faults)
    stamps = np.rint(times * (1e9 / PER_TIME)).astype(np.int64) * PER_TIME
    return Raw(len(pings), stamps, absolute, {}, {TIME: trips}, lines)


Reply = tuple[float | None, int, float, int]
"""Seconds since 1970, number, round trip in milliseconds, line."""


def replies(path: Path, faults: Faults) -> list[Reply]:
    """All pings in order of their numbers; ``duplicate`` answers are left out, ``missing`` are those without."""
    answered: dict[int, Reply] = {}
    lost: dict[int, Reply] = {}
    last, turn, count = 0, 0, 0
    for line, text, _ in read_lines(path):
        trip, number, stamp = _TRIP.search(text), _NUMBER.search(text), _STAMP.match(text)
        time_s = None if stamp is None else float(stamp[1])
        if trip is None:
            if number is not None and _LOST.search(text):
                lost.setdefault(turn + int(number[1]), (time_s, turn + int(number[1]), math.nan, line))
            elif number is None and _LOST.search(text) and ":" not in text[:4]:
                count += 1
            continue
        if not _FROM.search(text):
            continue  # the summary
        count += 1
        own = int(number[1]) if number is not None else count
        if own + turn < last - 32_768:
            turn += 65_536  # sixteen bits (RFC 792)
        own += turn
        last = max(last, own)
        if own in answered or "DUP!" in text:
            faults.add("duplicate", line, "icmp_seq", str(own))
            continue
        answered[own] = (time_s, own, float(trip[2].replace(",", ".")), line)
        if len(answered) > MOST_VALUES // 4:
            raise DatasetError.at(path, f"more than {MOST_VALUES // 4:,} pings; expected a part of it", line)
    return _with_lost(answered, lost, faults)


def _with_lost(answered: dict[int, Reply], lost: dict[int, Reply], faults: Faults) -> list[Reply]:
    """Pings in order; those that have no answer between the first and the last."""
    if not answered:
        return []
    known = sorted(answered)
    result: list[Reply] = []
    for before, number in zip([None, *known], known, strict=False):
        gap = 0 if before is None else number - before - 1
        if before is not None and 0 < gap <= MOST_LOST:
            first, then = answered[before], answered[number]
            for step in range(1, gap + 1):
                time_s = None
                if first[0] is not None and then[0] is not None:
                    time_s = first[0] + (then[0] - first[0]) * step / (gap + 1)
                own = lost.get(before + step, (None, 0, math.nan, then[3]))
                faults.add("missing", own[3], "icmp_seq", str(before + step), left_out=False)
                result.append((time_s, before + step, math.nan, own[3]))
        result.append(answered[number])
    return result
