"""Ours against d3rlpy's: the same algorithm, settings, network sizes, data and judge.

    benchmarks/offline/environment.sh              # once: d3rlpy's own environment
    python benchmarks/offline/dataset.py           # once: build/pendulum.npz
    python benchmarks/offline/compare.py pendulum
    python benchmarks/offline/compare.py log.parquet

``cql-drawn`` is CQL where d3rlpy's critics learn from actions drawn from the policy, as ours and the authors' do; as
released it takes the policy's mode.

`tasks.py` says what normalised returns are normalised by. Intervals are Student's over training seeds, that of the
difference is Welch's. Every result is kept in ``--kept`` as soon as it is there: a second run trains what is missing.
Delete the file after the algorithms have changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import warnings
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from play import Act
from rich.console import Console
from scipy import stats
from tasks import Task, pendulum, recorded

from slicepilot.cli.shared.output import figures_table, progress_bar
from slicepilot.configs import ConfigError
from slicepilot.data.episodes.episodes import EpisodeSet
from slicepilot.data.files import replace_file
from slicepilot.training.offline.config import OfflineConfig
from slicepilot.training.offline.learner import Learner
from slicepilot.training.offline.memory import Memory, RewardScale
from slicepilot.training.offline.networks import FlatNetworks
from slicepilot.training.offline.train import make_learner

Returns = npt.NDArray[np.float64]

BUILD = Path(__file__).resolve().parents[2] / "build"
REFERENCE = BUILD / "offline-reference" / "bin" / "python"
LEVEL = 0.95
TELLING = 40.0  # points; a wider interval of a difference contains nearly anything
HIDDEN = (64, 64)
SIDES = ("ours", "d3rlpy")
UPDATES = {"pendulum": 5000, "recorded": 3000}
ALGORITHMS = {"pendulum": "bc,td3-bc,cql,iql", "recorded": "bc,td3-bc,cql,cql-drawn,iql"}
DRAWN = "cql-drawn"
RATES = {"actor_learning_rate": 1e-3, "critic_learning_rate": 1e-3}
CQL = RATES | {"temperature_learning_rate": 1e-3, "action_samples": 4}
SETTINGS: dict[str, dict[str, dict[str, float]]] = {
    "pendulum": {
        "bc": {"learning_rate": 1e-3},
        "td3_bc": RATES | {"alpha": 10.0, "target_rate": 0.02},
        "cql": CQL | {"conservative_weight": 0.5},
        "iql": RATES | {"value_learning_rate": 1e-3},
    },
    "recorded": {
        "bc": {"learning_rate": 1e-3},
        "td3_bc": RATES,
        "cql": CQL | {"conservative_weight": 0.1},
        "iql": RATES | {"value_learning_rate": 1e-3},
    },
}
"""What differs from the published settings, which are for 200 times as many updates."""


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", help="pendulum, or a recorded dataset")
    parser.add_argument("--algorithms", help=f"else {ALGORITHMS}")
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each side")
    parser.add_argument("--updates", type=int, help=f"of each training; else {UPDATES}")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--settings", default="{}", help='JSON, for instance {"cql": {"action_samples": 10}}')
    parser.add_argument("--data", type=Path, default=BUILD / "pendulum.npz", help="of pendulum")
    parser.add_argument("--behaviours", default="experiment-*,random", help="whose episodes of a recorded dataset")
    parser.add_argument("--reward", default="delay-first")
    parser.add_argument("--scenario", default="testbed-contention")
    parser.add_argument("--kept", type=Path, default=BUILD / "offline-compare.json", help="file of all results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kind = "pendulum" if options.task == "pendulum" else "recorded"
    options.updates = options.updates or UPDATES[kind]
    if kind == "pendulum":
        task = pendulum(options.data)
    else:
        task = recorded(options.task, tuple(options.behaviours.split(",")), options.reward, options.scenario)
    names = (options.algorithms or ALGORITHMS[kind]).split(",")
    settings = {part: own | json.loads(options.settings).get(part, {}) for part, own in SETTINGS[kind].items()}
    jobs = {name: [job(name, seed, task, settings, options) for seed in range(options.seeds)] for name in names}
    returns = trained(jobs, task, options.kept)
    print(
        f"{task.name}: {task.episodes.num_steps:,} steps, {options.updates:,} updates of {options.batch} steps, ",
        end="",
    )
    print(f"{options.seeds} seeds; 0 is a return of {task.low:.3f}, 100 of {task.high:.3f}")
    shown = figures_table("", ("", *SIDES, "difference", ""))
    for name, values in returns.items():
        shown.add_row(name, *row(values[:, 0], values[:, 1]))
    Console().print(shown)


def job(algorithm: str, seed: int, task: Task, settings: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """All that a result depends on, as plain values; raises ConfigError."""
    known = "cql" if algorithm == DRAWN else algorithm
    given = {"algorithm": known, "updates": options.updates, "batch_steps": options.batch, "seed": seed}
    config = OfflineConfig.of(given | settings, "compare")
    kept = {"algorithm": known, "seed": seed, "updates": config.updates, "batch": config.batch_steps}
    kept |= {"settings": asdict(getattr(config, known.replace("-", "_"))), "gamma": task.gamma}
    kept |= {"hidden": list(HIDDEN), "task": task.name, "data": digest(task.episodes)}
    return kept | ({"backup": "drawn"} if algorithm == DRAWN else {})


def trained(jobs: dict[str, list[dict[str, Any]]], task: Task, kept: Path) -> dict[str, Returns]:
    """Normalised returns (seeds, 2) of every algorithm; what is in the file already is taken from there."""
    results: list[dict[str, Any]] = json.loads(kept.read_text()) if kept.exists() else []
    found: dict[str, list[list[float]]] = {name: [] for name in jobs}
    with TemporaryDirectory() as folder, progress_bar() as progress:
        bar = progress.add_task("", total=2 * sum(map(len, jobs.values())))
        data = Path(folder) / "data.npz"
        np.savez(data, allow_pickle=False, **arrays_of(task.episodes))
        for name, work in jobs.items():
            for one in work:
                values = next((result["returns"] for result in results if result["job"] == one), None)
                if values is None:
                    progress.update(bar, description=f"{name} {one['seed']}: ours")
                    values = [task.score(ours(task.episodes, one))]
                    progress.update(bar, description=f"{name} {one['seed']}: d3rlpy", advance=1)
                    values.append(task.score(theirs(data, one, Path(folder))))
                    results.append({"job": one, "returns": values})
                    kept.parent.mkdir(parents=True, exist_ok=True)
                    replace_file(kept, json.dumps(results, indent=1).encode())
                    progress.advance(bar, 1)
                else:
                    progress.advance(bar, 2)
                found[name].append(values)
    return {name: np.asarray(values) for name, values in found.items()}


def ours(episodes: EpisodeSet, one: dict[str, Any]) -> Act:
    """Train here."""
    part = one["algorithm"].replace("-", "_")
    given = {"algorithm": one["algorithm"], "updates": one["updates"], part: one["settings"]}
    torch.manual_seed(one["seed"])
    observations = torch.from_numpy(np.concatenate([e.observations for e in episodes]))
    actions = episodes.episodes[0].actions.shape[1]
    networks = FlatNetworks(observations, actions, one["hidden"], torch.device("cpu"))
    learner: Learner = make_learner(OfflineConfig.of(given, "compare"), networks)
    discounts = np.full(episodes.num_steps, one["gamma"], np.float32)
    memory = Memory.of(episodes, networks, discounts, RewardScale())
    for _ in range(one["updates"]):
        learner.update(memory.sample(one["batch"]))
    return _act(learner.policy)


def theirs(data: Path, one: dict[str, Any], folder: Path) -> Act:
    """Train with d3rlpy, in its environment; raises ConfigError if it is not there or fails."""
    if not REFERENCE.exists():
        raise ConfigError(f"{REFERENCE}: not there; accepted: what benchmarks/offline/environment.sh makes")
    job_file, policy = folder / "job.json", folder / "policy.pt"
    job_file.write_text(json.dumps(one))
    script = Path(__file__).with_name("reference.py")
    done = subprocess.run([REFERENCE, script, data, job_file, policy], check=False, capture_output=True, text=True)
    if done.returncode:
        raise ConfigError(f"d3rlpy: {done.stderr.strip().rpartition(chr(10))[2]}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # TorchScript is what d3rlpy exports
        load: Any = torch.jit.load
        return _act(load(policy))


def _act(policy: Any) -> Act:
    def act(observations: Any) -> Any:
        with torch.no_grad():
            return policy(torch.from_numpy(np.asarray(observations, np.float32))).numpy()

    return act


def arrays_of(episodes: EpisodeSet) -> dict[str, npt.NDArray[Any]]:
    """As ``dataset.py`` writes them."""
    return {
        "observations": np.concatenate([e.observations for e in episodes]),
        "actions": np.concatenate([e.actions for e in episodes]),
        "rewards": np.concatenate([e.rewards for e in episodes]),
        "lengths": np.asarray([len(e) for e in episodes]),
    }


def digest(episodes: EpisodeSet) -> str:
    """Tells one dataset from another."""
    found = hashlib.sha256()
    for array in arrays_of(episodes).values():
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def row(own: Returns, other: Returns) -> tuple[str, ...]:
    """Means and the difference with their intervals, and what that says."""
    low, high = stats.ttest_ind(own, other, equal_var=False).confidence_interval(LEVEL)
    difference = np.mean(own) - np.mean(other)
    verdict = "differ" if not low <= 0 <= high else "agree" if high - low < TELLING else "not told apart"
    return interval(own), interval(other), f"{difference:+.1f} ({low:+.1f} to {high:+.1f})", verdict


def interval(values: Returns) -> str:
    """Mean and the half-width of its interval."""
    half = stats.sem(values) * stats.t.ppf(0.5 + LEVEL / 2, len(values) - 1)
    return f"{np.mean(values):.1f} +- {half:.1f}"


if __name__ == "__main__":
    try:
        main()
    except ConfigError as error:
        raise SystemExit(f"compare: error: {error}") from error
