"""Which commands there are."""

from __future__ import annotations

import typer

from .bench import bench
from .simulate import simulate
from .train import train


def register(app: typer.Typer) -> None:
    """Add every command to the application."""
    app.command()(simulate)
    app.command()(train)
    app.add_typer(bench, name="bench")
