"""Default outputs of commands, below the working folder."""

from __future__ import annotations

from pathlib import Path

from slicepilot.configs.ownership import check_own


def own(path: Path, default: Path, option: str) -> Path:
    """The path of an output; raises ConfigError for a default path that other users can redirect.

    An explicit path is the caller's responsibility.
    """
    if path == default:
        check_own(path, f"{option} = {str(path)!r}: ", f"name another with --{option}")
    return path
