"""Record episodes of agents on a backend: observations, decisions, actions and rewards, as data to learn from.

A run only keeps what it has in hand. Observations and rewards are worked out afterwards
(`slicepilot.training.recording.relabel`), so that a run in real time is not held up.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import json
import math
import platform
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib import metadata
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from slicepilot.agents.base import Agent, StochasticAgent
from slicepilot.agents.heuristics.planners.clairvoyant import Clairvoyant
from slicepilot.agents.learned.bundle import decoder_layout
from slicepilot.data.episodes.episodes import Episode, EpisodeSet
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Backend, Context, held_at_reset
from slicepilot.env.encoding import CONTEXT_FEATURES, NODE_FEATURES, encoder_layout
from slicepilot.env.knobs import NUM_KNOBS, Knobs
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.env.slices import SliceSet
from slicepilot.env.sliding import SlidingView
from slicepilot.env.telemetry import NODE_FIELDS, SLICE_FIELDS, Telemetry

from .relabel import Trace, actions_of, episode_of, relabel

OnPeriod = Callable[[str], None]
"""Called with an agent's name after every control period."""
PACKAGES = ("slicepilot", "numpy")


def record_simulated(
    agents: Sequence[Agent],
    scenario: Scenario,
    episodes: int,
    seed: int,
    weights: RewardWeights,
    on_period: OnPeriod | None = None,
) -> EpisodeSet:
    """Every agent on so many runs of a scenario in the simulator, an episode each.

    Agents with as many runs meet the same arrivals and noise. An agent that is named several times has
    as many times the runs.

    Raises:
        ValueError: no agents.
    """
    result: list[Episode] = []
    facts: dict[str, Any] | None = None
    for agent in dict.fromkeys(agents):
        lanes = episodes * agents.count(agent)
        backend = SimulatorBackend(ScenarioRuns(scenario, request_mcpu=agent.request_mcpu), lanes)
        kept = run(backend, agent, seed, on_period)
        result += kept.episodes(weights, {"scenario": scenario.name, "backend": "simulator"})
        facts = facts or facts_of(backend.slices, backend.context, weights)
    if facts is None:
        raise ValueError("agents: none; expected at least one")
    return EpisodeSet(tuple(result), facts)


class LiveRuns(Backend, Protocol):
    """A single-lane real-time backend whose pods can be changed between runs."""

    def deploy(self, request_mcpu: FloatArray | None) -> None: ...

    def real_time(self) -> AbstractContextManager[object]: ...


def record_live(
    agents: Sequence[Agent],
    backend: LiveRuns,
    episodes: int,
    seed: int,
    weights: RewardWeights,
    info: dict[str, Any],
    on_run: Callable[[int, str], None] | None = None,
) -> EpisodeSet:
    """Record every agent on so many runs of a real-time backend; agents take turns, A B C, A B C.

    An agent's n-th run uses seed + n for its draws, and for the traffic if the backend generates it, so that the n-th
    runs of all agents can be compared. An agent that is named several times has several runs a turn.
    ``decisions["missed_ticks"]`` counts the ticks between a decision and the measurement of its effect, which then
    covers so many periods more.

    Args:
        info: of all episodes: scenario, backend.
        on_run: called before each run with its turn and the agent's name.
    """
    result: list[Episode] = []
    runs: Counter[str] = Counter()
    for turn in range(episodes):
        for agent in agents:
            if on_run is not None:
                on_run(turn, agent.name)
            backend.deploy(agent.request_mcpu)
            _warm_up(agent, backend)
            with backend.real_time():
                kept = run(backend, agent, seed + runs[agent.name])
            runs[agent.name] += 1
            result += kept.episodes(weights, info)
    return EpisodeSet(tuple(result), facts_of(backend.slices, backend.context, weights))


def on_declared_pods(agent: Agent) -> Agent:
    """The agent without CPU requests of its own, so that the pods keep those that the slices declare.

    Requests weigh pods against each other for a whole run, and neither an observation nor an action says what they are:
    from episodes that differ in them nothing can be learnt about knobs alone.
    """
    if agent.request_mcpu is None:
        return agent
    plain = copy.copy(agent)
    plain.request_mcpu = None
    return plain


