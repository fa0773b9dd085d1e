"""How well policies that have not acted are ranked from episodes of others: estimates against true rewards.

    python benchmarks/ope/rank.py --backend simulator
    python benchmarks/ope/rank.py --backend testbed --data testbed-contention
    python benchmarks/ope/rank.py --backend testbed --data testbed-contention --truth reports/ope/truth.parquet

The data are runs of published settings, random knobs and exploration around the settings. The estimated policies are in
none of it. Then all of them run in the scenario on the same seeds, which gives their true rewards; these runs are kept,
and ``--truth`` estimates again without running anything.

In the simulator the data come from another node than the model's: its costs and scheduler are moved by random factors,
as an identification would be off. README.md beside this file has results.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml
from scipy.stats import spearmanr

from slicepilot.agents.base import Agent
from slicepilot.agents.heuristics.fixed import FixedAgent
from slicepilot.agents.heuristics.registry import make
from slicepilot.cli.dataset.estimate import print_comparison
from slicepilot.cli.shared.agents_option import load_learned
from slicepilot.cli.shared.output import console, figures_table, progress_bar
from slicepilot.configs import ConfigError
from slicepilot.data.episodes.episodes import EpisodeSet
from slicepilot.data.episodes.files import write_episodes
from slicepilot.data.files import replace_file
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.hardware import Hardware
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.env.slices import SliceSet
from slicepilot.testbed.backend.backend import open_backend
from slicepilot.training.offline.data import open_dataset
from slicepilot.training.ope.comparison import MODEL as ESTIMATOR
from slicepilot.training.ope.comparison import Comparison, compare, mean_rewards
from slicepilot.training.recording.recording import on_declared_pods, record_live, record_simulated

MODEL = "testbed"
RUNS = {"simulator": 10, "testbed": 5}
SETTINGS = (5, 6, 7, 8, 13, 21, 22, 25)
EXPLORED = (5, 7, 8, 13)
RANDOM_TIMES = 7
NAMED = (
    *("static-weights-3-nice", "static-weights-9-nice", "static-weights-64-nice"),
    *("reactive-sla", "proportional-share", "captain"),
)
# Columns of the priority slice and of all others: CPU limit in mCPU, nice, egress in Mbit/s.
NONE = np.inf
FURTHER = {
    "limits": ((600, 0, NONE), (350, 0, NONE)),
    "limits-and-weight": ((NONE, -5, NONE), (300, 0, NONE)),
    "all-knobs": ((600, -10, NONE), (350, 0, 30)),
    "paced-neighbours": ((NONE, 0, NONE), (NONE, 0, 25)),
    "neighbours-first": ((NONE, 5, NONE), (NONE, -3, NONE)),
    "half-starved": ((250, 0, NONE), (NONE, 0, NONE)),
    "starved": ((150, 0, NONE), (NONE, 0, NONE)),
    "frugal": ((450, -5, NONE), (150, 0, NONE)),
}
MOVED = (
    "upf_cost_us",
    "rx_cost_us",
    "tx_cost_us",
    "sched_slice_ms",
    "wake_wait_ms",
    "n3_buffer_packets",
    "tbf_latency_ms",
)


def main() -> None:
    """Record, run, estimate, print."""
    options = arguments()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    scenario = dataclasses.replace(
        Scenario.from_yaml(options.scenario), control_period_s=1e-3 * options.period_ms, duration_s=options.seconds
    )
    if options.backend == "simulator":
        scenario = dataclasses.replace(scenario, hardware=str(other_node(out, options.off, options.seed)))
    weights, slices = RewardWeights.from_yaml(options.reward), scenario.slice_set()
    policies = [*held_out(slices), *load_learned([Path(folder) for folder in options.bundle])]
    data = recorded(out / "data.parquet", scenario, weights, options)
    if options.truth:
        truth_runs = open_dataset(options.truth)
    else:
        truth_runs = run(policies, scenario, options.truths, options.seed + 1000, weights, options, "truth")
        write_episodes(truth_runs, out / "truth.parquet")
    truth = {name: interval.value for name, interval in mean_rewards(truth_runs).items()}
    with progress_bar() as progress:
        task = progress.add_task("estimating", total=1.0)
        comparison = compare(
            data,
            policies,
            Hardware.from_yaml(MODEL),
            on_step=lambda step, share: progress.update(task, completed=share, description=step),
        )
    print_comparison(comparison, options.backend)
    figures = score(comparison, truth)
    table = figures_table("against true rewards", ("error", "bias", "in 95%", "Spearman"))
    table.add_row(*(f"{figures[key]:.2f}" for key in ("error", "bias", "covered", "spearman")))
    console.print(table)
    document = {**comparison.to_json(), "truth": truth, "scores": {ESTIMATOR: figures}}
    replace_file(out / "rank.json", json.dumps(document, indent=2, allow_nan=False).encode())
    console.print(f"results in {out}", highlight=False)


def score(comparison: Comparison, truth: dict[str, float]) -> dict[str, float]:
    """Root mean square error, mean error, share of intervals that hold the truth, and Spearman's rank correlation."""
    estimates = [policy.estimate for policy in comparison.policies]
    true = np.asarray([truth[policy.name] for policy in comparison.policies])
    value, low, high = (np.asarray([getattr(e, field) for e in estimates]) for field in ("value", "low", "high"))
    return {
        "error": float(np.sqrt(np.mean((value - true) ** 2))),
        "bias": float(np.mean(value - true)),
        "covered": float(np.mean((low <= true) & (true <= high))),
        "spearman": float(spearmanr(value, true).statistic),
    }


