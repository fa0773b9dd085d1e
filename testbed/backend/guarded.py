"""A testbed under a guard: what learns by trying on real UPFs is judged as a controller is."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from slicepilot.agents.base import Agent
from slicepilot.controller.guard.backend import GuardedBackend
from slicepilot.controller.guard.config import GuardConfig
from slicepilot.controller.guard.guard import Guard
from slicepilot.env.knobs import Knobs
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.env.sliding import SlidingView
from slicepilot.env.telemetry import Telemetry

from .backend import TestbedBackend, open_backend


class GuardedTestbed(GuardedBackend):
    """A testbed under a guard, in the machine's time. Closing it restores the knobs.

    Between two runs there is neither control nor load, since nothing watches then.

    Args:
        testbed: closed with this object.
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
        """Schedule the caller like the controller's loop; at the end remove all limits and stop the load."""
        try:
            with self._live.real_time():
                yield
        finally:
            self._live.apply(Knobs.none(len(self.slices)))
            self._live.stop_load()

    def _now_ns(self) -> int:
        return time.monotonic_ns()

    def _new_guard(self) -> Guard:
        """The guard that `prepare` has made, since there is no time to make a guard between two measurements."""
        ready, self._ready = self._ready, None
        return ready or super()._new_guard()


def open_guarded(scenario: str | Scenario, guard: GuardConfig, *, name: str | None = None) -> GuardedTestbed:
    """A scenario on a testbed under a guard; raises ConfigError as `open_backend` does."""
    return GuardedTestbed(open_backend(scenario, name=name), guard)
