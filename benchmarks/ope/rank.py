"""How well policies that have not acted are ranked from episodes of others: every estimator against the truth.

    python benchmarks/ope/rank.py --backend simulator
    python benchmarks/ope/rank.py --backend testbed --data testbed-contention
    python benchmarks/ope/rank.py --backend testbed --data testbed-contention --truth reports/ope/truth.parquet

Data come from published settings, random knobs and exploration around the settings. Asked about are policies that are
in none of it, of different quality. What they earn is then found out: all play the scenario on the same seeds, together
with two settings that are in the data, to see whether the node is still what it was. What was played is kept, and
``--truth`` estimates again without playing.

On the simulator the node is not the one that the model knows: what it costs to forward a packet and how the scheduler
waits are moved by random factors, as an identification would be off. README.md beside this file has results.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml

from slicepilot.agents.base import Agent
from slicepilot.agents.heuristics.fixed import FixedAgent
from slicepilot.agents.heuristics.registry import make
from slicepilot.cli.dataset.estimate import print_comparison, read_truth
from slicepilot.cli.shared.agents_option import load_learned
from slicepilot.cli.shared.output import console, progress_bar
from slicepilot.configs import ConfigError
from slicepilot.data.episodes.episodes import EpisodeSet
from slicepilot.data.episodes.files import write_episodes
from slicepilot.data.files import replace_file
from slicepilot.data.intervals import Interval
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.hardware import Hardware
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.env.slices import SliceSet
from slicepilot.testbed.backend.backend import open_backend
from slicepilot.training.evaluation.results import Provenance
from slicepilot.training.offline.data import open_dataset
from slicepilot.training.ope.comparison import compare, rewards_of
from slicepilot.training.recording.recording import on_declared_pods, record_live, record_simulated

MODEL = "testbed"
TRUTHS = {"simulator": 10, "testbed": 5}
SETTINGS = (5, 6, 7, 8, 13, 21, 22, 25)
EXPLORED = (5, 7, 8, 13)
RANDOM_TIMES = 7
AGAIN = ("experiment-5-scaled", "experiment-8-scaled")
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
    """Record, play, estimate, print."""
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
    truth = found_out(out / "truth.parquet", policies, data, scenario, weights, options)
    with progress_bar() as progress:
        task = progress.add_task("estimating", total=1.0)
        found = compare(
            data,
            policies,
            Hardware.from_yaml(MODEL),
            truth,
            on_step=lambda what, share: progress.update(task, completed=share, description=what),
        )
    print_comparison(found, options.backend)
    known = [name for name in AGAIN if name in found.behaviours and name in truth]
    since = {name: (found.behaviours[name].value, truth[name].value) for name in known}
    for name, (before, now) in since.items():
        console.print(f"- {name}: {before:.2f} in the data, {now:.2f} beside the policies", highlight=False)
    provenance = dataclasses.asdict(Provenance.here(shlex.join(["rank.py", *sys.argv[1:]])))
    document = {**provenance, **found.to_json(), "again": since}
    replace_file(out / "rank.json", json.dumps(document, indent=2, allow_nan=False).encode())
    console.print(f"all of it in {out}", highlight=False)


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
    parser.add_argument("--truth", help="episodes of all policies that were kept: nothing is played; needs --data")
    parser.add_argument(
        "--truths", type=int, help="runs of each policy for the truth (default 10 in the simulator, 5 on a testbed)"
    )
    parser.add_argument("--off", type=float, default=0.25, help="deviation of the node's factors (default 0.25)")
    parser.add_argument("--name", default="spope", help="of the testbed (default spope)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="reports/ope", help="folder (default reports/ope)")
    options = parser.parse_args()
    options.truths = options.truths or TRUTHS[options.backend]
    if options.truth and not options.data:
        raise ConfigError("truth: accepted: only with --data, of the node that it was played on")
    return options


def behaviours(slices: SliceSet, names: Sequence[str]) -> list[Agent]:
    """Some who act in the data, on pods as declared."""
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
    """The episodes that are given, else new ones; raises ConfigError if they are of another kind than the truth."""
    if options.data is None:
        names = [f"experiment-{n}-scaled" for n in SETTINGS] + ["random"]
        names += [f"exploring-experiment-{n}-scaled" for n in EXPLORED]
        agents = behaviours(scenario.slice_set(), names)
        times = [agent for agent in agents for _ in range(RANDOM_TIMES if agent.name == "random" else 1)]
        found = run(times, scenario, options.episodes, options.seed, weights, options, "data")
        write_episodes(found, path)
        return found
    found = open_dataset(options.data)
    wanted = {"period_s": scenario.control_period_s, "reward": dataclasses.asdict(weights)}
    for name, value in wanted.items():
        if found.facts.get(name) != value:
            raise ConfigError(f"data: {name} = {found.facts.get(name)}: accepted: {value}, as the truth is played")
    for name, value in (("backend", options.backend), ("scenario", scenario.name)):
        others = {str(episode.info.get(name)) for episode in found} - {value}
        if others:
            raise ConfigError(f"data: {name} = {others.pop()}: accepted: {value}, as the truth is played")
    return found


def found_out(
    path: Path,
    policies: Sequence[Agent],
    data: EpisodeSet,
    scenario: Scenario,
    weights: RewardWeights,
    options: argparse.Namespace,
) -> dict[str, Interval]:
    """What policies, and some who act in the data, really earn; played, and kept, unless it is given."""
    if options.truth:
        return read_truth(Path(options.truth), data)
    agents = [*policies, *behaviours(scenario.slice_set(), AGAIN)]
    played = run(agents, scenario, options.truths, options.seed + 1000, weights, options, "truth")
    write_episodes(played, path)
    return rewards_of(played)


def run(
    agents: Sequence[Agent],
    scenario: Scenario,
    episodes: int,
    seed: int,
    weights: RewardWeights,
    options: argparse.Namespace,
    what: str,
) -> EpisodeSet:
    """Episodes of all agents, in the simulator or in turns on the testbed."""
    with progress_bar() as progress:
        if options.backend == "simulator":
            periods = progress.add_task(what, total=len(set(agents)) * scenario.num_steps)
            return record_simulated(agents, scenario, episodes, seed, weights, lambda who: progress.advance(periods))
        backend = open_backend(scenario, name=options.name)
        try:
            turns = progress.add_task(what, total=episodes * len(agents))
            info = {"scenario": scenario.name, "backend": "testbed"}
            return record_live(
                agents, backend, episodes, seed, weights, info, lambda turn, who: progress.advance(turns)
            )
        finally:
            backend.close()


if __name__ == "__main__":
    try:
        main()
    except ConfigError as error:
        sys.exit(f"rank.py: {error}")
