"""A policy that is still learning, as an agent."""

from __future__ import annotations

import torch

from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.encoding import Coding, KnobDecoder, PlainCoding
from slicepilot.env.knobs import Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

from .guided import GuidedPolicy
from .slice_network import DeterministicPolicy


class NetworkAgent:
    """Decides with PyTorch on the CPU, as the export of the same network would; deterministic.

    An export takes seconds, a round of fine-tuning not many more.

    Args:
        policy: is used as it is at each decision; on the CPU.
        name: as in episodes.
        coding: of the policy's observations and actions.
    """

    request_mcpu: FloatArray | None = None

    def __init__(
        self, policy: DeterministicPolicy | GuidedPolicy, name: str, coding: type[Coding] = PlainCoding
    ) -> None:
        self.policy, self.name, self._make_coding = policy, name, coding

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        """Start a run."""
        self._coding, self._rows_of = self._make_coding(slices, context), KnobDecoder(slices)

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """Knobs (S, L) for the next control period."""
        table = self._coding.encode(telemetry, self._rows_of.encode(knobs))
        with torch.inference_mode():
            action = self.policy(torch.from_numpy(table))
        return self._coding.decode(action.numpy())[0]
