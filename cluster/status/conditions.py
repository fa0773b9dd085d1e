"""Conditions as the API has them (metav1.Condition): what is so, why, and since when."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

READY, CONTROLLED, DEGRADED = "Ready", "Controlled", "Degraded"
MOST_MESSAGE = 1024


@dataclass(frozen=True)
class Condition:
    """One: ``status`` is ``True``, ``False`` or ``Unknown``, the reason a word, the message a line."""

    type: str
    status: str
    reason: str
    message: str = ""

    @property
    def state(self) -> tuple[str, str, str]:
        """What an Event is worth when it changes."""
        return self.type, self.status, self.reason


def now() -> str:
    """As the API has times."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def documents(
    conditions: Iterable[Condition], before: Iterable[Mapping[str, Any]], generation: int, time: str
) -> list[dict[str, Any]]:
    """For the API. What has the status that it had before is as old as it was."""
    known = {one["type"]: one for one in before}
    found = []
    for one in conditions:
        old = known.get(one.type)
        since = old["lastTransitionTime"] if old is not None and old["status"] == one.status else time
        found.append(
            {
                "type": one.type,
                "status": one.status,
                "reason": one.reason,
                "message": " ".join(one.message.split())[:MOST_MESSAGE],
                "lastTransitionTime": since,
                "observedGeneration": generation,
            }
        )
    return found
