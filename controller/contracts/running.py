"""Errors about which controllers run, in one wording for all commands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slicepilot.configs import ConfigError


def not_running(name: str | None, run_root: Path, running: Sequence[str], hint: str = "") -> ConfigError:
    """The error of a command for which there is not exactly one controller to ask: by the name that was given (None for
    the only one), the names of those that run, and a hint at what else could be done."""
    if running:
        given = "not given" if name is None else repr(name)
        return ConfigError(f"name: {given}; expected one of {', '.join(sorted(running))}")
    wanted = run_root if name is None else run_root / name
    return ConfigError(f"{wanted}: no controller runs there; start `slicepilot run` first{hint}")
