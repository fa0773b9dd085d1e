"""What training asks of a backend whose every decision a guard judges (`slicepilot.controller.guard.backend`)."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from ...agents.base import Agent
from ...env.backend import Backend


@dataclass
class Interventions:
    """What a guard had to say.

    Attributes:
        ticks: judged.
        touched: ticks in which it had a reason, of any slice or of the node, to let through something else.
        reasons: ticks by reason; a tick may have several.
    """

    ticks: int = 0
    touched: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, names: list[str]) -> None:
        """One more tick with these reasons."""
        self.ticks += 1
        self.touched += bool(names)
        self.reasons.update(names)

    @property
    def touched_ratio(self) -> float:
        """Share of the ticks that were touched."""
        return self.touched / max(self.ticks, 1)


class Guarded(Backend, Protocol):
    """A backend of one lane under a guard; what it applies has passed the guard.

    ``interventions`` counts until it is replaced. ``prepare`` makes ready for a run of an agent, inside of
    ``real_time`` the run keeps its control period as well as the backend can.
    """

    interventions: Interventions

    def prepare(self, agent: Agent) -> None: ...

    def real_time(self) -> AbstractContextManager[object]: ...
