"""What a sweep is: ``configs/sweeps/NAME.yaml``, validated, and its trials."""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag

from slicepilot.configs import ConfigError, load, validate
from slicepilot.configs.errors import did_you_mean
from slicepilot.env.reward import TERMS, RewardWeights
from slicepilot.training.online.config import TrainingConfig

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
METRICS = ("reward", *TERMS)
MOST_TRIALS = 10_000
REWARD = "reward"
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
    """Asynchronous successive halving (Li et al. 2020, arXiv:1810.05934): who is behind others that have come as far is
    stopped.

    Attributes:
        grace_pct: share of its budget, in whole percent, that every trial may use.
        reduction_factor: one in so many goes on past each rung; the rungs are ``grace_pct`` times its powers.
    """

    __pydantic_config__ = _STRICT
    grace_pct: Percent = 20
    reduction_factor: Annotated[float, Field(gt=1, le=100)] = 3.0


@dataclass(frozen=True)
class SweepConfig:
    """``configs/sweeps/NAME.yaml``.

    Attributes:
        training: the training configuration that trials share, a shipped name or a file.
        axes: what they differ in. Keys are fields of the training configuration, with dots into its parts (``seed``,
            ``algorithm``, ``ppo.clip_range``), or ``reward.TERM`` for one weight of the reward. Values are lists, or
            ranges ``{low, high, log}`` to draw from. A list of one value sets it for all.
        samples: so many trials, each drawn at random; None = every combination of the lists.
        sample_seed: what they are drawn from.
        metric: higher is better: ``reward`` per control period as its weights have it, or one of its terms as it is,
            which trials with different weights can be compared by.
        reports: figures of a trial that the sweep sees, evenly over its budget.
        asha: stops trials early; None = none.
        cpus_per_trial: CPUs that a trial holds and threads that it computes with, instead of ``threads``.
        restarts: how often a trial whose worker has died goes on from its last checkpoint.
    """

    __pydantic_config__ = _STRICT
    training: str
    axes: dict[str, Axis]
    samples: Annotated[int, Field(ge=1, le=MOST_TRIALS)] | None = None
    sample_seed: Annotated[int, Field(ge=0)] = 0
    metric: str = "reward"
    reports: Annotated[int, Field(ge=1, le=1000)] = 20
    asha: AshaConfig | None = field(default_factory=AshaConfig)
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


def _check(config: SweepConfig) -> SweepConfig:
    if config.metric not in METRICS:
        raise ValueError(f"metric = {config.metric!r}: {did_you_mean(config.metric, METRICS)}")
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


def _values(axis: Axis) -> tuple[Value, ...]:
    """What an axis lists; of a range, something of more than one value."""
    return (axis.low, axis.high) if isinstance(axis, Range) else axis


CheckedSweepConfig: Any = Annotated[SweepConfig, AfterValidator(_check)]


@dataclass(frozen=True)
class Trial:
    """One training run of a sweep.

    Attributes:
        name: ``000`` and so on, its folder's as well.
        values: by axis, those with one value for all left out.
        config: of its training.
        weights: of its reward, where an axis changes one; they are written beside it, and ``config.reward`` is that
            file once it is.
    """

    name: str
    values: dict[str, Value]
    config: TrainingConfig
    weights: RewardWeights | None = None


def trials_of(sweep: SweepConfig) -> list[Trial]:
    """The trials of a sweep, the same every time.

    Raises:
        ConfigError: an axis that the training configuration does not have, a value that it does not accept.
    """
    base = TrainingConfig.from_yaml(sweep.training)
    return [_trial(f"{number:03d}", values, sweep, base) for number, values in enumerate(_choices(sweep))]


def _choices(sweep: SweepConfig) -> list[dict[str, Value]]:
    lists = {key: _values(axis) for key, axis in sweep.axes.items()}
    if sweep.samples is None:
        return [dict(zip(lists, chosen, strict=True)) for chosen in itertools.product(*lists.values())]
    rng = np.random.default_rng(sweep.sample_seed)
    return [{key: _draw(axis, rng) for key, axis in sweep.axes.items()} for _ in range(sweep.samples)]


def _draw(axis: Axis, rng: np.random.Generator) -> Value:
    return axis.draw(rng) if isinstance(axis, Range) else axis[int(rng.integers(len(axis)))]


def _trial(name: str, values: dict[str, Value], sweep: SweepConfig, base: TrainingConfig) -> Trial:
    changed: dict[str, Any] = dataclasses.asdict(base)
    terms: dict[str, Value] = {}
    for key, value in values.items():
        if key.startswith(f"{REWARD}."):
            terms[key.removeprefix(f"{REWARD}.")] = value
            continue
        *path, last = key.split(".")
        part = changed
        for step in path:
            part = part.get(step) if isinstance(part, dict) else None  # type: ignore[assignment]
        if not isinstance(part, dict) or last not in part or isinstance(part[last], dict):
            raise ConfigError(f"axes: unknown key {key!r}; {did_you_mean(key, _keys(dataclasses.asdict(base)))}")
        part[last] = value
    changed["threads"] = sweep.cpus_per_trial
    config = TrainingConfig.of(changed, f"trial {name}")
    weights = None
    if terms:
        plain = dataclasses.asdict(RewardWeights.from_yaml(config.reward))
        weights = validate(RewardWeights, plain | terms, f"trial {name}: {REWARD}")
    else:
        RewardWeights.from_yaml(config.reward)  # an unknown name is an error now, and not in a worker
    config.episodes()
    varied = {key: value for key, value in values.items() if len(_values(sweep.axes[key])) > 1}
    return Trial(name, varied, config, weights)


def _keys(values: dict[str, Any], prefix: str = "") -> list[str]:
    """All keys of a configuration with their dots, and those of the reward's weights."""
    result = [f"{REWARD}.{term}" for term in TERMS] if not prefix else []
    for key, value in values.items():
        result += _keys(value, f"{prefix}{key}.") if isinstance(value, dict) else [f"{prefix}{key}"]
    return [key for key in result if key not in {"threads", "tracking"}]
