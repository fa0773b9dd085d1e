"""Tune the gains of the PI controller (`slicepilot.agents.heuristics.pi`) by CMA-ES on the training mixture.

    python -m slicepilot.training.tuning.tune_pi

The covariance matrix adaptation evolution strategy (Hansen, "The CMA Evolution Strategy: A Tutorial",
arXiv:1604.00772; the package cma) searches the logarithms of the gains. What it maximises is what policies are trained
on: the reward of ``configs/reward``, summed over a run and averaged over random deployments of the mixture. Each
generation is played on deployments of its own, the same for all its members. The result is the mean of the last
distribution, which was fitted to many deployments, and not the best member, which saw a single lot and was lucky. It
and the initial gains are then judged on deployments that neither has seen.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import cma
import numpy as np
import yaml

from slicepilot.agents.base import Agent
from slicepilot.agents.heuristics.pi import GAINS, Pi, PiGains, TunedPi
from slicepilot.data.files import replace_file
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.backend import SimulatorBackend
from slicepilot.env.simulator.mixture import MixtureEpisodes
from slicepilot.training.evaluation.rollouts import collect_rollout

from .arguments import count, run

START = PiGains(
    setpoint=0.5, rate=4.0, error_s=0.5, proportional=0.3, integral_s=5.0, release=0.2, give_way=1.0, nice=5.0
)
# Factors, so their logarithms are searched. Without bounds the search ends in a relay: any miss opens a limit fully,
# all slack closes it a little, which is no better on this objective and no PI controller any more.
RANGES = {
    "setpoint": (0.1, 1.0),
    "rate": (1.0, 20.0),
    "error_s": (0.02, 5.0),
    "proportional": (0.02, 3.0),
    "integral_s": (0.5, 60.0),
    "release": (0.02, 1.0),
    "give_way": (0.05, 5.0),
    "nice": (0.2, 20.0),
}
INITIAL_STD = 0.5
CHECK_SEED, CHECK_RUNS = 10_000, 4


def mean_return(agent: Agent, episodes: MixtureEpisodes, lanes: int, seed: int, weights: RewardWeights) -> float:
    """Sum of the rewards of a run, in the mean over lanes, each another deployment of the mixture."""
    return float(collect_rollout(agent, SimulatorBackend(episodes, lanes), seed, weights).reward.sum(axis=0).mean())


def gains_of(logarithms: np.ndarray) -> PiGains:
    """Gains from a point (8,) of the search."""
    return PiGains(**dict(zip(GAINS, np.exp(logarithms).tolist(), strict=True)))


def point_of(gains: PiGains) -> np.ndarray:
    """The point (8,) of the search for given gains."""
    return np.log(np.asarray([getattr(gains, name) for name in GAINS]))


def tune(episodes: MixtureEpisodes, weights: RewardWeights, generations: int, lanes: int, seed: int) -> PiGains:
    """Search; deterministic by its arguments."""
    bounds = np.log([RANGES[name] for name in GAINS]).T.tolist()
    options = {"seed": seed + 1, "verbose": -9, "bounds": bounds}
    strategy = cma.CMAEvolutionStrategy(point_of(START), INITIAL_STD, options)
    for generation in range(generations):
        points = strategy.ask()
        returns = [
            mean_return(Pi(gains_of(point)), episodes, lanes, seed + 1 + generation, weights) for point in points
        ]
        strategy.tell(points, [-value for value in returns])
        print(
            f"generation {generation + 1}: mean return {np.mean(returns):.3f}, best {np.max(returns):.3f}", flush=True
        )
    return gains_of(np.asarray(strategy.result.xfavorite))


def main() -> None:
    """Tune, judge and write the YAML; see the module's documentation."""
    parser = argparse.ArgumentParser(description="Tune the PI controller's gains by CMA-ES on the training mixture.")
    parser.add_argument("--mixture", default="default")
    parser.add_argument("--reward", default="default")
    parser.add_argument("--generations", type=count, default=100)
    parser.add_argument("--lanes", type=count, default=192, help="deployments a generation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--out", type=Path, default=Path("configs/heuristics/pi.yaml"))
    args = parser.parse_args()
    episodes, weights = MixtureEpisodes.from_yaml(args.mixture), RewardWeights.from_yaml(args.reward)
    tuned = tune(episodes, weights, args.generations, args.lanes, args.seed)
    tuned = PiGains(**{name: float(f"{value:.4g}") for name, value in dataclasses.asdict(tuned).items()})
    start, end = (
        float(np.mean([mean_return(Pi(g), episodes, args.lanes, CHECK_SEED + k, weights) for k in range(CHECK_RUNS)]))
        for g in (START, tuned)
    )
    document = TunedPi(
        gains=tuned,
        provenance={
            "command": "python -m slicepilot.training.tuning.tune_pi",
            "mixture": args.mixture,
            "reward": args.reward,
            "generations": args.generations,
            "lanes": args.lanes,
            "seed": args.seed,
            "return_before": round(start, 3),
            "return_tuned": round(end, 3),
        },
    )
    text = yaml.safe_dump(dataclasses.asdict(document), sort_keys=False, width=120)
    replace_file(args.out, text.encode())
    print(f"mean return on deployments not met: {start:.3f} before, {end:.3f} tuned; written to {args.out}")


if __name__ == "__main__":
    run(main)
