"""Estimates of a node's hardware parameters from its traffic; the others are assumed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slicepilot.configs import FailureError
from slicepilot.controller.actuators.egress import BURST_MS, QUEUE_PACKETS
from slicepilot.data.intervals import Array
from slicepilot.env.simulator.hardware import Hardware
from slicepilot.env.slices import SliceSet
from slicepilot.node.check.load import LEAST_PACKETS, LEAST_WORK_US
from slicepilot.training.calibration.fitting import BOUNDS, MIN_CARRIED_MBPS, Observed, compare, loss_of, search

from . import model
from .segments import Segment

LEAST_EFFECT = 0.1
"""Change of the loss between the ends of a parameter's bounds, below which the parameter is not estimated."""
LEAST_SPREAD = 0.2
"""Spread of the loads, in CPUs, below which they do not show the cost of waking up."""


@dataclass(frozen=True)
class Estimate:
    """A node's hardware.

    Attributes:
        hardware: all parameters.
        known: what the configuration, this machine or this project's actuators say.
        measured: what the traffic showed directly, and how.
        fitted: what the simulator was fitted by: what the fit depends on.
        cost_us: CPU time of a packet by slice (S,), waking up included; NaN where too few have passed.
        unseen: errors of the simulator on segments that nothing was fitted on.
    """

    hardware: Hardware
    known: tuple[str, ...]
    measured: dict[str, str]
    fitted: tuple[str, ...]
    cost_us: Array
    unseen: dict[str, float]

    @property
    def assumed(self) -> tuple[str, ...]:
        """Parameters that were not estimated."""
        text = {*self.known, *self.measured, *self.fitted}
        return tuple(item.name for item in dataclasses.fields(Hardware) if item.name not in text)


def estimate_hardware(
    segments: Sequence[Segment],
    slices: SliceSet,
    start: Hardware,
    facts: dict[str, Any],
    period_s: float,
    generations: int,
    on_generation: Callable[[float], None],
) -> Estimate:
    """Work out what can be; a third of the segments is kept to judge by.

    Args:
        segments: measured.
        slices: of the node.
        start: what is assumed.
        facts: parameters that are known.
        period_s: control period of the segments.
        generations: of the search, where there is something to search for.
        on_generation: called with the loss after each.

    Raises:
        FailureError: too few packets, or packets that the UPFs' processes do not handle.
    """
    hardware = dataclasses.replace(start, **facts)
    hardware, measured, cost_us = _costs(segments, slices, hardware)
    others = _others(segments, hardware)
    hardware = dataclasses.replace(hardware, system_cpus=round(others, 3))
    measured["system_cpus"] = "CPU time that neither UPFs nor their packets used"
    judged_on = [item for at, item in enumerate(segments) if at % 3 == 2] or list(segments)
    fitted_on = [item for at, item in enumerate(segments) if at % 3 != 2]
    seen, kept = (model.observed(some, period_s) for some in (fitted_on, judged_on))
    for item in (seen, kept):
        _check_traffic(item)

    def loss(item: Hardware) -> float:
        return loss_of(compare(seen, model.simulate(fitted_on, slices, item, period_s, seed=1)))

    bounds = _that_matter(hardware, loss, {*facts, *measured})
    if bounds:
        hardware = search(hardware, bounds, lambda nodes: map(loss, nodes), generations, on_generation)
    played = model.simulate(judged_on, slices, hardware, period_s, seed=2)
    errors = compare(kept, played)
    return Estimate(hardware, tuple(facts), measured, tuple(bounds), cost_us, errors.summary())


def _check_traffic(seen: Observed) -> None:
    if not ((seen.carried_mbps > MIN_CARRIED_MBPS) & (seen.delay_p99_us > 0)).any():
        raise FailureError(
            f"identify: no slice has carried {MIN_CARRIED_MBPS:g} Mbit/s throughout the segments that are fitted on, "
            "or those that are kept to judge by; needed: traffic, or more --segments"
        )


def known_facts(cpus: float, cores: float, quota_period_ms: float, uplink_mbps: float | None) -> dict[str, Any]:
    """Parameters that are known without measuring: the machine's CPUs, our actuators', the configuration's."""
    facts: dict[str, Any] = {
        "logical_cpus": cpus,
        "physical_cores": min(cores, cpus),
        "cfs_period_ms": quota_period_ms,
        "egress_mode": "htb",
        "htb_burst_ms": BURST_MS,
        "htb_queue_packets": float(QUEUE_PACKETS),
    }
    return facts if uplink_mbps is None else facts | {"uplink_mbps": uplink_mbps}


