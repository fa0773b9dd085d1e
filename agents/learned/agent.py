"""A trained policy as an agent."""

from __future__ import annotations

from typing import Any

import numpy as np

from slicepilot.agents.runtime.session import OnnxNetwork
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.encoding import KnobDecoder, ObservationEncoder
from slicepilot.env.knobs import Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

from .bundle import PolicyBundle
from .deep_sets import DeepSets
from .guide import Guide
from .shares import SharesEncoder


class LearnedAgent:
    """Runs a bundle's policy over L lanes; deterministic.

    Args:
        bundle: a loaded policy.
        name: as in tables; else the training algorithm.
        transfer: serve slices other than the bundle's (see `PolicyBundle.for_slices`).
    """

    request_mcpu: FloatArray | None = None

    def __init__(self, bundle: PolicyBundle, name: str | None = None, transfer: bool = False) -> None:
        self.bundle, self.transfer = bundle, transfer
        self.name = name or bundle.training.algorithm
        self._network: DeepSets | OnnxNetwork | None = None
        self._table = self._action = np.zeros((0, 0, 0), np.float32)
        self._decided: tuple[Knobs, FloatArray] | None = None
        self._encoded: tuple[Knobs, FloatArray] | None = None

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        """Start a run. Raises ConfigError if the bundle was not made for these slices."""
        fitted = self.bundle.for_slices(slices, self.transfer)
        self._rows_of = KnobDecoder(fitted.slices, fitted.nice_scope)
        self._encoder: ObservationEncoder | SharesEncoder | Guide
        self._decoder: KnobDecoder | Guide = self._rows_of
        if self.bundle.coding == "guided":
            self._encoder = self._decoder = Guide(fitted.slices, context, fitted.nice_scope)
        else:
            self._encoder = (SharesEncoder if self.bundle.coding == "shares" else ObservationEncoder)(context)
        num_slices, lanes = context.promises.weight.shape
        columns, actions = self.bundle.widths
        if self._network is None or self._table.shape != (lanes, num_slices, columns):
            self._network = self._network or fitted.network()
            self._table = np.zeros((lanes, num_slices, columns), np.float32)
            self._action = np.zeros((lanes, num_slices, actions), np.float32)
            self._network.bind(self._table, self._action)
        self._decided = self._encoded = None

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """Knobs (S, L) for the next control period; raises RuntimeError before `reset`."""
        if self._network is None:
            raise RuntimeError("the agent has not been reset yet: call reset() first")
        self._encoder.encode(telemetry, self._rows(knobs), self._table)
        self._network.run()
        self._decided = self._decoder.decode(self._action)
        return self._decided[0]

    def warm_up(self, telemetry: Telemetry) -> None:
        """Decide and forget it: brings code and data into caches shortly before a decision is due."""
        if self._network is None or self._decided is None:
            return
        if not isinstance(self._encoder, Guide):  # a guide has to see each period once
            self._encoder.encode(telemetry, self._rows_of.encode(self._decided[0]), self._table)
            self._rows_of.decode(self._action)
        self._network.run()

    def _rows(self, knobs: Knobs) -> FloatArray:
        """The encoder's rows of the knobs that hold, reused if these are the last decision or held last time."""
        if self._decided is not None and knobs.same_as(self._decided[0]):
            return self._decided[1]
        if self._encoded is None or not knobs.same_as(self._encoded[0]):
            self._encoded = knobs, self._rows_of.encode(knobs)
        return self._encoded[1]

    def __getstate__(self) -> dict[str, Any]:
        """Without the network, which cannot be pickled; the copy makes its own at its next reset."""
        return self.__dict__ | dict.fromkeys(("_network", "_decided", "_encoded"))
