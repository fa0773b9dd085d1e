"""Base of the offline algorithms: a gradient step per network from a batch, and a state to resume from."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

import torch
from pydantic import ConfigDict, Field
from torch import Tensor, nn

from .actors import Actor

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Rate = Annotated[float, Field(gt=0, le=1)]
Share = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1)]

Net = TypeVar("Net", bound=nn.Module)


class Batch(NamedTuple):
    """B steps drawn from a dataset.

    Attributes:
        inputs, next_inputs: (B, ...), observations as `slicepilot.training.offline.networks.Networks.prepare` gives
            them.
        actions: (B, S, K), or (B, K) for tasks without slices; in [-1, 1].
        rewards: (B,); discounts: (B,), what the value of the next observation counts, 0 where it is a final state.
        decided: (B,), 1 where the action was chosen anew, 0 where it was held. A draw that is held for ten periods was
            a single choice: nine of ten steps would teach that the best knobs are the current knobs.
    """

    inputs: Tensor
    actions: Tensor
    rewards: Tensor
    next_inputs: Tensor
    discounts: Tensor
    decided: Tensor

    def over_choices(self, values: Tensor) -> Tensor:
        """Mean of values (..., B) over the steps on which something was chosen, (...)."""
        return (values * self.decided).sum(-1) / self.decided.sum().clamp(min=1.0)


class Learner(nn.Module, ABC):
    """An algorithm with its networks (submodules) and optimisers.

    Attributes:
        actor: what decides.
        optimizers: by name.
        updates: gradient steps made.
    """

    actor: Actor
    updates: int

    def __init__(self) -> None:
        super().__init__()
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.updates = 0

    @abstractmethod
    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Learn from a batch; returns figures for curves, detached and without axes."""

    @property
    def policy(self) -> nn.Module:
        """The policy without noise, on the learner's own weights, for export."""
        return self.actor.deterministic()

    def state(self) -> dict[str, Any]:
        """State to resume from: copies of plain values and tensors."""
        optimizers = {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()}
        return copy.deepcopy({"networks": self.state_dict(), "optimizers": optimizers, "updates": self.updates})

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; raises KeyError, ValueError or RuntimeError if it is another network's."""
        self.load_state_dict(state["networks"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        self.updates = int(state["updates"])


def adam(learning_rate: float, *modules: nn.Module) -> torch.optim.Optimizer:
    """Adam over all that these modules learn."""
    return torch.optim.Adam([p for module in modules for p in module.parameters()], lr=learning_rate, fused=True)


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """One step down; gradients are computed for the optimiser's own parameters only."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = gradient
    optimizer.step()


def target_of(network: Net) -> Net:
    """A copy that does not learn but follows."""
    return copy.deepcopy(network).requires_grad_(False)


@torch.no_grad()
def follow(target: nn.Module, network: nn.Module, rate: float) -> None:
    """target <- (1 - rate) target + rate network."""
    for old, new in zip(target.parameters(), network.parameters(), strict=True):
        old.lerp_(new, rate)