class Kept:
    """Data of a run of T decisions, S slices and L lanes: plain copies, made between two measurements."""

    def __init__(self, agent: Agent, slices: SliceSet, context: Context, seed: int) -> None:
        self.agent, self.slices, self.context, self.seed = agent, slices, context, seed
        steps, shape = context.num_steps, context.threads.shape
        lanes = shape[1]
        self.trace = Trace(
            slices=np.zeros((steps + 1, len(SLICE_FIELDS), *shape), np.float32),
            node=np.zeros((steps + 1, len(NODE_FIELDS), lanes), np.float32),
            valid=np.zeros((steps + 1, *shape), np.bool_),
            knobs=np.zeros((steps + 1, NUM_KNOBS, *shape), np.float32),
        )
        self._wanted = np.zeros((steps, NUM_KNOBS, *shape), np.float32)
        self._process_nice: list[float] | None = None
        self._draws = agent if isinstance(agent, StochasticAgent) else None
        self._drawn = np.zeros((steps, lanes, shape[0], NUM_KNOBS), np.float32)
        self._log_density = np.full((steps, lanes), np.nan)
        self._held = np.zeros(steps, np.bool_)
        self.missed: npt.NDArray[np.uint16] | None = None

    def measured(self, at: int, telemetry: Telemetry, knobs: Knobs) -> None:
        """A measurement, and the knobs that held meanwhile."""
        trace = self.trace
        trace.slices[at], trace.node[at], trace.valid[at] = telemetry.slices, telemetry.node, telemetry.valid
        trace.knobs[at] = self._settings(knobs)

    def decided(self, at: int, wanted: Knobs) -> None:
        """The agent's decision after it."""
        self._wanted[at] = self._settings(wanted)
        if self._draws is not None:
            self._drawn[at], self._log_density[at] = self._draws.wanted, self._draws.log_density
            self._held[at] = self._draws.held

    def episodes(self, weights: RewardWeights, info: dict[str, Any]) -> list[Episode]:
        """An episode per lane; ``info`` is added to the facts of the run."""
        requests = self.agent.request_mcpu
        requests = self.slices.column("cpu_request_mcpu")[:, 0] if requests is None else requests
        own: dict[str, Any] = {"seed": self.seed, "request_mcpu": [float(value) for value in requests]}
        if self._process_nice is not None:
            own["process_nice"] = self._process_nice
        seen = relabel(self.trace, self.slices, self.context, weights)
        wanted = self._drawn.swapaxes(0, 1) if self._draws is not None else actions_of(self._wanted, self.slices)
        decisions: dict[str, npt.NDArray[Any]] = {"held": self._held}
        if self.missed is not None:
            decisions["missed_ticks"] = self.missed
        return [
            episode_of(
                *(seen, lane, 0, len(self._held), self.agent.name),
                wanted=np.ascontiguousarray(wanted[lane]),
                log_density=self._log_density[:, lane].copy(),
                decisions=decisions,
                info=info | own | {"lane": lane},
            )
            for lane in range(len(seen.observations))
        ]

    def _settings(self, knobs: Knobs) -> FloatArray:
        """Knobs as an action can encode them, (3, S, L)."""
        if knobs.nice_scope == "process":
            self._process_nice = knobs.nice[:, 0].tolist()
        return knobs.between_groups().values


def run(backend: Backend, agent: Agent, seed: int, on_period: OnPeriod | None = None) -> Kept:
    """Run an agent for a whole run of any backend, which stays open."""
    telemetry = backend.reset(seed)
    context = backend.context
    view = SlidingView(context)
    if isinstance(agent, Clairvoyant) and isinstance(backend, SimulatorBackend):
        agent.bind(backend)
    agent.reset(backend.slices, context, seed)
    kept = Kept(agent, backend.slices, context, seed)
    ticks = getattr(backend, "ticks", None)  # of backends in real time
    missed = np.full(context.num_steps + 1, 0 if ticks is None else ticks.missed, np.int64)
    knobs = held_at_reset(backend)
    kept.measured(0, telemetry, knobs)
    for t in range(context.num_steps):
        wanted = agent.decide(view.see(telemetry), knobs)
        knobs = backend.apply(wanted).applied
        kept.decided(t, wanted)
        telemetry = backend.observe()
        kept.measured(t + 1, telemetry, knobs)
        if ticks is not None:
            missed[t + 1] = ticks.missed
        if on_period is not None:
            on_period(agent.name)
    if ticks is not None:
        kept.missed = np.diff(missed).astype(np.uint16)
    return kept


def facts_of(slices: SliceSet, context: Context, weights: RewardWeights) -> dict[str, Any]:
    """Facts of all episodes of a run (`EpisodeSet`), as plain values; of the first lane."""
    uplink_mbps = float(context.uplink_mbps[0])
    facts = {
        "slices": dataclasses.asdict(slices)["slices"],
        "encoder": encoder_layout(),
        "shared_features": [*NODE_FEATURES, *CONTEXT_FEATURES],
        "decoder": decoder_layout(),
        "telemetry": {"slices": SLICE_FIELDS, "node": NODE_FIELDS},
        "reward": dataclasses.asdict(weights),
        "period_s": round(float(context.period_s[0]), 9),
        "logical_cpus": float(context.logical_cpus[0]),
        "uplink_mbps": uplink_mbps if math.isfinite(uplink_mbps) else None,
        "threads": context.threads[:, 0].tolist(),
        "nice_scope": "group",
        "versions": {"python": platform.python_version()} | {name: metadata.version(name) for name in PACKAGES},
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    plain: dict[str, Any] = json.loads(json.dumps(facts))  # tuples become lists, as they would in a file
    return plain


def _warm_up(agent: Agent, backend: Backend) -> None:
    """Warm up the work of a period, since first calls allocate and compile."""
    agent.reset(backend.slices, backend.context, 0)
    num_slices = len(backend.slices)
    seen = SlidingView(backend.context).see(Telemetry.empty(num_slices))
    agent.decide(seen, Knobs.none(num_slices))
