"""``slicepilot report``: render saved results as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slicepilot.cli.shared.default_paths import own
from slicepilot.cli.shared.output import console, stderr
from slicepilot.cli.shared.streams import STDOUT, write_out

OUTPUT = Path("report.html")


def report(
    results: Annotated[Path, typer.Argument(help="Folder that `evaluate` has written.", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", help="Output file (HTML).")] = OUTPUT,
) -> None:
    """Render the results of an evaluation as a self-contained HTML file.

    Example: slicepilot report reports/evaluation -o report.html
    """
    from slicepilot.training.evaluation.results import read

    own(output, OUTPUT, "output")
    evaluation = read(results)
    from slicepilot.training.evaluation.report import render

    write_out(output, render(evaluation).encode(), "--output")
    (stderr if output == STDOUT else console).print(f"report in {output}", soft_wrap=True, markup=False)
