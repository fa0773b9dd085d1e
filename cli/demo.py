"""``slicepilot demo``: from the published figures to a report in one command."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from .dataset.paths import writing_to
from .demo_live import on_real_upfs
from .shared.default_paths import numbered, own
from .shared.output import console

OUT = Path("runs/demo")
SCENARIO, TRAIN_MINUTES = "testbed-contention", 2.0


def demo(
    out: Annotated[Path, typer.Option(help="Output folder for bundle, results and report.")] = OUT,
    minutes: Annotated[float, typer.Option(help="Training time in minutes.")] = TRAIN_MINUTES,
) -> None:
    """Compare the simulator with the published study, train a policy for a busy node, judge it and let it act.

    The policy is judged in the simulator and beside no control and fixed weights on real UPFs. Takes about five
    minutes on two CPUs.

    Example: [bold]slicepilot demo --out runs/mine[/bold]
    """
    from .evaluation.evaluate import evaluate
    from .evaluation.simulate import simulate
    from .train.train import train

    own(out, OUT, "out")
    if out.is_dir() and any(out.iterdir()):
        out = numbered(out)  # so that an earlier demo is kept
    with writing_to(out):
        pass  # the folder is all that is needed yet
    started = time.monotonic()

    def headline(text: str) -> None:
        console.print(Text.assemble("\n", (text, "bold"), (f"  {time.monotonic() - started:.0f} s", "dim")))

    headline("1/4  Comparing the simulator with the published study (Andrade and Wickboldt, 2025)")
    simulate(study="andrade", experiments="1-8,13", repetitions=5)
    headline(f"2/4  Training for the node and the loads of {SCENARIO}")
    train(config="node", scenario=SCENARIO, minutes=minutes, out=out / "training")
    headline("3/4  Evaluating on unseen loads, against fixed settings, heuristics and a clairvoyant agent")
    report = out / "report.html"
    evaluate(bundle=[out / "training" / "bundle"], config="demo", results=out / "results", report=report)
    headline("4/4  The same policy on real UPFs")
    on_real_upfs(out / "training" / "bundle", out / "live.html", SCENARIO)
    headline(f"Done. Open {report} in a browser; `mlflow ui --backend-store-uri sqlite:///mlflow.db` shows the runs.")
