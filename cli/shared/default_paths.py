"""Output that a command writes below the working folder unless it is told where."""

from __future__ import annotations

from pathlib import Path

from slicepilot.configs.ownership import check_own


def own(path: Path, default: Path, option: str) -> Path:
    """The path of an output; raises ConfigError for the default where somebody else can decide what it leads to.

    A path that the caller has chosen is the caller's.
    """
    if path == default:
        check_own(path, f"{option} = {str(path)!r}: ", f"name another with --{option}")
    return path
