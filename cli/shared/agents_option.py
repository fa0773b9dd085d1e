"""The agents of a command: by name, learned policies from their bundles, and policies of other libraries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slicepilot.configs import ConfigError

from .registry import local_bundle

if TYPE_CHECKING:
    from slicepilot.agents.base import Agent
    from slicepilot.agents.learned.agent import LearnedAgent

POLICY_HELP = "Policy of another library: sb3:FILE.zip, onnx:FILE, module:Class or FILE.py:Class"


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


def load_policies(policies: Sequence[str], learned: Sequence[LearnedAgent] = ()) -> list[Agent]:
    """Agents of ``--policy``, each named after its file or class; after all that was written where two are alike.

    Raises:
        ConfigError: a policy that cannot be read, or is named twice.
    """
    from slicepilot.agents.heuristics.registry import available
    from slicepilot.agents.learned.policy_names import PolicyName
    from slicepilot.training.policies.load import load_policy

    if len(set(policies)) < len(policies):
        raise ConfigError(f"policy: {', '.join(policies)}: named twice; name each policy once")
    names = [PolicyName.parse(policy).name for policy in policies]
    taken = {*available(), *available(scaled=True), *(agent.name for agent in learned)}
    return [
        load_policy(policy, policy if names.count(name) > 1 or name in taken else name)
        for policy, name in zip(policies, names, strict=True)
    ]
