"""A policy for each of some drawn deployments, beside the rule and the best fixed setting: `judge.py OUT`.

Trains ``slicepilot train -c node --from generalist --scenario FILE`` for each deployment of a seed and judges it there
on arrivals of another seed. Deployments that are done are kept in OUT, so that a run which was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from slicepilot.data.files import replace_file
from slicepilot.training.evaluation.drawn import draw_scenarios

RIVALS = ("over_rule", "over_best_fixed")
FIXED = "no-control,experiment-*,static-weights-*,static-order,queue-greedy"


def slicepilot(*arguments: str) -> str:
    """What a command prints."""
    command = [sys.executable, "-m", "slicepilot.cli", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def judged(scenario: Path, out: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The policy of a deployment and its rivals, as ``evaluate --json`` summarises them."""
    file = out / "judged.json"
    if not file.exists():
        train = ["-c", "node", "--scenario", str(scenario), "--minutes", f"{options.minutes:g}", "--out", str(out)]
        start = [] if options.from_scratch else ["--from", "generalist"]
        slicepilot("train", *train, *start, "--seed", str(options.training_seed))
        runs = ["--seeds", str(options.runs), "--seed", str(options.seed), "--agents", FIXED]
        bundle = ["--bundle", str(out / "bundle")]
        document = json.loads(slicepilot("evaluate", "--scenario", str(scenario), *bundle, *runs, "--json"))
        replace_file(file, json.dumps(document["summary"][out.name]).encode())
    result: dict[str, Any] = json.loads(file.read_text())
    return result


def main() -> None:
    """Train, judge and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=5, help="of deployments and of the arrivals that are judged")
    parser.add_argument("--deployments", type=int, default=16)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--training-seed", type=int, default=0)
    parser.add_argument("--from-scratch", action="store_true")
    options = parser.parse_args()
    scenarios = draw_scenarios(options.out / "scenarios", options.seed, options.deployments)
    rows = []
    for scenario in scenarios:
        file = options.out.resolve() / "scenarios" / f"{scenario.name}.yaml"
        rows.append(judged(file, options.out / scenario.name, options))
        print(f"{scenario.name}: {sentence(rows[-1:], 'over_rule')}", flush=True)
    for rival in RIVALS:
        print(f"{rival}, {len(rows)} deployments: {sentence(rows, rival)}")


def sentence(rows: list[dict[str, Any]], rival: str) -> str:
    """Shares and ratios of some deployments, each of which is judged alone."""
    both = [row[rival] for row in rows]
    shares = [f"{name} {np.mean([row[name] for row in both]):.0%}" for name in ("dominates", "dominated")]
    broken = np.asarray([row["broken"]["median"] if "broken" in row else row["median"] for row in both])
    effort, cpu = (np.asarray([row[name]["median"] for row in both]) for name in ("best_effort", "cpu_wasted"))
    figures = (
        f"broken {np.median(broken):.2f}, worst {broken.max():.2f}; best effort {np.median(effort):+.1f} points, worst "
        f"{effort.min():+.1f}; wasted CPU {np.median(cpu):.2f}, worst {cpu.max():.2f}"
    )
    return "; ".join([*shares, figures])


if __name__ == "__main__":
    main()
