"""Conditions of the API (metav1.Condition)."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

READY, CONTROLLED, DEGRADED = "Ready", "Controlled", "Degraded"
MOST_MESSAGE = 1024


@dataclass(frozen=True)
class Condition:
    """A condition: ``status`` is ``True``, ``False`` or ``Unknown``, the reason a word, the message a line."""

    type: str
    status: str
    reason: str
    message: str = ""

    @property
    def state(self) -> tuple[str, str, str]:
        """A change of it is an Event."""
        return self.type, self.status, self.reason


def now() -> str:
    """The time, as the API writes it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def documents(
    conditions: Iterable[Condition], before: Iterable[Mapping[str, Any]], generation: int, time: str
) -> list[dict[str, Any]]:
    """The API's JSON. A condition whose status has not changed keeps its transition time."""
    known = {old["type"]: old for old in before}
    made = []
    for item in conditions:
        old = known.get(item.type)
        since = old["lastTransitionTime"] if old is not None and old["status"] == item.status else time
        made.append(
            {
                "type": item.type,
                "status": item.status,
                "reason": item.reason,
                "message": " ".join(item.message.split())[:MOST_MESSAGE],
                "lastTransitionTime": since,
                "observedGeneration": generation,
            }
        )
    return made
