"""Load policies by name as agents for evaluation: bundles, files of Stable-Baselines3, ONNX, code."""

from __future__ import annotations

import math
from pathlib import Path

from slicepilot.agents.base import Agent
from slicepilot.agents.code import load_agent
from slicepilot.agents.learned.agent import LearnedAgent
from slicepilot.agents.learned.bundle import PolicyBundle
from slicepilot.agents.learned.onnx_files import read_onnx
from slicepilot.agents.learned.policy_names import PolicyName
from slicepilot.agents.learned.shipped import folder_of
from slicepilot.agents.predicting import PredictingAgent


def load_policy(policy: str | Path, name: str | None = None) -> Agent:
    """A trained policy as an agent, which `slicepilot.evaluate` judges and whose `decide` maps telemetry to knobs.

    Args:
        policy: a bundle's folder or the name of a shipped bundle; ``sb3:FILE.zip`` (with ``+FILE.pkl`` for
            `VecNormalize`'s statistics), a file of Stable-Baselines3 or sb3-contrib, which needs the extra ``train``;
            ``onnx:FILE``; or ``module:Class`` or ``FILE.py:Class``, which is imported, called without arguments, and
            expected to be an `Agent`, or to have ``predict`` as Stable-Baselines3's policies have.
        name: as in tables; else that of the file, the class or the bundle's training.

    Raises:
        ConfigError: there is no such policy, it is damaged, or it was made for something else; says what is expected.
    """
    text = str(policy)
    if folder_of(policy).is_dir() or isinstance(policy, Path):
        return LearnedAgent(PolicyBundle.load(policy), name, transfer=True)
    named = PolicyName.parse(text)
    if named.kind == "code":
        return load_agent(text, named.what, name)
    if named.kind == "onnx":
        return LearnedAgent(read_onnx(named.path, named.what, named.name), name or named.name, transfer=True)
    return _load_sb3(named, name or named.name)


def _load_sb3(named: PolicyName, name: str) -> PredictingAgent:
    """A policy that decides in PyTorch, as in Stable-Baselines3."""
    from slicepilot.agents.learned.guide import NUM_GUIDED, Guide

    from .sb3_bundles import Sb3Source
    from .sb3_files import load_sb3

    policy = load_sb3(Sb3Source.read(named))
    seen, done = (math.prod(space.shape or ()) for space in (policy.observation_space, policy.action_space))
    if seen * Guide.actions == done * NUM_GUIDED:  # of `slicepilot train`
        return PredictingAgent(policy, name, Guide)
    return PredictingAgent(policy, name)