def _costs(segments: Sequence[Segment], slices: SliceSet, start: Hardware) -> tuple[Hardware, dict[str, str], Array]:
    """Per-packet cost, by the simulator's law: CPU time a packet = cost (1 + ratio (1 - busy / threads)).

    ``busy`` is what packets alone take of a CPU. Points are slices in segments, each counting as many packets as it
    has; the ratio is estimated where loads differ enough, and otherwise assumed.
    """
    threads = slices.column("upf_threads")[:, 0].astype(np.float64)
    packets, cpu_s = (np.stack([getattr(item, name) for item in segments]) for name in ("packets", "cpu_s"))
    seconds = np.asarray([item.seconds for item in segments])[:, None]
    enough = (packets >= LEAST_PACKETS) & np.isfinite(cpu_s)
    if not enough.any():
        raise FailureError(
            f"identify: no slice has had {LEAST_PACKETS} packets in a segment, in a cgroup of its own; needed: traffic"
        )
    each = np.divide(cpu_s, packets, out=np.full_like(cpu_s, np.nan), where=enough)
    use = cpu_s / seconds
    totals = np.where(enough, cpu_s, 0.0).sum(0), np.where(enough, packets, 0.0).sum(0)
    cost_us = 1e6 * np.divide(*totals, out=np.full(len(threads), np.nan), where=totals[1] > 0)
    mean = 1e6 * totals[0].sum() / totals[1].sum()
    if mean < LEAST_WORK_US:
        raise FailureError(
            f"identify: the UPFs' processes use {mean:.2f} us of CPU time a packet: their packets are handled "
            "elsewhere, in softirqs, which no cgroup is charged for; nothing to identify by"
        )
    weights, values, busy = packets[enough], 1e6 * each[enough], (use / threads)[enough]
    measured = {"upf_cost_us": f"CPU time of the UPFs' cgroups over {packets[enough].sum():.0f} packets"}
    ratio = start.wake_cost_ratio
    if np.ptp(use[enough]) >= LEAST_SPREAD:
        # values = cost + cost * ratio * (1 - busy): a weighted straight line.
        slope, cost = np.polyfit(1.0 - busy, values, 1, w=np.sqrt(weights))
        low, high = BOUNDS["wake_cost_ratio"]
        ratio = float(np.clip(slope / max(cost, 1e-9), low, high))
        measured["wake_cost_ratio"] = f"the same at loads of {use[enough].min():.2f} to {use[enough].max():.2f} CPUs"
    cost = float(np.average(values / (1.0 + ratio * np.clip(1.0 - busy, 0.0, 1.0)), weights=weights))
    hardware = dataclasses.replace(start, upf_cost_us=float(f"{cost:.4g}"), wake_cost_ratio=float(f"{ratio:.4g}"))
    return hardware, measured, cost_us


def _others(segments: Sequence[Segment], hardware: Hardware) -> float:
    """CPUs that other programs kept busy, a median over segments; softirqs for packets are counted as assumed."""
    spent = []
    for item in segments:
        busy = hardware.logical_cpus * (1.0 - float(item.idle_ratio.mean()))
        packets_us = item.arrived.sum() * hardware.rx_cost_us + item.packets.sum() * hardware.tx_cost_us
        spent.append(busy - (np.nansum(item.cpu_s) + 1e-6 * packets_us) / item.seconds)
    return max(0.0, min(float(np.median(spent)), 0.9 * hardware.logical_cpus))


def _that_matter(
    hardware: Hardware, loss: Callable[[Hardware], float], text: Collection[str]
) -> dict[str, tuple[float, float]]:
    """Bounds of the parameters on which it depends how well the simulator fits: where no slice was held back nothing
    depends on a buffer, where CPUs were free nothing on how they are shared."""
    result, now = {}, loss(hardware)
    for name, bounds in BOUNDS.items():
        if name in {"upf_cost_us", "wake_cost_ratio", *text}:
            continue
        losses = [now, *(loss(dataclasses.replace(hardware, **_one(name, max(end, 1e-6)))) for end in bounds)]
        if max(losses) - min(losses) > LEAST_EFFECT:
            result[name] = bounds
    return result


def _one(name: str, value: float) -> dict[str, Any]:
    return {name: value}


def document(estimate: Estimate, node: str, start: str, mode: str) -> dict[str, Any]:
    """Contents: the estimates, what is assumed and from where, and the errors on segments that were not fitted on."""
    plain = dataclasses.asdict(Hardware())
    values = dataclasses.asdict(estimate.hardware)
    sure = {*estimate.known, *estimate.measured, *estimate.fitted}
    shown = {key: value for key, value in values.items() if key in sure or value != plain[key]}
    return {
        "source": f"identified on node {node} by `slicepilot node identify` in {mode}; errors on unseen segments",
        "hardware": shown,
        "assumed": list(estimate.assumed),
        "assumed_from": start,
        "fit": {name: round(value, 2) for name, value in estimate.unseen.items()},
    }
