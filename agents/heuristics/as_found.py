"""Knobs as somebody has set them: what there is to record, and to explore around, on a node that is in use."""

from __future__ import annotations

from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.knobs import Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry


class AsFound:
    """Holds what holds when a run starts."""

    name = "as-found"
    request_mcpu: FloatArray | None = None

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        """Forget what was found."""
        self._found: Knobs | None = None

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """The knobs of the first decision's time."""
        if self._found is None:
            self._found = knobs.copy()
        return self._found
