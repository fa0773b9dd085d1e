"""Trains every algorithm on a dataset and plays what it learned against the policies that the dataset was logged by.

    only="experiment-*,random"
    slicepilot dataset record --backend simulator ... --out log.parquet      # README.md has the whole command
    python benchmarks/offline/beat_behaviour.py log.parquet --behaviours "$only"
    python benchmarks/offline/beat_behaviour.py testbed-contention --behaviours "$only" --backend testbed --seeds 5

All policies run on the same seeds of the same scenario, on pods with the CPU requests that the slices declare, as when
the dataset was recorded. The best behaviour is, in hindsight, that with the highest mean return on these seeds.
Differences from it are paired by seed, with their intervals. The return is the mean reward per control period.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console

from slicepilot.agents.base import Agent
from slicepilot.agents.heuristics.registry import make
from slicepilot.agents.learned.agent import LearnedAgent
from slicepilot.cli.shared.output import figures_table, progress_bar
from slicepilot.configs import ConfigError
from slicepilot.data.episodes.episodes import EpisodeSet
from slicepilot.data.files import replace_file
from slicepilot.data.intervals import Interval, interval, mean, paired_differences
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.evaluation.rollouts import interleaved_rollouts, simulate_rollout
from slicepilot.training.offline.config import OfflineConfig
from slicepilot.training.offline.data import open_dataset, select
from slicepilot.training.offline.train import OfflineProgress, train_offline
from slicepilot.training.recording.recording import on_declared_pods

Returns = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Standing:
    """One policy's return, and how far it lies above the best behaviour's."""

    name: str
    value: Interval
    above: Interval


def main() -> None:
    """Train, play, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="name, file or folder of episodes")
    parser.add_argument("--behaviours", default="*", help="whose episodes count, comma-separated; * matches any part")
    parser.add_argument("--algorithms", default="bc,td3-bc,iql", help="names or files of configurations")
    parser.add_argument("--train-seeds", type=int, default=1, help="policies of each algorithm")
    parser.add_argument("--hold-s", type=float, help="longest step, 0 for single periods; else the configuration's")
    parser.add_argument("--updates", type=int, help="of each training, else the configuration's")
    parser.add_argument("--backend", choices=("simulator", "testbed"), default="simulator")
    parser.add_argument("--name", help="of the testbed")
    parser.add_argument("--scenario", default="testbed-contention")
    parser.add_argument("--reward", default="delay-first")
    parser.add_argument("--seeds", type=int, default=30, help="runs of every policy")
    parser.add_argument("--seed", type=int, default=20_250_413, help="the first of them")
    parser.add_argument("--out", type=Path, default=Path("build/offline-beat"), help="folder of the trained policies")
    parser.add_argument("--json", type=Path, help="write all returns to this file")
    options = parser.parse_args()
    episodes = select(open_dataset(options.dataset), tuple(options.behaviours.split(",")))
    scenario = replace(Scenario.from_yaml(options.scenario), control_period_s=float(episodes.facts["period_s"]))
    learned = trained(options)
    logged = behaviours(episodes, scenario, options.reward)
    returns = played([*learned, *logged], scenario, options)
    table = standings(returns, [agent.name for agent in logged])
    show(table, episodes, options)
    if options.json is not None:
        document = {"options": vars(options), "returns": {name: list(values) for name, values in returns.items()}}
        replace_file(options.json, json.dumps(document, default=str).encode())


def trained(options: argparse.Namespace) -> list[Agent]:
    """A policy of each algorithm for each training seed."""
    results: list[Agent] = []
    with progress_bar() as progress:
        for name in options.algorithms.split(","):
            for seed in range(options.train_seeds):
                config = OfflineConfig.from_yaml(name).override(
                    dataset=options.dataset,
                    behaviours=tuple(options.behaviours.split(",")),
                    reward=options.reward,
                    seed=seed,
                    tracking="none",
                    updates=options.updates,
                    hold_s=options.hold_s,
                )
                title = f"{Path(name).stem}, seed {seed}" if options.train_seeds > 1 else Path(name).stem
                task = progress.add_task(f"training {title}", total=1.0)

                def report(now: OfflineProgress, task: Any = task) -> None:
                    progress.update(task, completed=now.fraction)

                result = train_offline(config, options.out / f"{Path(name).stem}-{seed}", report=report)
                results.append(LearnedAgent(result.bundle, title))
    return results


def behaviours(episodes: EpisodeSet, scenario: Scenario, reward: str) -> list[Agent]:
    """The policies that logged the dataset; raises ConfigError for a policy that is not in the registry."""
    slices, node, weights = scenario.slice_set(), scenario.hardware_spec(), RewardWeights.from_yaml(reward)
    return [on_declared_pods(make(name, slices, node, weights)) for name in episodes.behaviours]


def played(agents: Sequence[Agent], scenario: Scenario, options: argparse.Namespace) -> dict[str, Returns]:
    """Mean reward per period of every agent, (seeds,) each."""
    weights = RewardWeights.from_yaml(options.reward)
    runs = len(agents) if options.backend == "simulator" else len(agents) * options.seeds
    with progress_bar() as progress:
        task = progress.add_task("playing", total=runs)
        if options.backend == "simulator":
            recordings = []
            for agent in agents:
                progress.update(task, description=f"playing {agent.name}")
                recordings.append(simulate_rollout(agent, scenario, options.seeds, options.seed, weights))
                progress.advance(task)
        else:
            from slicepilot.testbed.backend.backend import open_backend

            backend = open_backend(scenario, name=options.name)
            try:
                recordings = interleaved_rollouts(
                    [(agent, scenario) for agent in agents],
                    backend,
                    options.seeds,
                    options.seed,
                    weights,
                    lambda turn, who: progress.update(task, advance=1, description=f"turn {turn + 1}: {who}"),
                )
            finally:
                backend.close()
    return {
        agent.name: recording.reward.mean(axis=0, dtype=np.float64)
        for agent, recording in zip(agents, recordings, strict=True)
    }


def standings(returns: dict[str, Returns], logged: Sequence[str]) -> list[Standing]:
    """Everybody against the best of the logged, in order of return."""
    best = max(logged, key=lambda name: float(returns[name].mean()))
    results = [
        Standing(name, interval(values, mean), paired_differences(values, returns[best])[0])
        for name, values in returns.items()
    ]
    return sorted(results, key=lambda item: -item.value.value)


def show(table: Sequence[Standing], episodes: EpisodeSet, options: argparse.Namespace) -> None:
    """A table of 80 columns."""
    logged = set(episodes.behaviours)
    best = next(item.name for item in table if item.name in logged)
    title = f"{options.scenario}, {options.backend}, {options.seeds} seeds, reward {options.reward}; "
    title += f"{episodes.num_steps:,} steps logged"
    shown = figures_table(title, ("policy", "return", f"above {best}", "verdict"))
    for item in table:
        verdict = "" if item.name in logged else "a tie"
        if not verdict:
            verdict = "best logged" if item.name == best else "logged"
        elif item.above.excludes_zero:
            verdict = "better" if item.above.value > 0 else "worse"
        spread = f"{item.above.value:+.3f} ({item.above.low:+.3f} to {item.above.high:+.3f})"
        shown.add_row(item.name, f"{item.value.value:.3f}", "" if item.name == best else spread, verdict)
    Console().print(shown)


if __name__ == "__main__":
    try:
        main()
    except ConfigError as error:
        raise SystemExit(f"beat_behaviour: error: {error}") from error
