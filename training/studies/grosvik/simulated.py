"""The bottleneck of Grosvik (2023) in the simulator: its policies as egress kinds, and agents."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from slicepilot.agents.heuristics.registry import make
from slicepilot.data.reference import BottleneckScenario, bottleneck_scenarios
from slicepilot.env.knobs import EGRESS, Knobs
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend
from slicepilot.env.simulator.hardware import Hardware
from slicepilot.env.simulator.kernels import DROP_N3
from slicepilot.env.simulator.scenario import Load, Scenario, UplinkClass
from slicepilot.env.slices import SliceSet, SNssai
from slicepilot.training.studies.study import Effort, Findings, Store, as_json, figures_of

from .bins import Bins, figures_of_bins, ks_distance, over_turns
from .criteria import most_classes
from .policies import (
    AGENT,
    BIN_S,
    BURST_MS,
    FRAME_BYTES,
    GROUPS,
    HALF_MBPS,
    LINK_MBPS,
    MOST_CLASSES,
    Flow,
    Policy,
    flows_of,
    share_of,
    with_agents,
)

SECONDS, QUICK_SECONDS = 12.0, 6.0
TURNS, QUICK_TURNS = 3, 1
CLASSES, QUICK_CLASSES = (2, 4, 16, 64, 256), (2, 256)
SCENARIO = "testbed-grosvik"
EDGE_S = 1e-3
"""How long a load takes to begin or end."""


def simulate(effort: Effort, store: Store) -> Findings:
    """All policies and agents under all loads, then with more and more classes."""
    turns = QUICK_TURNS if effort.quick else TURNS
    seconds = QUICK_SECONDS if effort.quick else SECONDS
    numbers = QUICK_CLASSES if effort.quick else CLASSES
    policies = with_agents(effort.agents)
    result = Findings()
    for done, policy in enumerate(policies):
        effort.say(f"simulating {policy.name}", done / len(policies))
        kept = store.get(policy.name, lambda: _cells(policy, turns, seconds, numbers, effort.seed))  # noqa: B023
        target = result.values if policy.agent in (None, AGENT) else result.extra
        target |= figures_of(kept["figures"])
        result.material |= kept["series"]
    result.remarks.append(
        f"simulated: {turns} runs of {seconds:g} s of each policy and load, seed {effort.seed}, bins of 50 ms. The "
        f"simulator is fluid: its delays are those of queues and, by formula, of single packets; it has no times "
        f"between packets"
    )
    return result


def _cells(policy: Policy, turns: int, seconds: float, numbers: tuple[int, ...], seed: int) -> dict[str, Any]:
    """Figures of all loads with two classes, and of the heaviest with more; the last run's series for pictures."""
    figures, series = dict[str, Any](), dict[str, Any]()
    rng = np.random.default_rng(seed)
    for load in bottleneck_scenarios():
        runs = [play(policy, load, 1, seconds, rng) for _ in range(turns)]
        figures |= dict(over_turns(f"{policy.name}/{load.scenario}", [_figures(run) for run in runs]))
        series[f"{policy.name}/{load.scenario}"] = series_of(runs[-1])
    heaviest = bottleneck_scenarios()[-1]
    by_number = {}
    for number in numbers:
        by_number[number] = _figures(play(policy, heaviest, number // 2, seconds, rng))
        figures |= dict(over_turns(f"{policy.name}/{number}-classes", [by_number[number]]))
    figures |= dict(most_classes(policy.name, by_number))
    return {"figures": as_json(figures), "series": series}


def _figures(bins: Bins) -> dict[str, float]:
    """Those of bins, and the distance of the critical class's delays with and without best effort's second load."""
    phases = bins.phases()
    on, off = (bins.delay_p50[0, phases[name]] for name in ("on", "off"))
    return figures_of_bins(bins) | {"critical/ks-delay/on": ks_distance(on, off)}


def series_of(bins: Bins) -> dict[str, Any]:
    """A run for pictures."""
    return {
        name: np.round(np.nan_to_num(getattr(bins, name)), 3).tolist() for name in ("offered", "carried", "delay_p99")
    }


def play(policy: Policy, load: BottleneckScenario, pairs: int, seconds: float, rng: np.random.Generator) -> Bins:
    """A run with so many critical and best-effort classes, which share the loads and the policy's rates evenly."""
    flows = flows_of(load, seconds, rng.uniform(0.0, load.on_s + load.off_s))
    slices = slices_of(pairs)
    shipped, hardware = _shipped()
    scenario = replace(
        shipped,
        duration_s=seconds,
        control_period_s=BIN_S,
        loads={name: _loads(flows, at // pairs, pairs) for at, name in enumerate(slices.names)},
        uplink_classes=_classes(policy, slices, pairs),
    )
    node = replace(
        hardware,
        egress_mode=policy.limit or "htb",
        tbf_latency_ms=policy.queue_ms,
        tbf_burst_ms=BURST_MS,
        logical_cpus=8.0,
        physical_cores=8.0,
    )
    backend = SimulatorBackend(ScenarioRuns(scenario, node, slices=slices))
    agent = None if policy.agent is None else make(policy.agent, slices, node)
    telemetry = backend.reset(int(rng.integers(1 << 31)))
    knobs = Knobs.none(len(slices))
    if policy.limit is not None:
        knobs.values[EGRESS, pairs:] = HALF_MBPS / pairs
    if agent is not None:
        agent.reset(slices, backend.context, 0)
    seen = []
    for _ in range(backend.context.num_steps):
        if agent is not None:
            knobs = agent.decide(telemetry, knobs)
        backend.apply(knobs)
        telemetry = backend.observe()
        lost = backend.engine.dropped_mbit[DROP_N3:, :, 0].sum(axis=0) / BIN_S
        seen.append(np.concatenate([telemetry.slices[:4, :, 0], lost[None]]))
    return _binned(np.asarray(seen, np.float64))


@cache
def _shipped() -> tuple[Scenario, Hardware]:
    return Scenario.from_yaml(SCENARIO), Hardware.from_yaml("grosvik")


@cache
def slices_of(pairs: int) -> SliceSet:
    """So many critical slices, then as many of best effort, which share the promises evenly."""
    result = []
    for kind, spec in enumerate(SliceSet.from_yaml("grosvik").slices):
        for at in range(pairs):
            bounds = replace(spec.bounds, egress_mbps=(spec.bounds.egress_mbps[0] / pairs, LINK_MBPS))
            result.append(
                replace(
                    spec,
                    name=spec.name if pairs == 1 else f"{spec.name}-{at}",
                    s_nssai=SNssai(spec.s_nssai.sst, f"{kind * MOST_CLASSES + at + 1:06X}"),
                    sla=replace(spec.sla, committed_mbps=spec.sla.committed_mbps / pairs),
                    bounds=bounds,
                    cpu_request_mcpu=spec.cpu_request_mcpu / pairs,
                )
            )
    return SliceSet(tuple(result))


def _classes(policy: Policy, slices: SliceSet, pairs: int) -> dict[str, UplinkClass]:
    if policy.classes is None:
        return {}
    shares = [share_of(each, pairs) for each in policy.classes]
    return {name: shares[at // pairs] for at, name in enumerate(slices.names)}


def _loads(flows: tuple[Flow, ...], kind: int, pairs: int) -> tuple[Load, ...]:
    return tuple(
        Load("cbr", flow.mbps / pairs, packet_bytes=FRAME_BYTES, profile=_profile(flow))
        for flow in flows
        if flow.kind == kind
    )


def _profile(flow: Flow) -> tuple[tuple[float, float], ...]:
    if not flow.spans:
        return ()
    knots: list[tuple[float, float]] = []
    for begin, end in flow.spans:
        knots += [(begin - EDGE_S, 0.0)] if begin > EDGE_S else []
        knots += [(begin, 1.0), (end, 1.0), (end + EDGE_S, 0.0)]
    return tuple(knots)


def _binned(seen: np.ndarray[Any, np.dtype[np.float64]]) -> Bins:
    """Out of (T, 5, S): offered, carried, both delays in us, lost."""
    kinds = [
        (
            *(own[:, row].sum(axis=1) for row in (0, 1, 4)),
            np.median(own[:, 2], axis=1) / 1e3,
            own[:, 3].max(axis=1) / 1e3,
        )
        for own in np.split(seen, len(GROUPS), axis=2)
    ]
    return Bins(*np.stack([np.asarray(own) for own in kinds], axis=1))
