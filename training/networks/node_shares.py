"""What a policy is shown of sums and orders: each slice's needs as shares of what the node has now."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from slicepilot.env.encoding import (
    CPU_AXIS_PER_THREAD_MCPU,
    CPUS_RANGE,
    FEATURES,
    NUM_FEATURES,
    TELEMETRY_SCALE,
    UPLINK_RANGE_MBPS,
)

ACTIVE, WEIGHT = FEATURES.index("active"), FEATURES.index("relative_weight")
UPLINK_USE, UPLINK_CAPACITY = FEATURES.index("uplink_use_ratio"), FEATURES.index("uplink_capacity")
CPU_IDLE, LOGICAL_CPUS = FEATURES.index("cpu_idle_ratio"), FEATURES.index("logical_cpus")
# Rates in Mbit/s, then CPU time in mCPU, with the telemetry scales that they are encoded by.
ASKED = {
    "offered_mbps": "offered_mbps",
    "committed_mbps": "carried_mbps",
    "carried_mbps": "carried_mbps",
    "cpu_use_mcpu": "cpu_use_mcpu",
}
# Columns that `NodeShares` adds: what is asked for, needed and needed by those that outrank a slice; then the part of
# the need that is left room for (by CPUs as used, and by all), limits (for either part, the need, the whole promise)
# and worth (share of the weight, and that for each CPU).
NUM_SHARES = len(ASKED) + 4
NUM_INPUTS = NUM_FEATURES + NUM_SHARES + 2 + 4 + 2
RANK_SQUARINGS = 3  # how sharply ranks are told apart: two that differ by a tenth count 0.32 and 0.68
MAX_SHARE = 2.0
MAX_PER_CPU = 1e3
LEAST_NEED = 0.05
LEAST_LIMIT_MCPU = CPU_AXIS_PER_THREAD_MCPU[0]
LIMIT_AXIS = math.log(CPU_AXIS_PER_THREAD_MCPU[1] / LEAST_LIMIT_MCPU)
# Below this utilisation, or use in Mbit/s or CPUs, a capacity is taken from what the node is said to have.
IDLE, NOTHING, TINY = 0.05, 1e-3, 1e-6
HALF = 0.5
# Columns of `NodeShares`' rows: as a limit, the CPU for the part of each need that all CPUs have room for; and the
# weight for each CPU.
GRANTED_LIMIT, WORTH_PER_CPU = NUM_FEATURES + NUM_SHARES + 2 + 1, NUM_INPUTS - 1


def present(table: Tensor) -> Tensor:
    """1 for slices that are there, (B, S, 1)."""
    return (table[..., ACTIVE : ACTIVE + 1] > HALF).to(table.dtype)


class NodeShares(nn.Module):
    """Puts behind each slice's row of the observation what it asks for and needs as shares of what the node has now.

    (B, S, D) to (B, S, D + 16), zeros where a slice is absent.

    First what it asks for, in the order of `ASKED`. Then what its promise needs now, of the uplink and of the CPUs: the
    lesser of offered and committed rate, and that rate at the CPU time it takes for what it carries (a slice that
    carries nothing: at what the slices take together). Then how much of either is needed by the slices that outrank it,
    which have more weight for what their whole promise takes: the order in which the greedy solution of the knapsack
    problem (Dantzig 1957) would keep promises. By what a slice needs now, the silent would outrank all. Slices of the
    same rank count half. Last, the part of its need that this order leaves room for, of what the node has now and of
    all its CPUs; as CPU limits on their axis, the CPU for either part, for all that it needs now and for its whole
    promise; and its share of the weight, alone and for each CPU that its promise takes, logarithmic.

    Observations are logarithmic, which suits a slice's own figures; whether all of them fit is a matter of sums. What
    the node has now is what the slices use over its utilisation, so that a link that has lost capacity shows, and of
    the CPUs what softirqs and other work leave: work that would yield to the slices looks like CPUs that are not there,
    which is why all of them count too. Figures beyond the encoder's full scale (10 Gbit/s, 16 CPUs a slice) count as
    that.
    Computed in float64, because decisions turn on small differences of sums, and the exponentials of different runtimes
    differ in float32's last digits.
    """

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.columns = [FEATURES.index(feature) for feature in ASKED]
        self.node_columns = [UPLINK_USE, UPLINK_CAPACITY, CPU_IDLE, LOGICAL_CPUS]
        pairs = [TELEMETRY_SCALE[field] for field in ASKED.values()]
        rows = [[reference for reference, _ in pairs], [math.log1p(full / reference) for reference, full in pairs]]
        self.register_buffer("scale", torch.tensor(rows, dtype=torch.float64), persistent=False)

    def forward(self, table: Tensor) -> Tensor:
        """Inverts the scales of `slicepilot.env.encoding`."""
        there = present(table).double()
        asked = self.scale[0] * torch.expm1(table[..., self.columns].double() * self.scale[1]) * there
        # The node's figures are the same in every row.
        node = (table[..., self.node_columns].double() * there).sum(1) / there.sum(1).clamp(min=1.0)
        uplink_use, cpu_idle = node[:, 0], node[:, 2]
        logical_cpus = _declared(node[:, 3], CPUS_RANGE)
        uplink_mbps = _available(asked[..., 2], uplink_use, _declared(node[:, 1], UPLINK_RANGE_MBPS))
        cpus = _available(1e-3 * asked[..., 3], 1.0 - cpu_idle, logical_cpus)
        capacity = torch.stack([uplink_mbps, uplink_mbps, uplink_mbps, 1e3 * cpus], -1).unsqueeze(1)
        asked_share = (asked / capacity).clamp(0.0, MAX_SHARE)
        offered, committed, carried, cpu_use = asked_share.unbind(-1)
        rate = torch.minimum(offered, committed)
        # CPU over uplink: what carrying takes, from those that carry something.
        together = cpu_use.sum(1, keepdim=True) / carried.sum(1, keepdim=True).clamp(min=TINY)
        cost = torch.where(carried > TINY, cpu_use / carried.clamp(min=TINY), together)
        needed, promised_cpu = torch.stack([rate, cost * rate], -1), cost * committed
        weight = table[..., WEIGHT].double().clamp(min=0.0) * there.squeeze(-1)
        rank = (weight / (committed + promised_cpu).clamp(min=NOTHING)).clamp(min=TINY)
        for _ in range(RANK_SQUARINGS):
            rank = rank * rank
        before = rank.unsqueeze(1) / (rank.unsqueeze(1) + rank.unsqueeze(2))  # (B, S, others)
        outranking = ((before.unsqueeze(-1) * needed.unsqueeze(1)).sum(2) - HALF * needed) * there
        # The CPUs there are over those that the slices have: other work on the node may have to yield to them, or not.
        spare = (logical_cpus / cpus).unsqueeze(-1)
        granted = []
        for cpu_size in (torch.ones_like(spare), spare):
            size = torch.stack([torch.ones_like(spare), cpu_size], -1)
            # Without a least need a slice that needs next to nothing would be all or nothing by rounding errors.
            missing = (outranking + needed - size).clamp(min=0.0) / needed.clamp(min=LEAST_NEED)
            granted.append((1.0 - missing.amax(-1)).clamp(min=0.0))
        cpu = needed[..., 1]
        limits = torch.stack([*(part * cpu for part in granted), cpu, promised_cpu], -1) * capacity[..., 3:]
        axis = ((limits / LEAST_LIMIT_MCPU).clamp(min=1.0).log() / LIMIT_AXIS).clamp(max=1.0)
        weight = weight / weight.sum(1, keepdim=True).clamp(min=TINY)
        per_cpu = weight / (promised_cpu * cpus.unsqueeze(-1)).clamp(min=NOTHING)
        worth = torch.stack([weight, per_cpu.clamp(1.0 / MAX_PER_CPU, MAX_PER_CPU).log() / math.log(MAX_PER_CPU)], -1)
        shares = [asked_share, needed.clamp(max=MAX_SHARE), outranking.clamp(max=MAX_SHARE)]
        inputs = torch.cat([*shares, torch.stack(granted, -1) * there, axis * there, worth * there], -1)
        return torch.cat([table, inputs.to(table.dtype)], -1)


def _declared(encoded: Tensor, bounds: tuple[float, float]) -> Tensor:
    """What stands at a position of a log axis."""
    low, high = bounds
    return low * torch.exp(encoded * math.log(high / low))


def _available(used: Tensor, utilisation: Tensor, declared: Tensor) -> Tensor:
    """Capacity (B,) from what is used (B, S) at a utilisation (B,), or as declared if hardly any is."""
    total = used.sum(1)
    return torch.where((utilisation > IDLE) & (total > NOTHING), total / utilisation.clamp(min=IDLE), declared)