def arguments() -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("simulator", "testbed"), default="simulator")
    parser.add_argument("--data", help="recorded episodes, a shipped name or a file (default: record them)")
    parser.add_argument("--bundle", action="append", default=[], help="folder of a learned policy; may be repeated")
    parser.add_argument("--scenario", default="testbed-contention")
    parser.add_argument("--reward", default="delay-first")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each run (default 6)")
    parser.add_argument("--period-ms", type=float, default=10.0, help="control period (default 10)")
    parser.add_argument("--episodes", type=int, default=2, help="of each behaviour (default 2)")
    parser.add_argument("--truth", help="stored episodes of all policies, instead of new runs; needs --data")
    parser.add_argument(
        "--truths", type=int, help="runs of each policy for the truth (default 10 in the simulator, 5 on a testbed)"
    )
    parser.add_argument("--off", type=float, default=0.25, help="deviation of the node's factors (default 0.25)")
    parser.add_argument("--name", default="spope", help="of the testbed (default spope)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="reports/ope", help="folder (default reports/ope)")
    options = parser.parse_args()
    options.truths = options.truths or RUNS[options.backend]
    if options.truth and not options.data:
        raise ConfigError("truth: expected together with --data, recorded on the same node")
    return options


def behaviours(slices: SliceSet, names: Sequence[str]) -> list[Agent]:
    """Agents of the data, on pods as declared."""
    node = Hardware.from_yaml(MODEL)
    return [on_declared_pods(make(name, slices, node)) for name in names]


def held_out(slices: SliceSet) -> list[Agent]:
    """Policies that are in none of the data."""
    node, first = Hardware.from_yaml(MODEL), np.arange(len(slices)) == slices.priority_index
    agents: list[Agent] = [make(name, slices, node) for name in NAMED]
    for name, (priority, others) in FURTHER.items():
        limit, nice, egress = (np.where(first, *pair) for pair in zip(priority, others, strict=True))
        agents.append(FixedAgent(name, limit, nice, egress))
    return agents


def other_node(out: Path, off: float, seed: int) -> Path:
    """A hardware file: the model's node with figures moved by log-normal factors."""
    rng = np.random.default_rng(seed)
    node = Hardware.from_yaml(MODEL)
    moved = {name: float(getattr(node, name) * np.exp(off * rng.standard_normal())) for name in MOVED}
    document = {
        "source": f"{MODEL}, figures moved by log-normal factors of deviation {off:g}, seed {seed}",
        "hardware": dataclasses.asdict(dataclasses.replace(node, **moved)),
    }
    path = out / "node.yaml"
    replace_file(path, yaml.safe_dump(document, sort_keys=False).encode())
    return path


def recorded(path: Path, scenario: Scenario, weights: RewardWeights, options: argparse.Namespace) -> EpisodeSet:
    """The given episodes, else new episodes; raises ConfigError if their period, reward or scenario differs."""
    if options.data is None:
        names = [f"experiment-{n}-scaled" for n in SETTINGS] + ["random"]
        names += [f"exploring-experiment-{n}-scaled" for n in EXPLORED]
        agents = behaviours(scenario.slice_set(), names)
        times = [agent for agent in agents for _ in range(RANDOM_TIMES if agent.name == "random" else 1)]
        episodes = run(times, scenario, options.episodes, options.seed, weights, options, "data")
        write_episodes(episodes, path)
        return episodes
    result = open_dataset(options.data)
    wanted = {"period_s": scenario.control_period_s, "reward": dataclasses.asdict(weights)}
    for name, value in wanted.items():
        if result.facts.get(name) != value:
            raise ConfigError(f"data: {name} = {result.facts.get(name)}: expected {value}, as for the true rewards")
    for name, value in (("backend", options.backend), ("scenario", scenario.name)):
        others = {str(episode.info.get(name)) for episode in result} - {value}
        if others:
            raise ConfigError(f"data: {name} = {others.pop()}: expected {value}, as for the true rewards")
    return result


def run(
    agents: Sequence[Agent],
    scenario: Scenario,
    episodes: int,
    seed: int,
    weights: RewardWeights,
    options: argparse.Namespace,
    what: str,
) -> EpisodeSet:
    """Episodes of all agents, in the simulator or interleaved on the testbed."""
    with progress_bar() as progress:
        if options.backend == "simulator":
            periods = progress.add_task(what, total=len(set(agents)) * scenario.num_steps)
            return record_simulated(agents, scenario, episodes, seed, weights, lambda _: progress.advance(periods))
        backend = open_backend(scenario, name=options.name)
        try:
            turns = progress.add_task(what, total=episodes * len(agents))
            info = {"scenario": scenario.name, "backend": "testbed"}
            return record_live(
                agents, backend, episodes, seed, weights, info, lambda repetition, name: progress.advance(turns)
            )
        finally:
            backend.close()


if __name__ == "__main__":
    try:
        main()
    except ConfigError as error:
        sys.exit(f"rank.py: {error}")
