"""``slicepilot dataset analyse``: differences between delays of groups, their significance, and covariates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slicepilot.cli.schemas.episodes import Analysed
from slicepilot.cli.shared.default_paths import own
from slicepilot.cli.shared.output import console, figures_table, print_json, progress_bar

from .describe import WhereOption
from .paths import writing_to
from .releases import print_fact

if TYPE_CHECKING:
    from rich.progress import Progress

    from slicepilot.data.intervals import Interval
    from slicepilot.data.tables.selection import Condition
    from slicepilot.training.statistics.analysis import Analysis

    from .tables import Tables

OUT = Path("reports/delays")
LONGEST = 16  # characters of a group's name in tables


def analyse(
    paths: Annotated[list[Path], typer.Argument(help="Files and folders that hold delays.", show_default=False)],
    by: Annotated[
        list[str] | None, typer.Option(help='Column that defines the groups, or "file"; may be repeated.')
    ] = None,
    where: WhereOption = None,
    baseline: Annotated[str | None, typer.Option(help="Group that the other groups are compared with.")] = None,
    value: Annotated[str | None, typer.Option(help="Column that holds the delays.")] = None,
    on: Annotated[list[str] | None, typer.Option(help="Column that may explain the delays; may be repeated.")] = None,
    out: Annotated[Path, typer.Option(help="Output folder for tables and plots.")] = OUT,
    resamples: Annotated[
        int, typer.Option(min=100, max=1_000_000, help="Number of resamples for tests and intervals.")
    ] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Random seed for the resamples.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare delays of groups with a baseline: quantiles, tests, effect sizes, quantile regression, plots.

    Accepts imported tables, episodes, Minari datasets, and the records of a controller. Columns that are not given are
    detected; several --by make a group of each combination. The folder gets statistics.json, CSV tables and plots.

    Example: slicepilot dataset analyse tables/mishra-forwarding-light.parquet --by slice --out reports/light
    """
    from slicepilot.data.tables.selection import Condition

    own(out, OUT, "out")
    with progress_bar() as progress:
        chosen = value, by or [], on, [Condition.parse(text) for text in where or ()]
        analysis, tables = _analyse(progress, paths, chosen, baseline, resamples, seed)
        from slicepilot.data.files import replace_file
        from slicepilot.training.statistics.figures import write_figures

        task = progress.add_task("plots", total=None)
        sources = [source.name for source in tables.delays]
        document = {"sources": sources} | analysis.to_json()
        with writing_to(out):
            files = [*analysis.write_tables(out), *write_figures(analysis, out), out / "statistics.json"]
            replace_file(files[-1], json.dumps(document, indent=2, allow_nan=False).encode())
        progress.remove_task(task)
    if as_json:
        print_json(document | {"files": [str(path) for path in files]}, Analysed)
    else:
        _print(analysis, files)


def _analyse(
    progress: Progress,
    paths: list[Path],
    chosen: tuple[str | None, list[str], list[str] | None, list[Condition]],
    baseline: str | None,
    resamples: int,
    seed: int,
) -> tuple[Analysis, Tables]:
    from dataclasses import replace

    from slicepilot.data.tables.selection import TOGETHER, selected
    from slicepilot.training.statistics.collect import collect

    from .tables import open_tables

    value, by, on, where = chosen
    reading = progress.add_task("reading", total=None)
    tables = open_tables(paths, value)
    sources = [replace(source, stream=selected(source.stream, where, by)) for source in tables.delays]
    delays = collect(sources, value, TOGETHER.join(by) or None, on, tables.resources, seed)
    progress.remove_task(reading)
    comparing = progress.add_task("comparing", total=1.0)
    # What takes long to import comes when the input is known to be good.
    from slicepilot.training.statistics.analysis import analyse as run

    result = run(delays, baseline, resamples, seed, lambda share: progress.update(comparing, completed=share))
    progress.remove_task(comparing)
    return replace(result, notes=(*tables.notes, *result.notes)), tables


def _print(analysis: Analysis, files: list[Path]) -> None:
    """Print groups and their differences from the baseline; the files have all tests and the regression."""
    from slicepilot.training.statistics.columns import shortened

    suite, columns = analysis.suite, analysis.delays.columns
    unit = {"us": "µs", "": "no unit"}.get(suite.unit, suite.unit)
    table = figures_table(
        f"{columns.value} by {columns.by}", (columns.by, "n", "median", "p90", "p95", "p99", "IQR", "MAD")
    )
    for d in suite.descriptions:
        figures = (d.median.value, d.p90, d.p95.value, d.p99, d.iqr, d.mad)
        table.add_row(shortened(d.group, LONGEST), f"{d.n:,}", *map(_number, figures))
    console.print(table)
    if suite.comparisons:
        heads = (columns.by, "median", "95% interval", "p95", "Cliff's delta", "effect", "p")
        table = figures_table(f"minus {suite.baseline}, {unit}; p of Mann-Whitney after Holm's correction", heads)
        for c in suite.comparisons:
            differences = (_number(c.median.value), _ends(c.median), _number(c.p95.value), f"{c.cliffs_delta:.2f}")
            table.add_row(shortened(c.group, LONGEST), *differences, c.magnitude, f"{c.holm['mann_whitney_p']:.3g}")
        console.print(table)
    for note in analysis.notes:
        print_fact("note", note)
    print_fact("written", f"{files[0].parent}: {', '.join(path.name for path in files)}")


def _number(value: float) -> str:
    """Four significant digits, thousands whole."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _ends(interval: Interval) -> str:
    return f"{_number(interval.low)} to {_number(interval.high)}"
