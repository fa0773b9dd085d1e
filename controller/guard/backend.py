"""A backend under the guard, for training: the guard judges a learner's decisions as those of a controller.

In the loop (`slicepilot.controller.loop.loop`) the guard is between policy and actuator; here it is between the code
that drives a backend and the backend. Every run has a new guard, since it starts without control and with fresh loads.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from slicepilot.agents.base import Agent
from slicepilot.controller.contracts.reasons import Reason, names
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Backend, Context, Receipt
from slicepilot.env.knobs import Knobs
from slicepilot.env.telemetry import Telemetry

from .config import GuardConfig
from .guard import Guard


@dataclass
class Interventions:
    """How often a guard intervened.

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


class GuardedBackend:
    """A simulated node of one lane under a guard, on simulated time.

    Args:
        backend: closed with this object.
        config: the guard's envelope.

    Attributes:
        interventions: of the guard so far; a caller may replace it.

    Raises:
        ValueError: a backend of several lanes.
    """

    num_lanes = 1

    def __init__(self, backend: Backend, config: GuardConfig) -> None:
        if backend.num_lanes != 1:
            raise ValueError(f"num_lanes = {backend.num_lanes}; expected 1, which is what a guard judges")
        self.slices, self.config = backend.slices, config
        self.interventions = Interventions()
        self._backend = backend
        self._request_mcpu: FloatArray | None = None
        self._guard: Guard | None = None
        self._periods = 0

    @property
    def context(self) -> Context:
        return self._backend.context

    def prepare(self, agent: Agent) -> None:
        """Make ready for a run of this agent."""
        self._request_mcpu, self._guard = agent.request_mcpu, None

    def real_time(self) -> contextlib.AbstractContextManager[object]:
        """Simulated time waits."""
        return contextlib.nullcontext()

    def reset(self, seed: int | None = None) -> Telemetry:
        """Start a run under a guard that remembers nothing; raises ConfigError as `Guard` does."""
        self._guard = None
        self._telemetry = self._backend.reset(seed)
        self._guard = self._new_guard()
        self._held, self._periods = Knobs.none(len(self.slices)), 0
        return self._telemetry

    def apply(self, knobs: Knobs) -> Receipt:
        """Set what the guard lets through; raises RuntimeError before `reset`."""
        if self._guard is None:
            raise RuntimeError("the backend has not been reset yet: call reset() first")
        verdict = self._guard.judge(self._telemetry, knobs, self._held, self._now_ns())
        reasons = verdict.node_reasons | int(np.bitwise_or.reduce(verdict.reasons))
        self.interventions.add(names(reasons & ~Reason.FLOOR_INFEASIBLE.bit))
        receipt = self._backend.apply(verdict.allowed)
        self._held = receipt.applied
        return receipt

    def observe(self) -> Telemetry:
        self._periods += 1
        self._telemetry = self._backend.observe()
        return self._telemetry

    def close(self) -> None:
        self._backend.close()

    def _now_ns(self) -> int:
        return round(1e9 * float(self.context.period_s[0]) * self._periods)

    def _new_guard(self) -> Guard:
        return Guard(self.config, self.slices, self.context, request_mcpu=self._request_mcpu)
