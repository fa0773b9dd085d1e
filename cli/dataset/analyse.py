"""``slicepilot dataset analyse``: how delays of groups differ, how surely, and what they move with."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slicepilot.cli.schemas.episodes import Analysed
from slicepilot.cli.shared.output import console, figures_table, print_json, progress_bar

from .paths import ConditionOption, KindOption, QfiOption, UeOption, UnitOption, options_of, writing_to
from .releases import print_fact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import Progress

    from slicepilot.data.intervals import Interval
    from slicepilot.training.statistics.analysis import Analysis
    from slicepilot.training.statistics.comparison import Comparison

    from .tables import Tables

OUT = Path("reports/delays")
LONGEST, LONGEST_TERM = 16, 24  # characters of a group's name in tables, and of a term's
MOST_SENTENCES = 5
CERTAIN = 0.05


def analyse(
    paths: Annotated[list[Path], typer.Argument(help="Files and folders that hold delays.", show_default=False)],
    by: Annotated[str | None, typer.Option(help='Column that defines the groups, or "file".')] = None,
    baseline: Annotated[str | None, typer.Option(help="Group that the other groups are compared with.")] = None,
    value: Annotated[str | None, typer.Option(help="Column that holds the delays.")] = None,
    on: Annotated[list[str] | None, typer.Option(help="Column that may explain the delays; may be repeated.")] = None,
    out: Annotated[Path, typer.Option(help="Output folder for tables and plots.")] = OUT,
    resamples: Annotated[
        int, typer.Option(min=100, max=1_000_000, help="Number of resamples for tests and intervals.")
    ] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Random seed for the resamples.")] = 0,
    kind: KindOption = None,
    unit: UnitOption = None,
    qfi: QfiOption = None,
    condition: ConditionOption = None,
    ue: UeOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare delays of groups with a baseline: quantiles, tests, effect sizes, quantile regression, plots.

    Accepts imported tables, files of releases, episodes, Minari datasets, and the records of a controller. Columns
    that are not given are detected. The folder gets statistics.json, CSV tables and plots.

    Example: slicepilot dataset analyse tables/mishra-forwarding-light.parquet --by slice --out reports/light
    """
    with progress_bar() as progress:
        analysis, tables = _analyse(
            progress, paths, (value, by, on), baseline, resamples, seed, kind, options_of(unit, qfi, condition, ue)
        )
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
    chosen: tuple[str | None, str | None, list[str] | None],
    baseline: str | None,
    resamples: int,
    seed: int,
    kind: str | None,
    options: Any,
) -> tuple[Analysis, Tables]:
    """Read, then compute."""
    from dataclasses import replace

    from slicepilot.training.statistics.collect import collect

    from .tables import open_tables

    value, by, on = chosen
    tables = open_tables(paths, kind, options, value, _shown(progress, "reading"))
    delays = collect(tables.delays, value, by, on, tables.resources, seed)
    # What takes long to import comes when the input is known to be good.
    from slicepilot.training.statistics.analysis import analyse as run

    result = run(delays, baseline, resamples, seed, _shown(progress, "comparing"))
    return replace(result, notes=(*tables.notes, *result.notes)), tables


def _shown(progress: Progress, name: str) -> Callable[[float], None]:
    """A bar that appears when there is something to show."""
    tasks: list[Any] = []

    def show_share(share: float) -> None:
        if not tasks:
            tasks.append(progress.add_task(name, total=1.0))
        progress.update(tasks[0], completed=share, visible=share < 1)

    return show_share


