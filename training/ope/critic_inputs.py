"""What an action gives each slice, by the rules that schedulers follow, as inputs of critics.

Knobs act through each other: the effect of a nice level depends on the others', a limit matters once there is
more to do. A handful of logged decisions on 3 S knobs does not show that; the rule is known. CPU time is divided by
weight, nobody getting more than it needs or its limit allows (weighted max-min fairness, to which the kernel's fair
scheduler comes over some milliseconds); an egress rate lets through what it says. How much CPU a slice's traffic takes,
and how much there is, is taken from the data.

Inputs saturate where more changes nothing (twice the CPU that is needed, or ten times), so that settings beyond the
logged settings need not be beyond the logged inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slicepilot.agents.heuristics.fixed import NICE_STEP
from slicepilot.data.episodes.episodes import Floats
from slicepilot.env.encoding import FEATURES, NONE_ABOVE, unscaled

from .estimate import Array
from .logged import ACTIVE, Node

OFFERED, CARRIED, CPU_USE, CPU_IDLE = (
    FEATURES.index(name) for name in ("offered_mbps", "carried_mbps", "cpu_use_mcpu", "cpu_idle_ratio")
)
STATIC = [FEATURES.index(name) for name in ("committed_mbps", "delay_bound_us", "relative_weight")]
MIN_CARRIED_MBPS = 1.0
LEAST_NEED_MCPU, LEAST_RATE_MBPS = 1.0, 0.1
NO_LIMIT_MCPU, NO_LIMIT_MBPS = 1e6, 1e6
ROOM = -1.5, 0.7
MOST_FAIR = 1.6
HELD_INPUTS, OWN_INPUTS = 5, 7
NUM_INPUTS = OWN_INPUTS + HELD_INPUTS + 1 + len(STATIC) + 1


@dataclass(frozen=True)
class Costs:
    """CPU time that traffic takes and the node has for it: mCPU per Mbit/s of each slice (S,), and mCPU."""

    mcpu_per_mbps: Array
    capacity_mcpu: float

    @classmethod
    def of(cls, observations: Floats, node: Node) -> Costs:
        """Medians over observations (M, S, D)."""
        carried, used = (
            unscaled(name, observations[..., column]).astype(np.float64)
            for name, column in (("carried_mbps", CARRIED), ("cpu_use_mcpu", CPU_USE))
        )
        cost = np.where(carried > MIN_CARRIED_MBPS, used / np.maximum(carried, MIN_CARRIED_MBPS), np.nan)
        known = np.asarray(np.isfinite(cost).any(axis=0))
        per_slice = np.array(
            [np.nanmedian(column) if some else np.nan for column, some in zip(cost.T, known, strict=True)]
        )
        fallback = float(np.nanmean(per_slice)) if known.any() else 1.0
        total = 1e3 * node.logical_cpus
        # What is neither idle nor the slices' own: softirqs and other work, which come first.
        others = total * (1.0 - observations[:, 0, CPU_IDLE].astype(np.float64)) - used.sum(axis=1)
        return cls(np.where(known, per_slice, fallback), total - max(float(np.median(others)), 0.0))


def fair_shares(demand: Array, weight: Array, capacity: float) -> Array:
    """Weighted max-min division (..., S) of a capacity: nobody gets more than its demand, the rest goes by weight.

    The level to which all are filled is found on the demands in order of what each is per weight.
    """
    order = np.argsort(demand / weight, axis=-1)
    wanted, heavy = np.take_along_axis(demand, order, -1), np.take_along_axis(weight, order, -1)
    before = np.cumsum(wanted, axis=-1) - wanted
    left = np.cumsum(heavy[..., ::-1], axis=-1)[..., ::-1]
    over = before + wanted / heavy * left >= capacity
    first = np.argmax(over, axis=-1)[..., None]
    level = (capacity - np.take_along_axis(before, first, -1)) / np.take_along_axis(left, first, -1)
    level = np.where(over.any(axis=-1, keepdims=True), np.maximum(level, 0.0), np.inf)
    return np.minimum(demand, level * weight)


def effects(observations: Floats, actions: Floats, node: Node, costs: Costs) -> npt.NDArray[np.float32]:
    """What actions (N, S, 3) give the slices under the arrivals of observations (N, S, D): (N, S, 7).

    Share of what is offered that is served; logarithms of CPU limit and of egress rate over what is needed; CPU by
    weight alone over what is needed; share of the CPUs that is left; the limit's position on its axis;
    whether there is none.
    """
    knobs, rows = node.decoder.decode(actions)
    limit = np.where(np.isfinite(knobs.cpu_limit_mcpu), knobs.cpu_limit_mcpu, NO_LIMIT_MCPU).T.astype(np.float64)
    egress = np.where(np.isfinite(knobs.egress_mbps), knobs.egress_mbps, NO_LIMIT_MBPS).T.astype(np.float64)
    offered = np.maximum(unscaled("offered_mbps", observations[..., OFFERED]).astype(np.float64), LEAST_RATE_MBPS)
    threads = 1e3 * node.slices.column("upf_threads")[:, 0]
    there = observations[..., ACTIVE] > 0.5
    need = np.clip(costs.mcpu_per_mbps * offered, LEAST_NEED_MCPU, threads)
    requests = np.maximum(node.slices.column("cpu_request_mcpu")[:, 0], 1.0)
    weight = requests * NICE_STEP ** -knobs.nice.T.astype(np.float64) * np.where(there, 1.0, 1e-9)
    served_mcpu = fair_shares(np.where(there, np.minimum(need, limit), 0.0), weight, costs.capacity_mcpu)
    by_weight = weight / weight.sum(axis=-1, keepdims=True) * costs.capacity_mcpu / need
    left = 1.0 - served_mcpu.sum(axis=-1, keepdims=True) / costs.capacity_mcpu
    columns = [
        np.minimum(served_mcpu / need, np.minimum(egress / offered, 1.0)),
        np.clip(np.log(limit / need), *ROOM),
        np.clip(np.log(egress / offered), *ROOM),
        np.minimum(by_weight, MOST_FAIR),
        np.broadcast_to(left, need.shape),
        np.minimum(rows[0].T, NONE_ABOVE),
        rows[0].T > NONE_ABOVE,
    ]
    return np.asarray(np.stack(columns, axis=-1) * there[..., None], np.float32)


def critic_inputs(
    observations: Floats, held: Floats, actions: Floats, node: Node, costs: Costs
) -> npt.NDArray[np.float32]:
    """Inputs (N, S, 17) of a critic.

    Args:
        observations: (N, S, D), of which arrivals and promises are taken, and who is there.
        held: (N, S, 3), the action that held before.
        actions: (N, S, 3), the queried action.
        node: of the episodes.
        costs: of its traffic.
    """
    parts = [
        effects(observations, actions, node, costs),
        effects(observations, held, node, costs)[..., :HELD_INPUTS],
        observations[..., [OFFERED]],
        observations[..., STATIC],
        observations[..., [ACTIVE]],
    ]
    return np.concatenate(parts, axis=-1)
