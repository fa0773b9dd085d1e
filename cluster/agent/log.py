"""The agent's log: lines of JSON on standard error."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import Any

REPEAT_S = 60.0


def log(event: str, **facts: Any) -> None:
    """Write one line."""
    line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "event": event, **facts}
    with contextlib.suppress(OSError):
        print(json.dumps(line), file=sys.stderr, flush=True)


def log_loop(loop: str, text: str) -> None:
    """Write a line of a loop's: its own logs are JSON, errors are text, and its publisher may write anything."""
    try:
        facts = json.loads(text)
        if isinstance(facts, dict) and isinstance(facts.get("event"), str):
            event = facts.pop("event")
            log(event, loop=loop, **{key: value for key, value in facts.items() if key not in {"loop", "time"}})
            return
    except (ValueError, RecursionError):  # nested too deep to be read or written
        pass
    log(text, loop=loop)


class Warnings:
    """Logs warnings, the same text at most once a minute. May be used by several threads."""

    def __init__(self) -> None:
        self._logged_s: dict[str, float] = {}

    def warn(self, text: str, **facts: Any) -> None:
        now_s = time.monotonic()
        if now_s - self._logged_s.get(text, -REPEAT_S) >= REPEAT_S:
            self._logged_s = {key: at_s for key, at_s in self._logged_s.items() if now_s - at_s < REPEAT_S}
            self._logged_s[text] = now_s
            log(text, level="warning", **facts)
