"""The agents of a command: by name, and learned policies from their bundles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slicepilot.configs import ConfigError

from .registry import local_bundle

if TYPE_CHECKING:
    from slicepilot.agents.learned.agent import LearnedAgent


def names_of(given: Iterable[str]) -> tuple[str, ...]:
    """Names from a repeatable option with comma-separated lists, without duplicates."""
    return tuple(dict.fromkeys(name.strip() for part in given for name in part.split(",") if name.strip()))


def load_learned(bundles: Sequence[Path]) -> list[LearnedAgent]:
    """Learned agents of bundles, each named after its folder, or that of its run; after its path where two are alike.

    Bundles of MLflow's registry are downloaded first (`slicepilot.cli.shared.registry`).

    Raises:
        ConfigError: a bundle that cannot be read, or is named twice.
    """
    from slicepilot.agents.heuristics.registry import available
    from slicepilot.agents.learned.agent import LearnedAgent
    from slicepilot.agents.learned.bundle import PolicyBundle

    if len(set(bundles)) < len(bundles):
        raise ConfigError(f"bundle: {', '.join(map(str, bundles))}: named twice; name each bundle once")
    bundles = [local_bundle(path) for path in bundles]
    folders = [path.absolute() for path in bundles]
    names = [folder.parent.name if folder.name == "bundle" else folder.name for folder in folders]
    taken = {*available(), *available(scaled=True)}
    return [
        LearnedAgent(
            PolicyBundle.load(path), str(path) if names.count(name) > 1 or name in taken else name, transfer=True
        )
        for path, name in zip(bundles, names, strict=True)
    ]
