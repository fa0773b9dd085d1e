"""What ``slicepilot doctor`` says about the user plane's programs."""

from __future__ import annotations

import os
from pathlib import Path

from slicepilot.configs import ConfigError
from slicepilot.configs.backends import Check

from .processes import bin_folder, obstacle

PROGRAMS = ("upf", "smf", "load", "sink", "edge")


def checks() -> list[Check]:
    """A finding for each program."""
    try:
        folder = bin_folder()
    except ConfigError as error:
        return [Check("SLICEPILOT_BIN", False, os.environ["SLICEPILOT_BIN"], "live", str(error))]
    return [_finding(name, folder / name) for name in PROGRAMS]


def _finding(name: str, path: Path) -> Check:
    reason = obstacle(path)
    return Check(name, reason is None, str(path) if reason is None else reason.partition(";")[0], "live", reason or "")
