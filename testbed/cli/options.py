"""Options that benches share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Bundle = Annotated[
    Path | None,
    typer.Option(help="Policy bundle (default: the newest under runs/, or the shipped one)."),
]
