"""Warm Autothrottle's Tower up (`slicepilot.agents.heuristics.tower`): its prior, from play on the training mixture.

    python -m slicepilot.training.tuning.warm_up_tower

As the authors do (appendix A.7 of the paper, ``evaluation.py`` of their code), first every choice is tried alike, then
the best known choice, or in half of the steps a neighbour of it. They do so for twelve hours on the application that
Tower will run. Here every lane is another deployment, and the lanes have the prior in common: coefficients from
a regression within lanes (each lane has a mean of its own, since the CPU of different nodes does not compare), their
precision in proportion to the spread of the features, and an intercept as uncertain as lanes differ.

The grouping of slices and the number of steps that the prior counts as are chosen by the cost of Tower, exploring as in
use, on other deployments of the mixture.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import yaml

from slicepilot.agents.heuristics.tower import (
    NUM_FEATURES,
    UNIT,
    CaptainTower,
    Grouping,
    TowerConfig,
    TowerPrior,
    TowerStep,
    features,
)
from slicepilot.data.files import replace_file
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.backend import SimulatorBackend
from slicepilot.env.simulator.mixture import MixtureEpisodes
from slicepilot.training.evaluation.rollouts import collect_rollout

from .arguments import count, run

# Long enough for many steps at a period of a second, which is what Captain decides at.
STEPS = 480
PRIOR_STEPS = (10.0, 30.0, 100.0, 300.0)
RIDGE = 1e-3
CHECK_SEED = 10_000
GROUPINGS: tuple[Grouping, ...] = get_args(Grouping)


def blank(grouping: Grouping) -> TowerPrior:
    """Knows nothing."""
    precision = tuple(tuple(row) for row in (RIDGE * np.eye(NUM_FEATURES)).tolist())
    return TowerPrior(grouping=grouping, mean=(0.0,) * NUM_FEATURES, precision=precision, provenance={})


def steps_of(
    prior: TowerPrior, tower: TowerConfig, episodes: MixtureEpisodes, lanes: int, seed: int
) -> list[TowerStep]:
    """Steps of Tower in a run of so many deployments."""
    agent = CaptainTower(prior, tower)
    agent.steps = []
    collect_rollout(agent, SimulatorBackend(episodes, lanes), seed, RewardWeights.from_yaml())
    return agent.steps


def fit(steps: Sequence[Sequence[TowerStep]], grouping: Grouping, prior_steps: float) -> TowerPrior:
    """The prior that runs of steps give; ``prior_steps`` as `PRIOR_STEPS`."""
    lane = np.concatenate([[step.lane + 1_000_000 * k for step in item] for k, item in enumerate(steps)])
    load, cost = (np.asarray([getattr(s, name) for item in steps for s in item]) for name in ("load", "cost"))
    rungs = [UNIT[[getattr(s, name) for item in steps for s in item]] for name in ("first", "second")]
    seen = features(load, *rungs)
    _, index, size = np.unique(lane, return_inverse=True, return_counts=True)

    def lane_means(values: np.ndarray) -> np.ndarray:
        return np.bincount(index, values) / size

    within_cost = cost - lane_means(cost)[index]
    within = seen - np.stack([lane_means(column) for column in seen.T], axis=1)[index]
    slopes = np.linalg.solve(
        within[:, 1:].T @ within[:, 1:] + 1e-2 * RIDGE * len(cost) * np.eye(NUM_FEATURES - 1),
        within[:, 1:].T @ within_cost,
    )
    rest = within_cost - within[:, 1:] @ slopes
    centre = seen.mean(axis=0)
    intercept = cost.mean() - centre[1:] @ slopes
    between = np.var(lane_means(cost - seen[:, 1:] @ slopes))
    spread = (seen - centre).T @ (seen - centre) / len(cost) + RIDGE * np.diag([0.0] + [1.0] * (NUM_FEATURES - 1))
    precision = prior_steps * spread + np.outer(centre, centre) * np.var(rest) / max(between, RIDGE)
    return TowerPrior(
        grouping=grouping,
        mean=tuple(float(f"{value:.5g}") for value in (intercept, *slopes)),
        precision=tuple(tuple(float(f"{value:.5g}") for value in row) for row in (precision + precision.T) / 2),
        provenance={},
    )


def mean_cost(prior: TowerPrior, episodes: MixtureEpisodes, lanes: int) -> float:
    """Cost of a step in the mean over deployments that the warm-up has not met; each deployment counts alike."""
    steps = steps_of(prior, TowerConfig(), episodes, lanes, CHECK_SEED)
    lane = np.asarray([step.lane for step in steps])
    costs = np.bincount(lane, [step.cost for step in steps])
    return float(np.mean(costs[np.unique(lane)] / np.bincount(lane)[np.unique(lane)]))


def warm_up(episodes: MixtureEpisodes, lanes: int, runs: int, seed: int) -> tuple[TowerPrior, float]:
    """The prior of least cost, and that cost; deterministic by its arguments."""
    result: list[tuple[float, TowerPrior]] = []
    for grouping in GROUPINGS:
        at_random = TowerConfig(explore=1.0, uniform=True)
        steps = [steps_of(blank(grouping), at_random, episodes, lanes, seed + k) for k in range(runs)]
        half = TowerConfig(explore=0.5)
        prior = fit(steps, grouping, PRIOR_STEPS[1])
        steps += [steps_of(prior, half, episodes, lanes, seed + runs + k) for k in range(runs)]
        for prior_steps in PRIOR_STEPS:
            prior = fit(steps, grouping, prior_steps)
            result.append((mean_cost(prior, episodes, lanes), prior))
            print(f"groups by {grouping}, prior of {prior_steps:g} steps: mean cost {result[-1][0]:.4f}", flush=True)
    cost, prior = min(result, key=lambda item: item[0])
    return prior, cost


def main() -> None:
    """Warm up and write the YAML; see the module's documentation."""
    parser = argparse.ArgumentParser(description="Warm Autothrottle's Tower up on the training mixture.")
    parser.add_argument("--mixture", default="default")
    parser.add_argument("--lanes", type=count, default=256, help="deployments a run")
    parser.add_argument("--runs", type=count, default=3, help="runs of each of the two phases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--out", type=Path, default=Path("configs/heuristics/captain-tower.yaml"))
    args = parser.parse_args()
    episodes = MixtureEpisodes.from_yaml(args.mixture)
    episodes.mixture = replace(episodes.mixture, steps=STEPS)
    prior, cost = warm_up(episodes, args.lanes, args.runs, args.seed)
    document = replace(
        prior,
        provenance={
            "command": "python -m slicepilot.training.tuning.warm_up_tower",
            "mixture": args.mixture,
            "steps": STEPS,
            "lanes": args.lanes,
            "runs": args.runs,
            "seed": args.seed,
            "mean_cost": round(cost, 4),
        },
    )
    raw = dataclasses.asdict(document)
    raw["mean"], raw["precision"] = list(raw["mean"]), [list(row) for row in raw["precision"]]
    text = yaml.safe_dump(raw, sort_keys=False, width=120, default_flow_style=None)
    replace_file(args.out, text.encode())
    print(f"mean cost of a step {cost:.4f}; written to {args.out}")


if __name__ == "__main__":
    run(main)
