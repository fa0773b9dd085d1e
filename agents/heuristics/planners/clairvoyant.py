"""The clairvoyant player: knows the load and the noise to come and searches the simulator itself for the best knobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slicepilot.agents.base import Agent
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.knobs import Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

from .planning import Planner, PlanningConfig

if TYPE_CHECKING:
    from slicepilot.env.reward import RewardWeights
    from slicepilot.env.simulator.backend import SimulatorBackend


class Clairvoyant:
    """A `Planner` with the true future of the run: how good could a controller be here?

    It is a lower bound of the optimum: the horizon is finite and the search random, and it cannot change the pods'
    requests during a run.

    `bind` gives it the simulator; do so before `reset`.

    Args:
        weights: of the reward that counts, None for the default.
        config: effort.
        proposals: agents whose wishes are among the candidates.
        name: as shown in tables.
    """

    request_mcpu: FloatArray | None = None

    def __init__(
        self,
        weights: RewardWeights | None = None,
        config: PlanningConfig | None = None,
        proposals: Sequence[Agent] = (),
        name: str = "clairvoyant",
    ) -> None:
        self._planner = Planner(config or PlanningConfig(), weights, proposals)
        self.name = name
        self._backend: SimulatorBackend | None = None

    @property
    def proposals(self) -> tuple[Agent, ...]:
        """Agents whose decisions are candidates."""
        return self._planner.proposals

    def bind(self, backend: SimulatorBackend) -> None:
        """Look into the future of this simulator from the next `reset` on."""
        self._backend = backend

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        """Start a run. The backend must have been reset before.

        Raises:
            RuntimeError: not bound to a simulator.
        """
        if self._backend is None:
            raise RuntimeError(f"{self.name} needs the simulator it is to foresee: call bind(backend) before reset()")
        # Imported here, because a live controller must not import compiled kernels.
        from slicepilot.env.simulator.lookahead import Lookahead

        model = Lookahead(self._backend, self._planner.config.candidates)
        self._planner.reset(model, slices, context, seed)

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """The current plan's knobs for the next period."""
        return self._planner.decide(telemetry, knobs)
