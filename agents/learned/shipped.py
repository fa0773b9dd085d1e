"""Policies that come with the package, by name."""

from __future__ import annotations

from pathlib import Path

SHIPPED = Path(__file__).resolve().with_name("bundles")
GENERALIST = "generalist"
"""Trained on nodes of any kind (`configs/training/guided.yaml`); docs/results.md has what it achieves."""


def folder_of(name_or_path: str | Path) -> Path:
    """The folder of a bundle. A shipped bundle's name means that bundle, whatever the working folder holds."""
    given = Path(name_or_path)
    shipped = SHIPPED / given.name
    return shipped if given.name == str(given) == GENERALIST and shipped.is_dir() else given


def is_shipped(folder: str | Path) -> bool:
    """Whether a bundle is part of the package."""
    given = folder_of(folder)
    return given.parent == SHIPPED and given.name != ".."
