"""The original knobs of a node that is in use, for recording, and as a start for exploration."""

from __future__ import annotations

from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.knobs import Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry


class AsFound:
    """Keeps the knobs that hold when a run starts, such as a node's original settings."""

    name = "as-found"
    request_mcpu: FloatArray | None = None

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        """Forget the knobs of the previous run."""
        self._original: Knobs | None = None

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """The knobs that held at the first decision."""
        if self._original is None:
            self._original = knobs.copy()
        return self._original
