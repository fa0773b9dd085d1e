"""Rollouts of agents: on L seeds of a scenario at once in the simulator, or interleaved on a live backend."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from slicepilot.agents.base import Agent
from slicepilot.agents.heuristics.planners.clairvoyant import Clairvoyant
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Backend
from slicepilot.env.encoding import KnobDecoder
from slicepilot.env.knobs import KNOB_FIELDS, Knobs
from slicepilot.env.promises import PromiseMeter, cpu_held
from slicepilot.env.reward import RewardModel, RewardWeights
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend
from slicepilot.env.simulator.scenario import NEVER_S, Scenario
from slicepilot.env.slices import SliceSet
from slicepilot.env.sliding import SlidingView
from slicepilot.env.telemetry import SLICE_FIELDS

BoolArray = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
TELEMETRY_KEPT = ("offered_mbps", "carried_mbps", "delay_p50_us", "delay_p99_us", "loss_ratio")
SERIES = (*TELEMETRY_KEPT, *KNOB_FIELDS)
_BY_LANE = (
    "weight",
    "committed_mbps",
    "series",
    "valid",
    "violated",
    "reward",
    "cpu_held",
    "churn",
    "cpu_use_mcpu",
)
_ROWS = [SLICE_FIELDS.index(name) for name in TELEMETRY_KEPT]


@dataclass(frozen=True)
class Rollout:
    """A run of an agent on a scenario: T control periods, S slices, L lanes (a seed each).

    Attributes:
        weight, committed_mbps: float32 (S, L), of each slice's promise.
        series: float32 (8, T, S, L), rows in the order of `SERIES`; read them through ``row``. Knobs are those that
            held during the period: inf = none.
        valid: bool (T, S, L), False where the slice is absent.
        violated: bool (T, S, L), where `slicepilot.env.promises.PromiseMeter` says the promise is broken.
        reward, cpu_held, churn: float32 (T, L); CPUs held by limits; mean share of the knobs' full range moved.
        cpu_use_mcpu: float32 (T, L), CPU time charged to all present slices, in thousandths of a CPU.
        time_s: float64 (T,), start of each period; the first measurement, taken under no control, is left out.
        period_s: length of a control period.
        wall_s: seconds it took.
        packets_p99_us: (S, L), 99th percentile of the delay of all packets of the run; None where they are not timed.
        work_done: (L,), work that an edge application on the same node did meanwhile; None where there is none.
    """

    agent: str
    slices: SliceSet
    weight: FloatArray
    committed_mbps: FloatArray
    series: FloatArray
    valid: BoolArray
    violated: BoolArray
    reward: FloatArray
    cpu_held: FloatArray
    churn: FloatArray
    cpu_use_mcpu: FloatArray
    time_s: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
    period_s: float
    wall_s: float
    packets_p99_us: np.ndarray[tuple[int, ...], np.dtype[np.float64]] | None = None
    work_done: np.ndarray[tuple[int, ...], np.dtype[np.float64]] | None = None

    def row(self, name: str) -> FloatArray:
        """One quantity, (T, S, L), by its name in `SERIES`."""
        return self.series[SERIES.index(name)]

    def lanes(self, span: slice) -> Rollout:
        """That of some lanes of a simulator."""
        return replace(self, **{name: getattr(self, name)[..., span] for name in _BY_LANE})


def only_active(scenario: Scenario, active: Iterable[str]) -> Scenario:
    """The scenario with only some slices present; loads stay declared, so that the random draws stay the same.

    Fewer active slices are how the study of Andrade and Wickboldt (2025) runs its experiments 1 to 4.
    """
    keep = set(active)
    gone = {name: (0.0, NEVER_S) for name in scenario.slice_set().names if name not in keep}
    return replace(scenario, absent={**scenario.absent, **gone})


def simulate_rollout(
    agent: Agent,
    scenario: Scenario,
    lanes: int,
    seed: int,
    weights: RewardWeights | None = None,
    on_period: Callable[[], None] | None = None,
) -> Rollout:
    """Run an agent to the end of a scenario on a fresh simulator.

    Same scenario, seed and number of lanes mean the same arrivals and noise for every agent, because the simulator
    draws nothing that depends on an action (common random numbers). Lanes are runs side by side, each with its own
    noise. Pods start with the agent's ``request_mcpu``; ``on_period`` is called after every control period.
    """
    backend = SimulatorBackend(ScenarioRuns(scenario, request_mcpu=agent.request_mcpu), lanes)
    try:
        return collect_rollout(agent, backend, seed, weights or RewardWeights.from_yaml(), on_period)
    finally:
        backend.close()


def collect_rollout(
    agent: Agent, backend: Backend, seed: int, weights: RewardWeights, on_period: Callable[[], None] | None = None
) -> Rollout:
    """Run an agent for a whole run of any backend, which stays open; arguments as for `simulate_rollout`."""
    started = time.perf_counter()
    telemetry = backend.reset(seed)
    context = backend.context
    steps, num_slices, lanes = context.num_steps, len(backend.slices), backend.num_lanes
    reward_model = RewardModel(weights, context)
    decoder, meter, view = KnobDecoder(backend.slices), PromiseMeter(context), SlidingView(context)
    if isinstance(agent, Clairvoyant) and isinstance(backend, SimulatorBackend):
        agent.bind(backend)
    agent.reset(backend.slices, context, seed)
    knobs = backend.apply(Knobs.none(*context.promises.weight.shape)).applied
    knob_rows = decoder.encode(knobs)
    series = np.empty((len(SERIES), steps, num_slices, lanes), np.float32)
    valid = np.empty(series.shape[1:], np.bool_)
    broken = np.empty(series.shape[1:], np.bool_)
    per_lane = np.empty((4, steps, lanes), np.float32)
    for t in range(steps):
        receipt = backend.apply(agent.decide(view.see(telemetry), knobs))
        previous_rows = knob_rows
        if not receipt.applied.same_as(knobs):
            knobs = receipt.applied
            knob_rows = decoder.encode(knobs)
        telemetry = backend.observe()
        reward, terms = reward_model(telemetry, knobs, knob_rows, previous_rows)
        series[: len(_ROWS), t] = telemetry.slices[_ROWS]
        series[len(_ROWS) :, t] = knobs.values
        valid[t] = telemetry.valid
        broken[t] = meter.broken(telemetry)
        per_lane[0, t] = reward
        per_lane[1, t] = cpu_held(knobs, context, telemetry.valid)
        per_lane[2, t] = -terms["churn"]
        per_lane[3, t] = (telemetry.cpu_use_mcpu * telemetry.valid).sum(axis=0)
        if on_period is not None:
            on_period()
    period_s = float(context.period_s[0])
    return Rollout(
        agent=agent.name,
        slices=backend.slices,
        weight=context.promises.weight,
        committed_mbps=context.promises.committed_mbps,
        series=series,
        valid=valid,
        violated=broken,
        reward=per_lane[0],
        cpu_held=per_lane[1],
        churn=per_lane[2],
        cpu_use_mcpu=per_lane[3],
        time_s=np.asarray(period_s * np.arange(1, steps + 1), np.float64),
        period_s=period_s,
        wall_s=time.perf_counter() - started,
    )


OnRun = Callable[[int, str], None]
"""Called with repetition and agent name before every run."""


class LiveRunBackend(Backend, Protocol):
    """A single-lane real-time backend whose scenario and pods can be changed between runs."""

    def play(self, scenario: Scenario) -> None: ...

    def deploy(self, request_mcpu: FloatArray | None) -> None: ...

    def real_time(self) -> AbstractContextManager[object]: ...

    @property
    def work_done(self) -> int | None: ...

    def delay_counts(self) -> npt.NDArray[np.uint32]: ...

    def delay_p99_us(self, since: npt.NDArray[np.uint32]) -> npt.NDArray[np.float64]: ...


def interleaved_rollouts(
    runs: Sequence[tuple[Agent, Scenario]],
    backend: LiveRunBackend,
    repetitions: int,
    seed: int,
    weights: RewardWeights,
    on_run: OnRun | None = None,
) -> list[Rollout]:
    """Run every agent in its scenario ``repetitions`` times, interleaved, so that drift affects all alike.

    Each agent has a rollout with a lane per repetition. Repetition r offers all agents the traffic of seed + r.
    """
    rollouts: list[list[Rollout]] = [[] for _ in runs]
    for repetition in range(repetitions):
        for (agent, scenario), mine in zip(runs, rollouts, strict=True):
            if on_run is not None:
                on_run(repetition, agent.name)
            backend.play(scenario)
            backend.deploy(agent.request_mcpu)
            before, counts = backend.work_done, backend.delay_counts()
            with backend.real_time():
                recording = collect_rollout(agent, backend, seed + repetition, weights)
            after, p99_us = backend.work_done, backend.delay_p99_us(counts)
            if before is not None and after is not None:
                done = np.asarray([after - before], np.float64)
                recording = replace(recording, work_done=done)
            mine.append(replace(recording, packets_p99_us=p99_us[:, None]))
    return [_side_by_side(own) for own in rollouts]


def _side_by_side(runs: Sequence[Rollout]) -> Rollout:
    """Join single-lane rollouts to a rollout of several lanes."""
    first = runs[0]
    done = [run.work_done for run in runs if run.work_done is not None]
    p99_us = [run.packets_p99_us for run in runs if run.packets_p99_us is not None]
    by_lane: dict[str, Any] = {name: np.concatenate([getattr(run, name) for run in runs], axis=-1) for name in _BY_LANE}
    return replace(
        first,
        **by_lane,
        packets_p99_us=np.concatenate(p99_us, axis=-1) if len(p99_us) == len(runs) else None,
        work_done=np.concatenate(done) if len(done) == len(runs) else None,
        wall_s=sum(run.wall_s for run in runs),
    )
