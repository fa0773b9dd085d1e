"""Configuration of an offline training run: ``configs/offline/NAME.yaml``, validated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from slicepilot.training.networks.slice_network import NetworkConfig
from slicepilot.training.online.config import Count, NonNegative, Positive
from slicepilot.training.runs.config import RunSettings

from .behaviour_cloning import BehaviourCloningConfig
from .iql import IqlConfig
from .td3_bc import Td3BcConfig

OfflineAlgorithm = Literal["bc", "td3-bc", "iql", "choice"]


@dataclass(frozen=True)
class OfflineConfig(RunSettings):
    """One offline training run, ``configs/offline/NAME.yaml``.

    Attributes:
        algorithm: ``bc``, ``td3-bc``, ``iql`` or ``choice``, which uses dataset, behaviours, reward and tracking only.
        dataset: name of a recorded dataset that is shipped, or a file or folder of episodes.
        behaviours: whose episodes are learned from; ``*`` matches any part of a name.
        reward: name of the reward weights, applied to the terms that were recorded; none = those of the dataset.
        updates: budget in gradient steps; minutes: budget in wall-clock time. At least one is given; the first to be
            used up ends the run. ``choice`` has neither. Only runs bounded by updates alone are reproducible by seed.
        batch_steps: steps per update, drawn with replacement.
        hold_s: an action that held for several control periods is learned from as a single step, of at most this time;
            0 takes each period by itself.
        gamma: discount per control period of at least a quarter of a second; shorter periods have a higher discount
            (`slicepilot.training.online.advantages.Discount`).
        seed: of network, batches and noise.
        network: size of policy, critics and values.
        bc, td3_bc, iql: settings of the algorithms.
        checkpoint_minutes: time between checkpoints.
        threads: CPU threads of PyTorch.
        device: ``auto`` takes a GPU that is there.
        tracking: ``mlflow`` or ``none``.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)
    section = "offline"
    free = frozenset({"updates", "minutes", "checkpoint_minutes", "threads", "device", "tracking"})
    algorithm: OfflineAlgorithm
    dataset: str = "testbed-contention"
    behaviours: Annotated[tuple[str, ...], Field(min_length=1)] = ("*",)
    reward: str | None = None
    updates: Count | None = None
    minutes: Positive | None = None
    batch_steps: Count = 256
    hold_s: NonNegative = 0.1
    gamma: Annotated[float, Field(ge=0, lt=1)] = 0.9
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(width=48))
    bc: BehaviourCloningConfig = field(default_factory=BehaviourCloningConfig)
    td3_bc: Td3BcConfig = field(default_factory=Td3BcConfig)
    iql: IqlConfig = field(default_factory=IqlConfig)
    checkpoint_minutes: Positive = 0.5
    threads: Annotated[int, Field(ge=1, le=256)] = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    tracking: Literal["mlflow", "none"] = "mlflow"

    @property
    def source(self) -> str:
        """The data that is learned from, in words."""
        suffix = "" if self.behaviours == ("*",) else f" ({', '.join(self.behaviours)})"
        return f"dataset {self.dataset}{suffix}"


def _check(config: OfflineConfig) -> OfflineConfig:
    if config.algorithm == "choice":
        if config.updates is not None or config.minutes is not None:
            raise ValueError("expected neither updates nor minutes for choice, which does not iterate")
    elif config.updates is None and config.minutes is None:
        raise ValueError("expected updates or minutes, or both")
    return config


OfflineConfig.checked = Annotated[OfflineConfig, AfterValidator(_check)]
