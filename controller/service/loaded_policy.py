"""The policy that a controller runs: a bundle that may be used here, or an agent by name."""

from __future__ import annotations

import contextlib
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...agents.base import Agent
from ...agents.learned.agent import LearnedAgent
from ...agents.learned.bundle import PolicyBundle
from ...agents.learned.shipped import folder_of
from ...agents.learned.signature import bundle_digest, verify
from ...configs import ConfigError
from ...env.backend import Context
from ...env.knobs import Knobs, NiceScope
from ...env.slices import SliceSet
from ...env.telemetry import Telemetry
from ..loop.node import Node
from ..promotion import certificate as promotion
from .run_config import RunConfig


@dataclass(frozen=True)
class LoadedPolicy:
    """Who decides, and where it comes from.

    Attributes:
        agent: fresh; reset by whoever uses it.
        bundle: ``{"path", "digest", "promoted"}`` as in a run's description; None for an agent by name.
        refusal: why it may not act; empty for one that may.
        nice_scope: what its nice moves.
        trust: public key (PEM) that a promotion must be signed with, too; none: anybody may promote.
    """

    agent: Agent
    bundle: dict[str, Any] | None = None
    refusal: str = ""
    nice_scope: NiceScope = "group"
    trust: str | None = None

    def require_promoted(self, force: bool) -> None:
        """Raise ConfigError for one that may not act, unless it is forced; a promotion since it was loaded counts."""
        if not self.refusal or force:
            return
        assert self.bundle is not None
        folder = Path(self.bundle["path"])
        promotion.check(folder)
        if self.trust is not None:
            verify(folder, Path(self.trust))
        if bundle_digest(folder) != self.bundle["digest"]:
            raise ConfigError(f"bundle {str(folder)!r}: was changed since it was loaded; accepted: reload it first")


def load_bundle(folder: str | Path, trust: str | None = None) -> LoadedPolicy:
    """A learned policy, its sums checked, and its signature where a public key is trusted; raises ConfigError."""
    root = folder_of(folder)
    bundle = PolicyBundle.load(root)
    if trust is not None:
        verify(root, Path(trust))
    refusal = ""
    try:
        promotion.check(root)
    except ConfigError as error:
        refusal = str(error)
    facts = {"path": str(root.resolve()), "digest": bundle_digest(root), "promoted": not refusal}
    return LoadedPolicy(LearnedAgent(bundle, transfer=True), facts, refusal, bundle.nice_scope, trust)


def import_bundle_runtime() -> None:
    """Import what any bundle needs: in a process that has a loop, imports would hold it up for many periods."""
    with contextlib.suppress(ImportError):  # without numba policies run in onnxruntime alone
        importlib.import_module("slicepilot.agents.runtime.policy")


def make_agent(name: str, slices: SliceSet, context: Context, hardware: str) -> LoadedPolicy:
    """An agent by name, for a node of identified hardware; these are fixed rules, which need no promotion.

    Raises:
        ConfigError: unknown name, or made for other slices.
    """
    from ...agents.heuristics.registry import make
    from ...env.simulator.hardware import Hardware

    agent = make(name, slices, Hardware.from_yaml(hardware))
    try:  # an agent does not say what its nice moves, its decisions do
        agent.reset(slices, context, 0)
        decided = agent.decide(Telemetry.empty(len(slices)), Knobs.none(len(slices)))
    except ValueError as error:
        raise ConfigError(f"agent {name!r}: {error}") from error
    return LoadedPolicy(agent, nice_scope=decided.nice_scope)


def policy_of(config: RunConfig, node: Node) -> LoadedPolicy:
    """What a run is configured with.

    Raises:
        ConfigError: unknown name, or a bundle that is broken or not signed by who is trusted.
    """
    if config.bundle is not None:
        return load_bundle(config.bundle, config.trust)
    return make_agent(config.policy, node.backend.slices, node.backend.context, node.hardware)
