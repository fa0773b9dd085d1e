"""Reinforcement-learning control of 5G network slices at the user plane; docs/python.md has examples.

The names below are imported on first use, so that ``import slicepilot`` itself costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slicepilot.agents.base import Agent as Agent
    from slicepilot.agents.heuristics.registry import make as make_agent
    from slicepilot.agents.learned.agent import LearnedAgent as LearnedAgent
    from slicepilot.agents.learned.bundle import PolicyBundle as PolicyBundle
    from slicepilot.env.environments.slice_env import make as make
    from slicepilot.env.environments.slice_env import SliceEnv as SliceEnv
    from slicepilot.env.environments.vector_env import SliceVectorEnv as SliceVectorEnv
    from slicepilot.env.knobs import Knobs as Knobs
    from slicepilot.env.simulator.backend import SimulatorBackend as SimulatorBackend
    from slicepilot.env.simulator.scenario import Scenario as Scenario
    from slicepilot.env.slices import SliceSet as SliceSet
    from slicepilot.env.telemetry import Telemetry as Telemetry
    from slicepilot.training.policies.judging import evaluate as evaluate
    from slicepilot.training.policies.load import load_policy as load_policy
    from slicepilot.training.recording.reading import read_dataset as read_dataset

__version__ = "0.1.0"

_SOURCES = {
    "Agent": "agents.base:Agent",
    "Knobs": "env.knobs:Knobs",
    "LearnedAgent": "agents.learned.agent:LearnedAgent",
    "PolicyBundle": "agents.learned.bundle:PolicyBundle",
    "Scenario": "env.simulator.scenario:Scenario",
    "SimulatorBackend": "env.simulator.backend:SimulatorBackend",
    "SliceEnv": "env.environments.slice_env:SliceEnv",
    "SliceSet": "env.slices:SliceSet",
    "SliceVectorEnv": "env.environments.vector_env:SliceVectorEnv",
    "Telemetry": "env.telemetry:Telemetry",
    "evaluate": "training.policies.judging:evaluate",
    "load_policy": "training.policies.load:load_policy",
    "make": "env.environments.slice_env:make",
    "make_agent": "agents.heuristics.registry:make",
    "read_dataset": "training.recording.reading:read_dataset",
}

__all__ = ["__version__", *_SOURCES]  # noqa: PLE0604 (all are strings)


def __getattr__(name: str) -> Any:
    """Import a public name on first use; raises AttributeError for any other."""
    if name not in _SOURCES:
        raise AttributeError(f"module 'slicepilot' has no attribute {name!r}: it has {', '.join(__all__)}")
    module, attribute = _SOURCES[name].split(":")
    return getattr(import_module(f"slicepilot.{module}"), attribute)


def __dir__() -> list[str]:
    return __all__
