"""The learner of fine-tuning: an offline learner that continues, the log, and the policies before and now."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from slicepilot.configs import ConfigError
from slicepilot.data.episodes.episodes import Episode, EpisodeSet
from slicepilot.training.networks.averaging import PolicyAverage
from slicepilot.training.networks.slice_network import DeterministicPolicy
from slicepilot.training.offline.config import OfflineConfig
from slicepilot.training.offline.learner import Batch
from slicepilot.training.offline.memory import RewardScale
from slicepilot.training.offline.networks import SliceNetworks
from slicepilot.training.offline.train import (
    AVERAGED_UPDATES,
    device_of,
    is_offline,
    make_learner,
    memory_of,
    policy_of,
)
from slicepilot.training.runs.checkpoint import Checkpoint, generator_states, restore_generators
from slicepilot.training.runs.run import plain_config

from .config import FinetuneConfig

REPORTED_UPDATES = 50


@dataclass(frozen=True)
class Round:
    """Figures of a round.

    Attributes:
        reward: mean per control period of its runs, exploration and guard included; mean_return: per run.
        touched_ratio, reasons: see `slicepilot.controller.guard.backend.Interventions`.
        figures: of the algorithm, means over the round's updates.
    """

    number: int
    steps: int
    reward: float
    mean_return: float
    touched_ratio: float
    reasons: dict[str, int]
    figures: dict[str, float]


def is_finetune(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint was written by `finetune`."""
    return "finetune" in checkpoint.config


def offline_config_of(checkpoint: Checkpoint) -> OfflineConfig:
    """How the policy was learned that is to be fine-tuned.

    Raises:
        ConfigError: a checkpoint of another kind of training, or of training without a reward.
    """
    if is_finetune(checkpoint):
        return OfflineConfig.of(checkpoint.config["offline"], "checkpoint: config")
    algorithm = checkpoint.config.get("algorithm")
    if not is_offline(checkpoint) or algorithm == "bc":
        raise ConfigError(f"finetune: a run of {algorithm!r}; expected a run of train --offline by td3-bc or iql")
    return OfflineConfig.of(checkpoint.config, "checkpoint: config")


class FinetuneLearner:
    """The offline learner, the log, and the policies before and now.

    Attributes:
        rounds: that the checkpoint knows of.
        policies: by name, the ``offline`` policy as it was and the ``fine-tuned`` policy now, an average over the last
            updates as in offline training; on the CPU.
    """

    def __init__(self, config: FinetuneConfig, offline: OfflineConfig, log: EpisodeSet, start: Checkpoint) -> None:
        self.config, self.offline, self.facts = config, offline, log.facts
        device = device_of(config.device)
        torch.manual_seed(config.seed)
        self.networks = SliceNetworks(offline.network, device)
        self.learner = make_learner(offline, self.networks)
        self.scale = RewardScale.of(log)
        self.logged = memory_of(log, self.networks, offline, self.scale)
        self.average = PolicyAverage(policy_of(self.learner))
        self._offline = copy.deepcopy(self.average.policy).cpu()
        self.rounds = [Round(**each) for each in start.config["rounds"]] if is_finetune(start) else []
        self._take(start)

    @property
    def policies(self) -> dict[str, DeterministicPolicy]:
        """Copies; see the class."""
        return {"offline": self._offline, "fine-tuned": copy.deepcopy(self.average.policy).cpu()}

    def learn(self, new: Sequence[Episode], say: Callable[[float], None]) -> dict[str, float]:
        """A round's updates on logged and new steps; means of their figures."""
        episodes, config = EpisodeSet(tuple(new), self.facts).unbroken(), self.config
        memory = memory_of(episodes, self.networks, self.offline, self.scale)
        size = self.offline.batch_steps
        fresh = max(1, round(config.new_share * size))
        sums: dict[str, list[Tensor]] = defaultdict(list)
        for done in range(config.updates):
            batch = memory.sample(fresh)
            if fresh < size:
                batch = Batch(*map(torch.cat, zip(self.logged.sample(size - fresh), batch, strict=True)))
            for key, value in self.learner.update(batch).items():
                sums[key].append(value)
            if self.learner.updates % AVERAGED_UPDATES == 0:
                self.average.update()
            if done % REPORTED_UPDATES == 0:
                say(done / config.updates)
        if self.learner.updates % AVERAGED_UPDATES:
            self.average.update()  # what was learned last acts in the next round, too
        return {key: float(torch.stack(values).mean()) for key, values in sums.items()}

    def save(self, file: Path, rounds: Sequence[Round], elapsed_s: float, run_id: str | None) -> None:
        """Write a checkpoint; raises ConfigError if that fails."""
        state = self.learner.state()
        configs = {"finetune": plain_config(self.config), "offline": plain_config(self.offline)}
        Checkpoint(
            config=configs | {"rounds": [asdict(done) for done in rounds]},
            steps=sum(done.steps for done in rounds),
            updates=self.learner.updates,
            elapsed_s=elapsed_s,
            run_id=run_id,
            policy={"learner": state["networks"], "offline": self._offline.state_dict()},
            average=self.average.state(),
            optimizers=state["optimizers"],
            scaler={},
            generators=generator_states(self.networks.device),
        ).write(file)

    def _take(self, start: Checkpoint) -> None:
        """Continue from a checkpoint of either kind; raises ConfigError if it is another network's."""
        goes_on = is_finetune(start)
        networks = start.policy["learner"] if goes_on else start.policy
        try:
            self.learner.restore({"networks": networks, "optimizers": start.optimizers, "updates": start.updates})
            self.average.restore(start.average)
            if goes_on:
                self._offline.load_state_dict(start.policy["offline"])
        except (KeyError, ValueError, RuntimeError) as error:
            raise ConfigError("checkpoint: its network is not what this version builds from its config") from error
        if not goes_on:
            # The policy of the offline run's bundle until its first update, then an average of new updates alone.
            if start.updates % AVERAGED_UPDATES:
                self.average.update()
            self._offline = copy.deepcopy(self.average.policy).cpu()
            self.average.updates = 0
            return
        restore_generators(start.generators, self.networks.device)
