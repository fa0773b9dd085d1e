"""Configuration of a sweep: ``configs/sweeps/NAME.yaml``, validated, and its trials."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag

from slicepilot.configs import ConfigError, load, validate
from slicepilot.configs.errors import did_you_mean
from slicepilot.env.reward import TERMS, RewardWeights
from slicepilot.training.offline.config import OfflineConfig
from slicepilot.training.online.config import TrainingConfig

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
MOST_TRIALS = 10_000
REWARD = "reward"
RUNNING = (REWARD, *TERMS)
"""Metrics of training in the simulator, known at every report."""
ESTIMATE = "estimate"
SCORES: dict[str, tuple[str, int]] = {
    "eval_return": ("return", 1),
    "eval_broken_s": ("sla_violation_s", -1),
    "eval_best_effort_loss_pct": ("best_effort_loss_pct", -1),
    "eval_cpu_wasted_core_s": ("cpu_wasted_core_s", -1),
}
"""Metrics that `slicepilot evaluate` gives at the end of a trial: its score, and 1 where higher is better."""
METRICS = (*RUNNING, ESTIMATE, *SCORES)
CHANGED_ON_THE_WAY = re.compile(
    r"learning_rate|final_learning_rate|gamma|reward\.\w+"
    r"|ppo\.(epochs|clip_range|gae_lambda|entropy_weight|value_weight|max_gradient_norm|target_kl)"
    r"|sac\.(gradient_steps|batch_transitions|target_rate)"
)
"""Fields that a run can go on with after they have changed; others are the shape of its network, or of its data."""
Base = TrainingConfig | OfflineConfig
Value = bool | int | float | str | None
Percent = Annotated[int, Field(ge=1, le=99)]


@dataclass(frozen=True)
class Range:
    """Values to draw from, low to high; ``log``: as many in each decade. Integers where both ends are."""

    __pydantic_config__ = _STRICT
    low: int | float
    high: int | float
    log: bool = False

    def draw(self, rng: np.random.Generator) -> int | float:
        """One value."""
        if isinstance(self.low, int) and isinstance(self.high, int):
            if not self.log:
                return int(rng.integers(self.low, self.high + 1))
            drawn = math.exp(rng.uniform(math.log(self.low), math.log(self.high + 1)))
            return min(self.high, max(self.low, int(drawn)))
        if self.log:
            return float(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))
        return float(rng.uniform(self.low, self.high))


def _check_range(item: Range) -> Range:
    if not item.low < item.high:
        raise ValueError(f"low = {item.low}, high = {item.high}: expected low < high")
    if item.log and item.low <= 0:
        raise ValueError(f"low = {item.low}: expected a positive number with log")
    return item


def _kind(axis: object) -> str:
    """By which of the two an axis is judged: errors of both at once would say little."""
    return "range" if isinstance(axis, dict | Range) else "values"


Axis = Annotated[
    Annotated[tuple[Value, ...], Field(min_length=1), Tag("values")]
    | Annotated[Range, AfterValidator(_check_range), Tag("range")],
    Discriminator(_kind),
]


@dataclass(frozen=True)
class AshaConfig:
    """Asynchronous successive halving (Li et al. 2020, arXiv:1810.05934): stops trials that are worse than others at
    the same progress.

    Attributes:
        grace_pct: share of its budget, in whole percent, that every trial may use.
        reduction_factor: of so many trials one continues past each rung; the rungs are ``grace_pct`` times its powers.
    """

    __pydantic_config__ = _STRICT
    grace_pct: Percent = 20
    reduction_factor: Annotated[float, Field(gt=1, le=100)] = 3.0


@dataclass(frozen=True)
class PbtConfig:
    """Population-based training (Jaderberg et al. 2017, arXiv:1711.09846): from time to time the worst trials go on
    from the policies of the best, with settings that differ a little from theirs.

    Attributes:
        interval_pct: share of the budget, in whole percent, between such moments.
        quantile: share of the trials that is replaced by an equal share of the best.
        resample: probability that a setting is drawn anew, instead of a step from that of the better trial.
    """

    __pydantic_config__ = _STRICT
    interval_pct: Percent = 20
    quantile: Annotated[float, Field(gt=0, le=0.5)] = 0.25
    resample: Annotated[float, Field(ge=0, le=1)] = 0.25


@dataclass(frozen=True)
class JudgedBy:
    """Scenarios on which trials are scored at their end, for the metrics ``eval_...``.

    Attributes:
        scenarios: names or files; scores are means over them.
        seeds: runs of each.
        seed: of them; not a seed of the training.
    """

    __pydantic_config__ = _STRICT
    scenarios: Annotated[tuple[str, ...], Field(min_length=1)] = ("multi-promise",)
    seeds: Annotated[int, Field(ge=1, le=1000)] = 4
    seed: Annotated[int, Field(ge=0)] = 20250413


@dataclass(frozen=True)
class SweepConfig:
    """``configs/sweeps/NAME.yaml``.

    Attributes:
        training: the training configuration that trials share, a shipped name or a file; or
        offline: the same of offline training.
        axes: what they differ in. Keys are fields of the training configuration, with dots into its parts (``seed``,
            ``algorithm``, ``ppo.clip_range``), or ``reward.TERM`` for a weight of the reward. Values are lists, or
            ranges ``{low, high, log}`` to draw from. A list with a single value sets it for all.
        samples: so many trials, each drawn at random; None = every combination of the lists.
        sample_seed: what they are drawn from.
        search: ``random``, or ``optuna``, which draws trials by what others have achieved (the tree-structured Parzen
            estimator; Bergstra et al. 2011).
        metric: what trials are compared by: ``reward`` per control period as its weights have it, or one of its terms
            as it is, which trials with different weights can be compared by. Known at a trial's end alone: ``estimate``
            of the reward from the dataset, for offline training, and ``eval_...``, scores on the scenarios of
            ``judged_by``.
        judged_by: scenarios and seeds for ``eval_...``.
        reports: figures of a trial that the sweep sees, evenly over its budget.
        asha: stops trials early; None = none, as with ``pbt`` and with a metric that is known at the end.
        pbt: replaces the worst trials on the way; None = none.
        cpus_per_trial: CPUs that a trial holds and threads that it computes with, instead of ``threads``.
        restarts: how often a trial whose worker has died goes on from its last checkpoint.
    """

    __pydantic_config__ = _STRICT
    axes: dict[str, Axis]
    training: str | None = None
    offline: str | None = None
    samples: Annotated[int, Field(ge=1, le=MOST_TRIALS)] | None = None
    sample_seed: Annotated[int, Field(ge=0)] = 0
    search: Literal["random", "optuna"] = "random"
    metric: str = "reward"
    judged_by: JudgedBy = field(default_factory=JudgedBy)
    reports: Annotated[int, Field(ge=1, le=1000)] = 20
    asha: AshaConfig | None = field(default_factory=AshaConfig)
    pbt: PbtConfig | None = None
    cpus_per_trial: Annotated[int, Field(ge=1, le=256)] = 1
    restarts: Annotated[int, Field(ge=0, le=100)] = 3

    @classmethod
    def from_yaml(cls, name_or_path: str | Path) -> SweepConfig:
        """Load ``configs/sweeps/NAME.yaml`` or a user's file; raises ConfigError."""
        return load("sweeps", name_or_path, CheckedSweepConfig)

    @classmethod
    def of(cls, values: Any, source: str) -> SweepConfig:
        """From plain values, as in a sweep's folder; raises ConfigError."""
        return validate(CheckedSweepConfig, values, source)

    @property
    def sign(self) -> int:
        """1 where a higher metric is better, else -1."""
        return SCORES.get(self.metric, ("", 1))[1]

    @property
    def base(self) -> Base:
        """The configuration that trials share; raises ConfigError."""
        return OfflineConfig.from_yaml(self.offline) if self.offline else TrainingConfig.from_yaml(str(self.training))

    def config_of(self, values: dict[str, Any], source: str) -> Base:
        """A trial's configuration from plain values; raises ConfigError."""
        return OfflineConfig.of(values, source) if self.offline else TrainingConfig.of(values, source)

    @property
    def mutable(self) -> dict[str, Axis]:
        """The axes that `pbt` changes on the way."""
        varied = {key: axis for key, axis in self.axes.items() if len(_values(axis)) > 1}
        return {key: axis for key, axis in varied.items() if CHANGED_ON_THE_WAY.fullmatch(key)}


