"""Default outputs of commands below the working folder, and names that are not taken."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

from slicepilot.configs.ownership import check_own


def own(path: Path, default: Path, option: str) -> Path:
    """The path of an output; raises ConfigError for a default path that other users can redirect.

    An explicit path is the caller's responsibility.
    """
    if path == default:
        check_own(path, f"{option} = {str(path)!r}: ", f"name another with --{option}")
    return path


def numbered(path: Path, ending: str = "", taken: Callable[[Path], bool] = Path.exists) -> Path:
    """The path with an ending, and if need be a number from 2 on before it, that is not taken."""
    stems = (path.name if number == 1 else f"{path.name}-{number}" for number in count(1))
    return next(one for stem in stems if not taken(one := path.with_name(f"{stem}{ending}")))
