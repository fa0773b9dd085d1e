"""Interface that fine-tuning needs of a guarded backend (`slicepilot.controller.guard.backend`)."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from slicepilot.agents.base import Agent
from slicepilot.controller.guard.backend import Interventions
from slicepilot.env.backend import Backend


class Guarded(Backend, Protocol):
    """A single-lane backend under a guard, which checks everything that it applies.

    ``interventions`` counts until it is replaced. ``prepare`` makes ready for a run of an agent, inside of
    ``real_time`` the run keeps its control period as well as the backend can.
    """

    interventions: Interventions

    def prepare(self, agent: Agent) -> None: ...

    def real_time(self) -> AbstractContextManager[object]: ...