def _check(config: SweepConfig) -> SweepConfig:
    if (config.training is None) == (config.offline is None):
        raise ValueError("expected exactly one of training and offline")
    if config.metric not in METRICS:
        raise ValueError(f"metric = {config.metric!r}: {did_you_mean(config.metric, METRICS)}")
    config = _check_metric(config)
    if not config.axes:
        raise ValueError("axes: none; expected at least one")
    ranges = [key for key, axis in config.axes.items() if isinstance(axis, Range)]
    if ranges and config.samples is None:
        raise ValueError(f"axes.{ranges[0]} is a range: it needs samples")
    weighs = [key for key in config.axes if key == REWARD or key.startswith(f"{REWARD}.")]
    if config.metric == REWARD and any(len(_values(config.axes[key])) != 1 for key in weighs):
        raise ValueError(
            f"metric = 'reward' with the axis {weighs[0]}: rewards of different weights do not compare; "
            f"expected one of the terms, {', '.join(TERMS)}"
        )
    count = math.prod(len(_values(axis)) for axis in config.axes.values())
    if config.samples is None and count > MOST_TRIALS:
        raise ValueError(f"axes: {count} combinations; expected at most {MOST_TRIALS}, or samples")
    return config


def _check_metric(config: SweepConfig) -> SweepConfig:
    """The configuration with a scheduler that fits the metric; raises ValueError if the given scheduler does not."""
    if config.offline is not None and config.metric in RUNNING:
        raise ValueError(f"metric = {config.metric!r}: expected {ESTIMATE} or {', '.join(SCORES)} with offline")
    if config.training is not None and config.metric == ESTIMATE:
        raise ValueError(f"metric = {ESTIMATE!r}: needs a dataset: expected it with offline")
    at_the_end = config.metric not in RUNNING
    if config.pbt is not None:
        if at_the_end:
            raise ValueError(f"pbt: metric = {config.metric!r} is known at the end; expected {', '.join(RUNNING)}")
        if config.search != "random":
            raise ValueError("pbt: changes settings itself; expected search: random")
        if not config.mutable:
            raise ValueError("pbt: no axis that can change on the way, such as learning_rate or ppo.clip_range")
    if config.search == "optuna" and config.samples is None:
        raise ValueError("search = 'optuna': needs samples, the number of trials")
    if config.pbt is None and not (at_the_end and config.asha is not None):
        return config
    if config.asha not in (None, AshaConfig()):
        raise ValueError("asha: expected null with pbt, and with a metric that is known at the end")
    return dataclasses.replace(config, asha=None)


