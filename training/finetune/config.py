"""How an offline policy is fine-tuned: ``configs/finetune/NAME.yaml``, validated."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from slicepilot.configs.backends import check_name
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.runs.config import RunSettings


@dataclass(frozen=True)
class FinetuneConfig(RunSettings):
    """Configuration of fine-tuning; data, algorithm and networks are those of the offline run.

    Attributes:
        backend: ``simulator``, or ``testbed``: real UPFs in real time.
        scenario: name or path; of the slices that the offline run's dataset has.
        guard: name or path of the envelope that no decision leaves.
        rounds: of recording and learning; episodes: runs of the scenario in each; updates: gradient steps after them.
        seconds: of each run, else the scenario's.
        period_s: control period, else that of the dataset.
        noise_std: standard deviation of the exploration noise on each axis of the action; hold_periods: control periods
            that a choice is held (`slicepilot.agents.heuristics.exploring.ExploringAgent`).
        new_share: part of each batch that comes from the new episodes, the rest is from the log.
        judged_runs: on which offline and fine-tuned policy are compared in the end.
        seed: of loads, noise and batches; runs to learn from and runs to judge by never share a seed.
        testbed: name of the testbed, else the default configuration's; a running testbed is used.
        threads: CPU threads of PyTorch. device: ``auto`` takes a GPU that is there.
        tracking: ``mlflow`` or ``none``.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)
    section = "finetune"
    free = frozenset({"rounds", "judged_runs", "threads", "device", "tracking"})
    backend: Annotated[str, AfterValidator(check_name)]
    scenario: str = "testbed-contention"
    guard: str = "default"
    rounds: Annotated[int, Field(ge=1, le=1000)] = 20
    episodes: Annotated[int, Field(ge=1, le=100)] = 4
    updates: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    seconds: Annotated[float, Field(ge=0.1, le=3600)] | None = None
    period_s: Annotated[float, Field(ge=0.002, le=30)] | None = None
    noise_std: Annotated[float, Field(gt=0, le=10)] = 0.1
    hold_periods: Annotated[int, Field(ge=1, le=10_000)] = 10
    new_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    judged_runs: Annotated[int, Field(ge=2, le=1000)] = 30
    seed: Annotated[int, Field(ge=0, lt=10_000)] = 0
    testbed: str | None = None
    threads: Annotated[int, Field(ge=1, le=256)] = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    tracking: Literal["mlflow", "none"] = "mlflow"

    def played(self, period_s: float) -> Scenario:
        """The scenario as it is played; ``period_s`` is the dataset's. Raises ConfigError."""
        scenario = Scenario.from_yaml(self.scenario)
        duration_s = self.seconds or scenario.duration_s
        return dataclasses.replace(scenario, duration_s=duration_s, control_period_s=self.period_s or period_s)
