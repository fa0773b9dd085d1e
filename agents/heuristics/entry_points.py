"""Agents of other packages, which declare them by name as entry points of the group ``slicepilot.agents``::

    [project.entry-points."slicepilot.agents"]
    my-agent = "my_package.agents:MyAgent"

What an entry point names is as for `slicepilot.agents.code.load_agent`. The project's own names go first.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from slicepilot.agents.base import Agent
from slicepilot.agents.code import load_agent

GROUP = "slicepilot.agents"


@cache
def installed() -> dict[str, str]:
    """The target of each name, ``module:Class``; nothing is imported."""
    return {point.name: point.value for point in entry_points(group=GROUP)}


def load_installed(name: str) -> Agent:
    """An agent by its name; raises ConfigError for what cannot be imported, or is no agent."""
    return load_agent(installed()[name], f"agent {name!r} ({installed()[name]})", name)
