"""A backend under the guard: what learns by trying is judged as what controls a node is.

In the loop (`slicepilot.controller.loop.loop`) the guard stands between policy and actuator; here between whoever
drives a backend and the backend. Every run has a guard of its own, because it starts at no control and with fresh
loads.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from ...agents.base import Agent
from ...env.backend import Backend, Context, Receipt
from ...env.knobs import Knobs
from ...env.slices import FloatArray
from ...env.sliding import SlidingView
from ...env.telemetry import Telemetry
from ...training.finetune.guarded import Interventions
from ..contracts.reasons import names
from .config import GuardConfig
from .guard import Guard

if TYPE_CHECKING:
    from ...testbed.backend.backend import TestbedBackend


class GuardedBackend:
    """A simulated node of one lane under a guard, which goes by simulated time.

    Args:
        backend: owned, closed with this one.
        config: the guard's envelope.

    Attributes:
        interventions: of the guard so far; whoever asks may replace it.

    Raises:
        ValueError: a backend of several lanes.
    """

    num_lanes = 1

    def __init__(self, backend: Backend, config: GuardConfig) -> None:
        if backend.num_lanes != 1:
            raise ValueError(f"num_lanes = {backend.num_lanes}; accepted: 1, which is what a guard judges")
        self.slices, self.config = backend.slices, config
        self.interventions = Interventions()
        self._backend = backend
        self._request_mcpu: FloatArray | None = None
        self._guard: Guard | None = None
        self._periods = 0

    @property
    def context(self) -> Context:
        """Of the node."""
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
        self.interventions.add(names(verdict.node_reasons | int(np.bitwise_or.reduce(verdict.reasons))))
        receipt = self._backend.apply(verdict.allowed)
        self._held = receipt.applied
        return receipt

    def observe(self) -> Telemetry:
        """The next control period."""
        self._periods += 1
        self._telemetry = self._backend.observe()
        return self._telemetry

    def close(self) -> None:
        """Close the backend."""
        self._backend.close()

    def _now_ns(self) -> int:
        return round(1e9 * float(self.context.period_s[0]) * self._periods)

    def _new_guard(self) -> Guard:
        return Guard(self.config, self.slices, self.context, request_mcpu=self._request_mcpu)


class GuardedTestbed(GuardedBackend):
    """A testbed under a guard, which goes by the machine's clock. Closing it puts the knobs back.

    Between two runs nobody watches, so there is no control then, and no load.

    Args:
        testbed: owned, closed with this one.
        config: the guard's envelope.

    Attributes:
        ticks: how many periods were missed.
    """

    def __init__(self, testbed: TestbedBackend, config: GuardConfig) -> None:
        super().__init__(testbed, config)
        self._live, self.ticks = testbed, testbed.ticks
        self._ready: Guard | None = None

    def prepare(self, agent: Agent) -> None:
        """Deploy the agent's pods, and do once what each period will do: first calls allocate and compile."""
        super().prepare(agent)
        self._live.deploy(agent.request_mcpu)
        self._ready = super()._new_guard()
        agent.reset(self.slices, self.context, 0)
        seen, none = SlidingView(self.context).see(Telemetry.empty(len(self.slices))), Knobs.none(len(self.slices))
        self._ready.warm_up(seen, agent.decide(seen, none), none)

    @contextlib.contextmanager
    def real_time(self) -> Iterator[None]:
        """As the controller's loop is scheduled."""
        try:
            with self._live.real_time():
                yield
        finally:
            self._live.apply(Knobs.none(len(self.slices)))
            self._live.stop_load()

    def _now_ns(self) -> int:
        return time.monotonic_ns()

    def _new_guard(self) -> Guard:
        """The one that `prepare` made, once: between two measurements there is no time to make it."""
        ready, self._ready = self._ready, None
        return ready or super()._new_guard()
