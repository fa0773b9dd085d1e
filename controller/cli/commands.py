"""Which commands there are."""

from __future__ import annotations

import typer

from .simulate import simulate


def register(app: typer.Typer) -> None:
    """Add every command to the application."""
    app.command()(simulate)
