"""Options of commands whose runs are tracked in MLflow."""

from __future__ import annotations

from typing import Annotated

import typer

RunName = Annotated[
    str | None, typer.Option(help="Name of the run in MLflow (default: the configuration's, with seed and start).")
]
Tags = Annotated[list[str] | None, typer.Option(help="Tag of the run in MLflow: KEY=VALUE; may be repeated.")]
