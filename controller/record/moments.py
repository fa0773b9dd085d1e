"""Parsing and formatting of times."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from slicepilot.configs import ConfigError

NS = 1_000_000_000
_UNITS_S = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|min|h)")
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
EXPECTED = "2026-01-31T10:20:30.5Z, 10:20:30, -5s, -2min or last"


def parse_time(text: str, now_ns: int, last_ns: int) -> int:
    """CLOCK_REALTIME in ns of a time as text.

    Args:
        text: RFC 3339 (local time without an offset), a time of today's day (of yesterday's if that is to come yet), a
            time before now (``-5s``; ms, s, min, h) or ``last``.
        now_ns: CLOCK_REALTIME.
        last_ns: of the newest tick; times before now count from it when it is older: a recording that has ended.

    Raises:
        ConfigError: anything else.
    """
    if text == "last":
        return last_ns
    if text.startswith("-"):
        return min(now_ns, last_ns) - round(NS * parse_duration(text[1:], "at"))
    now = at_ns(now_ns).astimezone()
    try:
        if re.fullmatch(r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?", text):
            today = datetime.fromisoformat(f"{now.date()}T{text.zfill(len(text) + (text[1] == ':'))}").astimezone()
            return _ns(today if today <= now else today - timedelta(days=1), text)
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"at = {text!r}: expected {EXPECTED}") from None
    if "T" not in text.upper() and " " not in text:
        raise ConfigError(f"at = {text!r}: expected {EXPECTED}")
    return _ns(parsed.astimezone(), text)


def parse_duration(text: str, field: str) -> float:
    """Seconds of ``500ms``, ``1s``, ``2min`` or ``1h``; raises ConfigError."""
    match = _DURATION.fullmatch(text)
    if match is None or not float(match[1]) > 0:
        raise ConfigError(f"{field} = {text!r}: expected a number with {', '.join(_UNITS_S)}, such as 500ms")
    return float(match[1]) * _UNITS_S[match[2]]


def at_ns(time_ns: int) -> datetime:
    """A time with microseconds, UTC."""
    return _EPOCH + timedelta(microseconds=time_ns // 1000)


def rfc3339(time_ns: int) -> str:
    """``2026-01-31T10:20:30.123456Z``."""
    return at_ns(time_ns).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _ns(moment: datetime, text: str) -> int:
    """Exactly, with the digits beyond microseconds that datetime drops."""
    past = moment - _EPOCH
    whole_ns = (past.days * 86_400 + past.seconds) * NS + past.microseconds * 1000
    fraction = re.search(r"\.\d{6}(\d{1,3})", text)
    return whole_ns + (int(fraction[1].ljust(3, "0")) if fraction else 0)