def _values(axis: Axis) -> tuple[Value, ...]:
    """The values of a list; the two ends of a range."""
    return (axis.low, axis.high) if isinstance(axis, Range) else axis


CheckedSweepConfig: Any = Annotated[SweepConfig, AfterValidator(_check)]


@dataclass(frozen=True)
class Trial:
    """One training run of a sweep.

    Attributes:
        name: ``000`` and so on, its folder's as well.
        values: by axis, without axes that have a single value.
        config: of its training.
        weights: of its reward, where an axis changes a weight. They are written to a file in the trial's folder, which
            is then ``config.reward``.
    """

    name: str
    values: dict[str, Value]
    config: Base
    weights: RewardWeights | None = None


def trials_of(sweep: SweepConfig) -> list[Trial]:
    """The trials of a sweep, the same every time; with ``search: optuna`` none, since they are drawn as it runs.

    Raises:
        ConfigError: an axis that the training configuration does not have, a value that it does not accept.
    """
    base = sweep.base
    trials = [trial_of(f"{number:03d}", values, sweep, base) for number, values in enumerate(_choices(sweep))]
    return [] if sweep.search == "optuna" else trials


def _choices(sweep: SweepConfig) -> list[dict[str, Value]]:
    lists = {key: _values(axis) for key, axis in sweep.axes.items()}
    if sweep.samples is None:
        return [dict(zip(lists, chosen, strict=True)) for chosen in itertools.product(*lists.values())]
    rng = np.random.default_rng(sweep.sample_seed)
    return [{key: _draw(axis, rng) for key, axis in sweep.axes.items()} for _ in range(sweep.samples)]


def _draw(axis: Axis, rng: np.random.Generator) -> Value:
    return axis.draw(rng) if isinstance(axis, Range) else axis[int(rng.integers(len(axis)))]


def trial_of(name: str, values: dict[str, Value], sweep: SweepConfig, base: Base) -> Trial:
    """A trial with values of all axes; raises ConfigError."""
    changed, terms = changed_by(values, dataclasses.asdict(base))
    changed["threads"] = sweep.cpus_per_trial
    config = sweep.config_of(changed, f"trial {name}")
    weights = None
    if isinstance(config, TrainingConfig):
        weights = weights_of(config.reward, terms, f"trial {name}")
        config.episodes()
    elif terms:
        raise ConfigError(f"axes: {REWARD}.{next(iter(terms))}: accepted with training, not with offline")
    varied = {key: value for key, value in values.items() if len(_values(sweep.axes[key])) > 1}
    return Trial(name, varied, config, weights)


def weights_of(reward: str, terms: dict[str, Value], source: str) -> RewardWeights | None:
    """A reward's weights with terms that are changed; None without any. Raises ConfigError, also for an unknown name:
    it is an error now, and not in a worker."""
    known = RewardWeights.from_yaml(reward)
    return validate(RewardWeights, dataclasses.asdict(known) | terms, f"{source}: {REWARD}") if terms else None


def changed_by(values: dict[str, Value], plain: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Value]]:
    """A configuration's plain values with those of the axes, and the terms of the reward among them.

    Raises:
        ConfigError: an axis that the configuration does not have.
    """
    changed = copy.deepcopy(plain)
    terms: dict[str, Value] = {}
    for key, value in values.items():
        if key.startswith(f"{REWARD}."):
            terms[key.removeprefix(f"{REWARD}.")] = value
            continue
        *path, last = key.split(".")
        part: Any = changed
        for step in path:
            part = part.get(step) if isinstance(part, dict) else None
        if not isinstance(part, dict) or last not in part or isinstance(part[last], dict):
            raise ConfigError(f"axes: unknown key {key!r}; {did_you_mean(key, _keys(plain))}")
        part[last] = value
    return changed, terms


def _keys(values: dict[str, Any], prefix: str = "") -> list[str]:
    """All keys of a configuration with their dots, and those of the reward's weights."""
    result = [f"{REWARD}.{term}" for term in TERMS] if not prefix else []
    for key, value in values.items():
        result += _keys(value, f"{prefix}{key}.") if isinstance(value, dict) else [f"{prefix}{key}"]
    return [key for key in result if key not in {"threads", "tracking"}]