def _print(analysis: Analysis, files: list[Path]) -> None:
    from slicepilot.training.statistics.comparison import P_VALUES

    suite, columns = analysis.suite, analysis.delays.columns
    unit = _shown_unit(suite.unit) or "no unit"
    table = figures_table(
        f"{columns.value} by {columns.by}", (columns.by, "n", "median", "p90", "p95", "p99", "IQR", "MAD")
    )
    for d in suite.descriptions:
        figures = (d.median.value, d.p90, d.p95.value, d.p99, d.iqr, d.mad)
        table.add_row(_short(d.group), f"{d.n:,}", *map(_number, figures))
    console.print(table)
    if suite.comparisons:
        table = figures_table(
            f"minus {suite.baseline}, {unit}", (columns.by, "median", "95% interval", "p95", "95% interval")
        )
        for c in suite.comparisons:
            table.add_row(_short(c.group), _number(c.median.value), _ends(c.median), _number(c.p95.value), _ends(c.p95))
        console.print(table)
        heads = (columns.by, "delta", "effect", "p med", "Holm", "p p95", "Holm", "p M-W", "Holm")
        table = figures_table(f"against {suite.baseline}: Cliff's delta and p values", heads)
        for c in suite.comparisons:
            p_values = [_p_value(p) for name in P_VALUES for p in (getattr(c, name), c.holm[name])]
            table.add_row(_short(c.group), f"{c.cliffs_delta:.2f}", c.magnitude, *p_values)
        console.print(table)
    _print_regression(analysis, unit)
    for sentence in islice(_sentences(analysis), MOST_SENTENCES):
        console.print(sentence, markup=False, highlight=False)
    for note in analysis.notes:
        print_fact("note", note)
    folder = files[0].parent
    print_fact("written", f"{folder}: {', '.join(path.name for path in files)}")


def _print_regression(analysis: Analysis, unit: str) -> None:
    if analysis.regression is None:
        return
    fits = analysis.regression.fits
    heads = [part for fit in fits for part in (f"q {fit.quantile:g}", "p")]
    table = figures_table(f"quantile regression of {fits[0].n:,} rows: beta, {unit}", ("term", *heads))
    for index, first in enumerate(fits[0].coefficients):
        own = [fit.coefficients[index] for fit in fits]
        figures = (part for c in own for part in (_number(c.beta), _p_value(c.p)))
        table.add_row(_short(first.term.name, LONGEST_TERM), *figures)
    console.print(table)
    against = ", ".join(f"{name} {level}" for name, level in analysis.regression.references.items())
    print_fact("beta", "of a number per standard deviation" + (f", of a level against {against}" if against else ""))


def _short(name: str, longest: int = LONGEST) -> str:
    from slicepilot.training.statistics.columns import shortened

    return shortened(name, longest)


def _number(value: float) -> str:
    """Four significant digits, thousands whole."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _ends(interval: Interval) -> str:
    """Both ends of an interval."""
    return f"{_number(interval.low)} to {_number(interval.high)}"


def _p_value(p: float | None) -> str:
    """Three digits behind the point; nothing where it is not known."""
    if p is None:
        return ""
    return "<.001" if p < 0.001 else f"{p:.3f}".removeprefix("0") if p < 0.9995 else "1"


def _shown_unit(unit: str) -> str:
    """As it is printed."""
    return "µs" if unit == "us" else unit


def _sentences(analysis: Analysis) -> Iterator[str]:
    """Each group's difference in one sentence, the largest first."""
    suite = analysis.suite
    ranked = sorted(suite.comparisons, key=lambda c: -abs(c.cliffs_delta))
    unit = f" {_shown_unit(suite.unit)}" if suite.unit else ""
    for c in ranked:
        if c.magnitude != "negligible":
            longer = "longer" if c.cliffs_delta > 0 else "shorter"
            by = f"median {_signed(c.median.value)}{unit} and p95 {_signed(c.p95.value)}{unit}"
            effect = f"a {c.magnitude} effect (Cliff's delta {c.cliffs_delta:.2f}, {_certainty(c)})"
            yield f"{c.group}: {longer} delays than {suite.baseline}, {by}: {effect}."
    alike = [c.group for c in ranked if c.magnitude == "negligible"]
    if alike:
        verb = "differ" if len(alike) > 1 else "differs"
        yield f"{', '.join(alike)}: {verb} from {suite.baseline} by a negligible effect (|Cliff's delta| < 0.147)."


def _signed(value: float) -> str:
    return f"+{_number(value)}" if value > 0 else _number(value)


def _certainty(c: Comparison) -> str:
    p = c.holm["mann_whitney_p"]
    shown = f"p {_p_value(p)} after Holm's correction"
    return shown if p < CERTAIN else f"but {shown}: it may be chance"
