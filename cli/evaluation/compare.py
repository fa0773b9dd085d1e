"""``slicepilot compare``: runs, policies and evaluations side by side, from their folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slicepilot.cli.schemas.evaluation import Compared, ComparedRun
from slicepilot.cli.shared.output import console, figures_table, print_json
from slicepilot.cli.shared.registry import SCHEME, local_bundle
from slicepilot.cli.shared.streams import STDOUT, require_single, write_out

if TYPE_CHECKING:
    from slicepilot.training.comparison.sources import Candidate

MOST_SHOWN = 6
"""Columns of a table: what they do not hold is in the report."""
FIGURES = ("reward", "return_mean", "estimate/reward", "judged/fine-tuned", "judged/offline")
SCORES = {
    "sla_violation_s": "broken\ns",
    "best_effort_loss_pct": "best effort\nloss %",
    "cpu_wasted_core_s": "CPU wasted\ncore-s",
    "return": "return",
}


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="Folder of a run, sweep, bundle or evaluation; generalist, or models:/NAME@ALIAS.", show_default=False
        ),
    ],
    report: Annotated[Path | None, typer.Option(help="Write an HTML report to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare training runs, policies and evaluations: parameters that differ, figures, and in the report curves.

    Everything is read from their folders, without MLflow. Scores of an evaluation appear with the run whose policy was
    judged.

    Example: slicepilot compare runs/node-seed1 runs/node-seed2 reports/evaluation --report compare.html
    """
    from slicepilot.agents.learned.shipped import folder_of
    from slicepilot.training.comparison.sources import read_all

    require_single(report, as_json, "--report")
    folders = [folder_of(local_bundle(run)) for run in runs]
    names = [run if run.startswith(SCHEME) else _name(folder) for run, folder in zip(runs, folders, strict=True)]
    candidates = read_all(list(zip(names, folders, strict=True)))
    if report is not None:
        from slicepilot.training.comparison.report import render
        from slicepilot.training.runs.labels import now

        write_out(report, render(candidates, now()).encode(), "--report")
    if as_json:
        print_json(_document(candidates), Compared)
    elif report != STDOUT:
        _print(candidates)
        if report is not None:
            console.print(f"report in {report}", soft_wrap=True, markup=False)


def _name(folder: Path) -> str:
    """A bundle is named after its run."""
    path = folder.absolute()
    return path.parent.name if path.name == "bundle" else path.name


def _document(candidates: Sequence[Candidate]) -> dict[str, object]:
    from slicepilot.training.comparison.sources import differing

    return {
        "compared": [{name: getattr(item, name) for name in ComparedRun.__annotations__} for item in candidates],
        "differing": {
            key: dict(zip([item.name for item in candidates if item.parameters], values, strict=True))
            for key, values in differing(candidates).items()
        },
    }


def _print(candidates: Sequence[Candidate]) -> None:
    from rich.text import Text

    from slicepilot.training.comparison.report import scenarios_of
    from slicepilot.training.comparison.sources import differing

    given = [item for item in candidates if item.parameters][:MOST_SHOWN]
    if rows := differing(given):
        table = figures_table("parameters that differ", ("parameter", *(item.name for item in given)))
        for key, values in rows.items():
            table.add_row(Text(key), *(Text("-" if value is None else value) for value in values))
        console.print(table)
    figures = [key for key in FIGURES if any(key in item.figures for item in candidates)]
    if figures:
        table = figures_table("figures of the runs", ("run", *figures))
        for item in candidates:
            if any(key in item.figures for key in figures):
                table.add_row(Text(item.name), *(_shown(item.figures.get(key)) for key in figures))
        console.print(table)
    for scenario in scenarios_of(candidates):
        table = figures_table(f"scenario {scenario}", ("agent", *SCORES.values()))
        for item in candidates:
            scores = [item.figures.get(f"{scenario}/{key}") for key in SCORES]
            if any(score is not None for score in scores):
                table.add_row(Text(item.name), *map(_shown, scores))
        console.print(table)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}"
