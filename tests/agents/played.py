"""Small contended runs on the real simulator."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from slicepilot.agents.base import Agent
from slicepilot.agents.heuristics.planners.clairvoyant import Clairvoyant
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.encoding import KnobDecoder
from slicepilot.env.knobs import Knobs
from slicepilot.env.promises import PromiseMeter
from slicepilot.env.reward import RewardModel, RewardWeights
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend
from slicepilot.env.simulator.hardware import Hardware
from slicepilot.env.slices import KnobBounds, Sla, SliceSet, SliceSpec, SNssai
from slicepilot.env.telemetry import Telemetry
from tests.loads import Loads

# Four logical CPUs on two cores; 45 Mbit/s of 1470 B packets cost a fifth of a CPU.
NODE = Hardware(smt_yield=0.9, cpu_cv=0.05, cpu_tau_s=5.0)


def slice_set(count: int) -> SliceSet:
    """``count`` slices: the first weighs ten times the others and is promised more."""

    def spec(i: int) -> SliceSpec:
        first = i == 0
        return SliceSpec(
            name=f"slice{i + 1}",
            s_nssai=SNssai(1, f"{i + 1:06X}"),
            sla=Sla(committed_mbps=120.0 if first else 60.0, delay_bound_ms=50.0 if first else 500.0),
            weight=10.0 if first else 1.0,
            bounds=KnobBounds((100.0, 1000.0), (-10, 10), (10.0, 500.0)),
        )

    return SliceSet(tuple(spec(i) for i in range(count)))


@dataclass
class Played:
    """What happened: lists over periods, and sums over them per lane."""

    context: Context
    knobs: list[Knobs]
    telemetry: list[Telemetry]
    returns: FloatArray
    violated: FloatArray


def play(agent: Agent, loads: Loads | ScenarioRuns, lanes: int = 2, seed: int = 0) -> Played:
    loads.request_mcpu = agent.request_mcpu
    backend = SimulatorBackend(loads, lanes)
    telemetry = backend.reset(seed)
    context = backend.context
    if isinstance(agent, Clairvoyant):
        agent.bind(backend)
    agent.reset(backend.slices, context, seed)
    decoder, reward = KnobDecoder(backend.slices), RewardModel(RewardWeights.from_yaml(), context)
    knobs, meter = Knobs.none(len(backend.slices), lanes), PromiseMeter(context)
    rows = decoder.encode(knobs)
    played = Played(context, [], [], np.zeros(lanes, np.float32), np.zeros((len(backend.slices), lanes), np.float32))
    for _ in range(context.num_steps):
        knobs = backend.apply(agent.decide(telemetry, knobs)).applied
        previous, rows = rows, decoder.encode(knobs)
        telemetry = backend.observe()
        played.returns += reward(telemetry, knobs, rows, previous)[0]
        played.violated += meter.broken(telemetry)
        played.knobs.append(knobs.copy())
        played.telemetry.append(telemetry.copy())
    return played


def loads(mbps: list[float], steps: int, join_s: float = 0.0, **fields: Any) -> Loads:
    """A run of a slice for each rate; all but the first start at ``join_s``."""
    starts = {"start_s": [0.0, *[join_s] * (len(mbps) - 1)]}
    given: dict[str, Any] = {"hardware": NODE, **fields}
    return Loads(mbps, **given, steps=steps, sources=starts, make_slices=slice_set)
