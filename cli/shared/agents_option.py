"""The agents of a command: by name, and learned policies from their bundles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slicepilot.configs import ConfigError

if TYPE_CHECKING:
    from slicepilot.agents.learned.agent import LearnedAgent


def names_of(given: Iterable[str]) -> tuple[str, ...]:
    """Names from a repeatable option with comma-separated lists, without duplicates."""
    return tuple(dict.fromkeys(name.strip() for part in given for name in part.split(",") if name.strip()))


def load_learned(bundles: Sequence[Path]) -> list[LearnedAgent]:
    """Learned agents of bundles, named by algorithm, and by folder if the algorithm is not unique.

    Raises:
        ConfigError: a bundle that cannot be read, or is named twice.
    """
    from slicepilot.agents.learned.agent import LearnedAgent
    from slicepilot.agents.learned.bundle import PolicyBundle

    agents = [LearnedAgent(PolicyBundle.load(path), transfer=True) for path in bundles]
    names = [agent.name for agent in agents]
    for path, agent in zip(bundles, agents, strict=True):
        if names.count(agent.name) > 1:
            agent.name = f"{agent.name} {path}"
    if len({agent.name for agent in agents}) < len(agents):
        raise ConfigError(f"bundle: {', '.join(map(str, bundles))}: named twice; name each bundle once")
    return agents
