"""Perceptrons on standardised observations (B, D): the algorithms on tasks without slices, whose answers are known."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from slicepilot.training.offline.actors import Actor, Choice, Spread, bounded


def perceptron(inputs: int, hidden: Sequence[int], outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(inputs, size), nn.ReLU()]
        inputs = size
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


class FlatActor(Actor):
    def __init__(self, networks: FlatNetworks, spread: Spread) -> None:
        super().__init__()
        self.networks, actions = networks, networks.actions
        self.mean = perceptron(len(networks.mean), networks.hidden, actions)
        self.log_std = nn.Parameter(torch.full((actions,), math.log(0.25))) if spread == "learned" else None

    def forward(self, inputs: Tensor) -> Choice:
        raw = self.mean(inputs)
        gain = torch.ones(raw.shape[-1], device=raw.device)
        return Choice(raw, gain, bounded(self.log_std), torch.ones_like(raw[..., :1]), torch.zeros_like(raw))

    def deterministic(self) -> nn.Module:
        return FlatPolicy(self)


class FlatPolicy(nn.Module):
    def __init__(self, actor: FlatActor) -> None:
        super().__init__()
        self.actor = actor

    def forward(self, observations: Tensor) -> Tensor:
        return self.actor(self.actor.networks.prepare(observations)).action


class Value(nn.Module):
    def __init__(self, inputs: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.net = perceptron(inputs, hidden, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs).squeeze(-1)


class Critics(nn.Module):
    def __init__(self, inputs: int, hidden: Sequence[int], count: int) -> None:
        super().__init__()
        self.each = nn.ModuleList(Value(inputs, hidden) for _ in range(count))

    def forward(self, inputs: Tensor, actions: Tensor) -> Tensor:
        joint = torch.cat([inputs, actions], -1)
        return torch.stack([critic(joint) for critic in self.each])


class FlatNetworks:
    """The networks of an algorithm (`slicepilot.training.offline.networks.Networks`) for observations (N, D)."""

    def __init__(self, observations: Tensor, actions: int, hidden: Sequence[int], device: torch.device) -> None:
        self.device, self.actions, self.hidden = device, actions, tuple(hidden)
        self.mean, self.std = observations.mean(0), observations.std(0).clamp(min=1e-3)

    def prepare(self, observations: Tensor) -> Tensor:
        return ((observations.cpu() - self.mean) / self.std).to(self.device)

    def actor(self, spread: Spread) -> Actor:
        return FlatActor(self, spread).to(self.device)

    def critics(self, count: int = 2) -> nn.Module:
        return Critics(len(self.mean) + self.actions, self.hidden, count).to(self.device)

    def value(self) -> nn.Module:
        return Value(len(self.mean), self.hidden).to(self.device)
