"""Compiles the kernels that most tests call, so that the processes of the tests load them instead of compiling them
again: ``python -m tests.kernels simulator|guard``, both beside each other."""

from __future__ import annotations

import sys

from slicepilot.agents.heuristics.registry import make
from slicepilot.agents.learned.agent import LearnedAgent
from slicepilot.agents.learned.bundle import PolicyBundle
from slicepilot.env.knobs import Knobs
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend
from slicepilot.env.simulator.scenario import Scenario
from tests.controller.guard.node import Node


def simulate() -> None:
    """Play and decide once."""
    backend = SimulatorBackend(ScenarioRuns(Scenario.from_yaml("multi-promise")), 2)
    telemetry, slices = backend.reset(0), backend.slices
    for agent in (make("queue-greedy", slices), LearnedAgent(PolicyBundle.load("generalist"), transfer=True)):
        agent.reset(slices, backend.context, 0)
        backend.apply(agent.decide(telemetry, Knobs.none(len(slices), 2)))
        telemetry = backend.observe()


if __name__ == "__main__":
    simulate() if sys.argv[1] == "simulator" else Node().tick(None)
