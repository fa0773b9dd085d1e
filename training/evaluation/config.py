"""How agents are judged: ``configs/evaluation/NAME.yaml``, validated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field

from slicepilot.configs import load
from slicepilot.configs.backends import check_name

from .scores import Window

BackendName = Annotated[str, AfterValidator(check_name)]


def _check_window(window: Window) -> Window:
    if not window[0] < window[1]:
        raise ValueError(f"start {window[0]:g} must be before end {window[1]:g}")
    return window


@dataclass(frozen=True)
class EvaluationConfig:
    """``configs/evaluation/NAME.yaml``: how agents are judged.

    Attributes:
        scenarios: names or paths; none where they are drawn.
        agents: names from `slicepilot.agents.heuristics.registry`; ``*`` matches any part of a name.
        seeds: runs of every agent on every scenario, side by side.
        seed: of the simulator; together with the number of seeds it fixes all arrivals and noise.
        loss_window_s: per scenario the span (from, to] in which the two headline losses are taken; the whole run for a
            scenario that is not listed.
        control_period_s: of all scenarios; None = their own.
        reward: name of the reward weights behind the return.
        backend: ``simulator``, or ``testbed``: real UPFs in real time, agents in turns, one repetition per seed.
        resamples: bootstrap draws of medians over scenarios.
        level: of all intervals, 0..1.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)
    scenarios: tuple[str, ...] = ()
    agents: tuple[str, ...] = ("*",)
    seeds: Annotated[int, Field(ge=1, le=10_000)] = 30
    seed: Annotated[int, Field(ge=0)] = 0
    loss_window_s: dict[str, Annotated[Window, AfterValidator(_check_window)]] = field(default_factory=dict)
    control_period_s: Annotated[float, Field(ge=0.002, le=30.0)] | None = None
    backend: BackendName = "simulator"
    reward: str = "default"
    resamples: Annotated[int, Field(ge=100)] = 2000
    level: Annotated[float, Field(gt=0, lt=1)] = 0.95

    @classmethod
    def from_yaml(cls, name_or_path: str) -> EvaluationConfig:
        """Load ``configs/evaluation/NAME.yaml`` or a user's file; raises `slicepilot.configs.ConfigError`."""
        return load("evaluation", name_or_path, cls)
