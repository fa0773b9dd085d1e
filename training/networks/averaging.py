"""The policy that a run ends with: an average over its last updates, because single updates are noisy."""

from __future__ import annotations

import copy
from typing import Any, Generic, TypeVar

import torch

Policy = TypeVar("Policy", bound=torch.nn.Module)
# The weight of update t grows as t to this power: about the last tenth of a run counts, however long it is.
POWER = 9


class PolicyAverage(Generic[Policy]):
    """Polynomial-decay average of a policy's weights (Shamir and Zhang 2013, arXiv:1212.1824, section 4).

    ``policy`` is the average of the learning policy over the updates so far.
    """

    def __init__(self, learned: Policy) -> None:
        self._learned = learned
        self.updates = 0
        self.policy = copy.deepcopy(learned)

    def update(self) -> None:
        """Take the present weights in; call it after each update of the learned policy."""
        rate = (POWER + 1) / (self.updates + POWER + 1)
        self.updates += 1
        with torch.no_grad():
            for average, present in zip(self.policy.parameters(), self._learned.parameters(), strict=True):
                average.lerp_(present, rate)

    def state(self) -> dict[str, Any]:
        """State for a checkpoint."""
        return {"updates": self.updates, "weights": self.policy.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`; raises KeyError or RuntimeError if it is another network's."""
        self.policy.load_state_dict(state["weights"])
        self.updates = int(state["updates"])
