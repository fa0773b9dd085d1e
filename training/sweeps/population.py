"""Population-based training by Ray's scheduler: trials keep their names and folders, and take over settings alone."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from ray.tune.schedulers import PopulationBasedTraining

from .config import Axis, Range, SweepConfig


class Population(PopulationBasedTraining):
    """The scheduler of a sweep.

    Args:
        config: of the sweep, with ``pbt``.
        given: the scheduler's time, metric and mode.
    """

    def __init__(self, config: SweepConfig, **given: Any) -> None:
        assert config.pbt is not None
        random.seed(config.sample_seed)  # Ray draws from Python's generator
        super().__init__(
            perturbation_interval=config.pbt.interval_pct,
            quantile_fraction=config.pbt.quantile,
            resample_probability=config.pbt.resample,
            hyperparam_mutations={"trial": {"values": {key: _drawn(axis) for key, axis in config.mutable.items()}}},
            custom_explore_fn=partial(_within, config.mutable),
            log_config=False,
            **given,
        )

    def _get_new_config(self, trial: Any, trial_to_clone: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The trial's own, with settings a step away from those of the better trial."""
        theirs, operations = super()._get_new_config(trial, trial_to_clone)
        values = theirs["trial"]["values"]
        return {"trial": trial.config["trial"] | {"values": values}}, operations


def _drawn(axis: Axis) -> Any:
    """An axis as Ray draws from it."""
    if not isinstance(axis, Range):
        return list(axis)
    rng = np.random.default_rng(random.getrandbits(64))
    return partial(axis.draw, rng)


def _within(axes: Mapping[str, Axis], config: dict[str, Any]) -> dict[str, Any]:
    """Settings after a step, held within their ranges."""
    values = config["trial"]["values"]
    for key, axis in axes.items():
        if isinstance(axis, Range):
            values[key] = min(max(values[key], axis.low), axis.high)
            if isinstance(axis.low, int) and isinstance(axis.high, int):
                values[key] = round(values[key])
    return config
