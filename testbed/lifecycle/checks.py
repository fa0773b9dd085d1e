"""What ``slicepilot doctor`` says about the user plane's programs."""

from __future__ import annotations

from ...configs import ConfigError
from ...configs.backends import Check
from .processes import binary

PROGRAMS = ("upf", "smf", "load", "sink", "edge")


def checks() -> list[Check]:
    """A finding for each program."""
    found = []
    for name in PROGRAMS:
        try:
            found.append(Check(name, True, str(binary(name)), "live"))
        except ConfigError:
            found.append(Check(name, False, "missing", "live", "build the user plane: make live"))
    return found
