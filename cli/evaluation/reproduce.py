"""``slicepilot reproduce``: repeat a published study and compare the figures with the published figures."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Any

import typer

from slicepilot.cli.dataset.paths import writing_to
from slicepilot.cli.schemas.evaluation import Reproduced
from slicepilot.cli.shared.agents_option import names_of
from slicepilot.cli.shared.output import announce_compilation, console, figures_table, print_json, progress_bar
from slicepilot.configs import ConfigError
from slicepilot.configs.errors import did_you_mean

WHERE = ("simulator", "testbed")
WORDS = {True: "yes", False: "no", None: "-"}


def reproduce(
    study: Annotated[str, typer.Argument(help="Study: andrade, grosvik, mishra or moreira.", show_default=False)],
    where: Annotated[
        list[str] | None,
        typer.Option("--in", help="Where to play it: simulator (default) or testbed (root); may be repeated."),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder with the study's release.")] = None,
    agents: Annotated[
        list[str] | None, typer.Option(help="Agents to add as further rows, separated by commas.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and shorter runs.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Random seed for loads and noise.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for report.html, its pictures (SVG), rows.csv, study.json and finished runs."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Do not repeat runs that --out has.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Reproduce a published study: what it printed beside what comes out here.

    Every row and every general finding of the study is compared, with a verdict and, where it is known, the cause of a
    difference.

    Example: [bold]slicepilot reproduce andrade --data sliceisolation --out reports/andrade[/bold]
    """
    from slicepilot.training.studies.reproduce import reproduce as play
    from slicepilot.training.studies.reproduce import study_of
    from slicepilot.training.studies.study import Effort

    study_of(study)
    systems = tuple(dict.fromkeys(where or (() if data is not None else WHERE[:1])))
    for system in systems:
        if system not in WHERE:
            raise ConfigError(f"in = {system!r}: {did_you_mean(system, WHERE)}")
    if resume and out is None:
        raise ConfigError("resume: needs --out FOLDER, which has the finished runs")
    if not as_json and "simulator" in systems:
        announce_compilation()
    with contextlib.nullcontext() if out is None else writing_to(out), progress_bar() as progress:
        task = progress.add_task(study, total=1.0)

        def say(what: str, share: float) -> None:
            progress.update(task, completed=share, description=f"{study}: {what}")

        result = play(study, systems, data, Effort(quick, names_of(agents or []), seed, say), out, resume)
        document = result.document()
        if out is not None:
            _write(result, out, document)
    if as_json:
        print_json(document, Reproduced)
        return
    _print(document)
    if out is not None:
        console.print(f"report in {out / 'report.html'}", soft_wrap=True)


def _write(result: Any, out: Path, document: dict[str, Any]) -> None:
    from slicepilot.configs.documents import dumps
    from slicepilot.data.files import replace_file
    from slicepilot.training.studies.report import render

    replace_file(out / "study.json", dumps(document, Reproduced).encode())
    replace_file(out / "rows.csv", result.csv().encode())
    for name, text in render(result).items():
        replace_file(out / name, text.encode())


def _print(document: dict[str, Any]) -> None:
    """The findings, how many rows agree, and the rows that differ."""
    sources = [name for name in ("simulated", "measured", "release") if any(row[name] for row in document["rows"])]
    table = figures_table(f"What the study found ({document['study']})", ["finding", "published", *sources])
    for verdict in document["verdicts"]:
        table.add_row(verdict["claim"], WORDS[verdict["published"]], *(WORDS[verdict[name]] for name in sources))
    console.print(table)
    compared = [row for row in document["rows"] if row["verdict"] != "not compared"]
    agree = sum(row["verdict"] == "agrees" for row in compared)
    console.print(f"{agree} of {len(compared)} printed figures agree")
    for rank in document["ranks"]:
        console.print(
            f"{rank['source']}: rank correlation of {rank['order']} in {rank['rows']} rows: {rank['spearman']:.2f}"
        )
    differ = [row for row in compared if row["verdict"] == "differs"]
    if differ:
        table = figures_table("Rows that differ", ["row", "published", *sources, "%"])
        for row in differ:
            figures = ["" if row[name] is None else f"{row[name]:.1f}" for name in ("published", *sources)]
            table.add_row(f"{row['text']}, {row['unit']}", *figures, f"{row['difference_pct']:+.0f}")
        console.print(table)
        for cause in dict.fromkeys(row["cause"] for row in differ if row["cause"]):
            console.print(cause, style="dim")
    for remark in document["remarks"]:
        console.print(remark, style="dim")
