"""The policy that a controller runs: a bundle that may be used here, or an agent by name."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slicepilot.agents.base import Agent
from slicepilot.agents.code import is_code, load_agent
from slicepilot.agents.learned.agent import LearnedAgent
from slicepilot.agents.learned.bundle import PolicyBundle
from slicepilot.agents.learned.files import BundleFiles
from slicepilot.agents.learned.shares import SharesEncoder
from slicepilot.agents.learned.shipped import is_shipped
from slicepilot.agents.learned.signature import verify
from slicepilot.configs import ConfigError
from slicepilot.configs.reading import Roots
from slicepilot.controller.loop.node import Node
from slicepilot.controller.promotion import certificate as promotion
from slicepilot.env.backend import Context
from slicepilot.env.encoding import KnobDecoder, ObservationEncoder
from slicepilot.env.knobs import NUM_KNOBS, Knobs, NiceScope
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

from .run_config import RunConfig
from .trial import Trial, try_out

HEAVY = {"jax", "mlflow", "pandas", "ray", "tensorflow", "torch"}
"""Packages of training, which take hundreds of MB and start threads."""


@dataclass(frozen=True)
class LoadedPolicy:
    """A policy, and where it comes from.

    Attributes:
        agent: fresh; reset by its user.
        bundle: ``{"path", "digest", "promoted"}`` as in a run's description; None for an agent by name.
        refusal: why it may not act; empty for a policy that may.
        nice_scope: what its nice moves.
        trust: public key (PEM) that a promotion must be signed with, too; none: anybody may promote.
        roots: where the bundle has to be; none: anywhere.
    """

    agent: Agent
    bundle: dict[str, Any] | None = None
    refusal: str = ""
    nice_scope: NiceScope = "group"
    trust: str | None = None
    roots: Roots | None = None

    def require_promoted(self, force: bool) -> None:
        """Raise ConfigError for a policy that may not act, unless it is forced; a promotion since it was loaded counts.

        The files are read again, and must be those of the bundle that runs.
        """
        if not self.refusal or force:
            return
        if self.bundle is None:
            raise ConfigError(self.refusal)
        files = BundleFiles.read(self.bundle["path"], self.roots)
        if files.digest != self.bundle["digest"]:
            raise ConfigError(f"{files}: was changed since it was loaded; reload it first")
        promotion.check(files)
        if self.trust is not None:
            verify(files, Path(self.trust))

    def require_promoted_as_loaded(self, force: bool) -> None:
        """As `require_promoted`, by the files as they were when the policy was loaded; reads nothing."""
        if self.refusal and not force:
            raise ConfigError(self.refusal)


def load_bundle(
    folder: str | Path, trust: str | None = None, roots: Roots | None = None, trial: Trial | None = None
) -> LoadedPolicy:
    """A learned policy: its files read once, their signature verified, their sums checked, its model tried out in a
    process of its own. Nothing is parsed before the signature, and no runtime of this process sees an untried model.

    Args:
        folder: of the bundle, or the name of a shipped bundle.
        trust: public key (PEM) that it must be signed with; none: it need not be.
        roots: where it has to be; none: anywhere.
        trial: what it has to do; default: decide on its own slices.

    Raises:
        ConfigError: it cannot be used.
    """
    roots = None if is_shipped(folder) else roots
    files = BundleFiles.read(folder, roots)
    if trust is not None:
        verify(files, Path(trust))
    bundle = PolicyBundle.of(files)
    try_out(bundle, trial)
    refusal = ""
    try:
        promotion.check(files)
    except ConfigError as error:
        refusal = str(error)
    facts = {"path": str(files.path), "digest": files.digest, "promoted": not refusal}
    return LoadedPolicy(LearnedAgent(bundle, transfer=True), facts, refusal, bundle.nice_scope, trust, roots)


def import_bundle_runtime(slices: SliceSet, context: Context) -> None:
    """Import and compile what any bundle needs: beside a running loop, that would hold it up for many periods."""
    importlib.import_module("onnxruntime")
    none, telemetry = Knobs.none(len(slices)), Telemetry.empty(len(slices))
    decoder = KnobDecoder(slices)
    for encoder in (ObservationEncoder(context), SharesEncoder(context)):
        encoder.encode(telemetry, decoder.encode(none))
    decoder.decode(np.zeros((1, len(slices), NUM_KNOBS), np.float32))


def make_agent(name: str, slices: SliceSet, context: Context, hardware: str) -> LoadedPolicy:
    """An agent by name, for a node of identified hardware; these are fixed rules, which need no promotion.

    Code that a name refers to (``module:Class``) is not one of the shipped rules, so it acts only with ``--force``.

    Raises:
        ConfigError: unknown name, made for other slices, or code that imports what a controller does not.
    """
    from slicepilot.agents.heuristics.registry import make
    from slicepilot.env.simulator.hardware import Hardware

    refusal = ""
    if is_code(name):
        agent = load_agent(name, f"agent {name!r}")
        if heavy := sorted(HEAVY & sys.modules.keys()):
            raise ConfigError(
                f"agent {name!r}: imports {', '.join(heavy)}, which a controller never does; expected its network as "
                "ONNX (--policy onnx:FILE), or a bundle"
            )
        refusal = f"agent {name!r}: is code, which is not promoted; use mode shadow, or --force"
    else:
        agent = make(name, slices, Hardware.from_yaml(hardware))
    try:  # an agent does not say what its nice moves, its decisions do
        agent.reset(slices, context, 0)
        decided = agent.decide(Telemetry.empty(len(slices)), Knobs.none(len(slices)))
    except ValueError as error:
        raise ConfigError(f"agent {name!r}: {error}") from error
    return LoadedPolicy(agent, refusal=refusal, nice_scope=decided.nice_scope)


def trial_on(node: Node, config: RunConfig) -> Trial:
    """The trial of a policy for a node."""
    return Trial(len(node.backend.slices), node.backend.context.period_s.item(), config.cpu)


def policy_of(config: RunConfig, node: Node) -> LoadedPolicy:
    """The policy that a run is configured with.

    Raises:
        ConfigError: unknown name, or a bundle that is broken or not signed with the trusted key.
    """
    if config.bundle is not None:
        return load_bundle(config.bundle, config.trust, trial=trial_on(node, config))
    return make_agent(config.policy, node.backend.slices, node.backend.context, node.hardware)
