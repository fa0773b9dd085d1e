"""``slicepilot demo``: from the published figures to a report in one command."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from slicepilot.configs import ConfigError

from .shared.output import console

LIVE_SCENARIO, LIVE_S = "testbed-contention", 5.0


def demo(
    out: Annotated[Path, typer.Option(help="Output folder for bundle, results and report.")] = Path("runs/demo"),
    config: Annotated[
        str | None, typer.Option("-c", "--config", help="Training configuration: a shipped name or a YAML file.")
    ] = None,
    judge: Annotated[str, typer.Option(help="Evaluation configuration: a shipped name or a YAML file.")] = "demo",
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the training.")] = 0,
    minutes: Annotated[
        float | None, typer.Option(help="Training time in minutes (default: from the configuration).")
    ] = None,
    from_scratch: Annotated[bool, typer.Option("--from-scratch", help="Start with an untrained policy.")] = False,
) -> None:
    """Compare the simulator with the published study, train a policy, evaluate it and write a report.

    Takes about six minutes on two CPUs.

    Example: [bold]slicepilot demo --out runs/mine[/bold]
    """
    from slicepilot.agents.learned.shipped import GENERALIST

    from .evaluation.evaluate import evaluate
    from .evaluation.simulate import simulate
    from .train.train import train

    if out.exists() and any(out.iterdir()):
        out = _next_free(out)
    out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()

    def headline(text: str) -> None:
        console.print(f"\n[bold]{text}[/bold]  [dim]{time.monotonic() - started:.0f} s[/dim]")

    headline("1/4  Comparing the simulator with the published study (Andrade and Wickboldt, 2025)")
    simulate(study="andrade", experiments="1-8,13", repetitions=5)
    start = "from scratch" if from_scratch else f"from the shipped policy ({GENERALIST})"
    headline(f"2/4  Training {start}, on random nodes and loads")
    config, origin = config or ("ppo" if from_scratch else "node"), None if from_scratch else GENERALIST
    train(config=config, seed=seed, minutes=minutes, out=out / "training", origin=origin)
    headline("3/4  Evaluating on unseen scenarios, against fixed settings, heuristics and a clairvoyant agent")
    report = out / "report.html"
    evaluate(bundle=[out / "training" / "bundle"], config=judge, results=out / "results", report=report)
    headline("4/4  The same policy on real UPFs")
    live(out / "training" / "bundle")
    headline(f"Done. Open {report} in a browser; `mlflow ui --backend-store-uri sqlite:///mlflow.db` shows the runs.")


def live(bundle: Path, seconds: float = LIVE_S) -> None:
    """Run a testbed for some seconds without control and with the policy, or say why that is impossible.

    Each run is a separate process, because a controller drops its privileges for good.
    """
    from slicepilot.configs.backends import plugin

    if lacks := plugin("testbed").call("missing"):
        console.print(f"left out: this machine lacks {'; '.join(lacks)}", highlight=False)
        return
    where = ["--scenario", LIVE_SCENARIO, "--seconds", str(seconds)]
    for agent in (["--agent", "no-control"], ["--bundle", str(bundle), "--mode", "live", "--force"]):
        if subprocess.run(
            [sys.executable, "-P", "-m", "slicepilot.cli", "run", *agent, *where], check=False
        ).returncode:
            console.print("left out: see above", highlight=False)
            return


def _next_free(folder: Path) -> Path:
    """A new sibling folder with a number, so that an earlier demo is kept."""
    for number in range(2, 1000):
        candidate = folder.with_name(f"{folder.name}-{number}")
        if not candidate.exists():
            return candidate
    raise ConfigError(f"out = {str(folder)!r}: expected a folder that is empty or does not exist")
