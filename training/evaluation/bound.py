"""What nobody can beat: an upper bound of the return, a lower one of broken promises, by the capacity of the node.

A fluid argument. In every control period the CPUs and the uplink carry only so much, whatever the knobs say, and a
promise that is kept takes a certain rate of both. So the best division is a knapsack, relaxed to a linear program (a
promise may be kept in part), and any prices of CPU and uplink give a bound of that (weak duality):

    sum of (value - price x need), where positive, + prices x capacities

Prices are those at which, period by period, all that pays its price just fits. Poor prices make a loose bound, never a
wrong one. It foresees loads and noise, has no queues to fill or drain, no quota to run out and no thread that waits,
so it is out of reach for real controllers; how far depends on the scenario.

Left out, all in favour of who is measured against it: delays of what is served in time, an edge application's share,
what waking costs, and that a queue once full goes on delaying.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.ndimage import minimum_filter1d

from slicepilot.agents.base import Agent
from slicepilot.env.promises import AVERAGING_WINDOW_S, RATE_TOLERANCE
from slicepilot.env.reward import DELAY_SHARE, KEPT_SHARE, RATE_SHARE, RewardWeights
from slicepilot.env.simulator import kernels
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend
from slicepilot.env.simulator.hardware import HardwareArrays
from slicepilot.env.simulator.lookahead import Future
from slicepilot.env.simulator.scenario import Scenario

Array = npt.NDArray[np.float64]
ROUNDS = 40  # of halving the interval in which a price lies
ALTERNATIONS = 3
TINY = 1e-9
PERIODS_AT_ONCE = 2000


@dataclass(frozen=True)
class Bound:
    """Per seed, (L,): no controller has a higher mean reward per period, none fewer seconds of broken promises.

    Both as `slicepilot.training.evaluation.scores.score` counts them.
    """

    returns: Array
    violation_s: Array


@dataclass(frozen=True)
class Node:
    """What some periods offer and ask for: (T, S, L) per slice and (T, L) of the node; rates in Mbit/s.

    Attributes:
        offered, committed: what arrives, and what is promised; no arrivals where a slice is absent.
        cpu_s, tx_cpu_s: CPU seconds that a Mbit takes of the UPF, and of softirqs that send it: in the same period, but
            for what they did not expect in the next.
        most: what the UPF's threads can carry at all.
        prompt: what a slice must carry in a period for its delay bound to hold at the end of it: else its queue, which
            is emptied at no higher rate, takes longer than the bound. 0 where even a full buffer keeps the bound.
        cpus, uplink: CPU seconds a second that UPFs can have, and Mbit/s.
        share: of the weight of all promises.
        present, elastic: where a slice is, and where its senders slow down as TCP's do.
        can_hold: (T, L), CPUs that limits can hold.
    """

    offered: Array
    committed: Array
    cpu_s: Array
    tx_cpu_s: Array
    most: Array
    prompt: Array
    cpus: Array
    uplink: Array
    share: Array
    present: npt.NDArray[np.bool_]
    elastic: npt.NDArray[np.bool_]
    can_hold: Array


def bound(scenario: Scenario, lanes: int, seed: int, weights: RewardWeights, request_of: Agent | None = None) -> Bound:
    """Bounds for the runs that `slicepilot.training.evaluation.rollouts.simulate_rollout` makes of these arguments."""
    request = None if request_of is None else request_of.request_mcpu
    backend = SimulatorBackend(ScenarioRuns(scenario, request_mcpu=request), lanes)
    try:
        backend.reset(seed)
        context, future = backend.context, Future(backend.engine)
        period_s = float(context.period_s[0])
        window = max(1, round(AVERAGING_WINDOW_S / period_s))
        returns, kept, whole = np.zeros(lanes), np.zeros(lanes), np.zeros(lanes)
        first, steps = backend.engine.elapsed, context.num_steps
        done = 0
        while done < steps:
            count = min(PERIODS_AT_ONCE, steps - done)
            node = _node(backend, future, first + done, count)
            returns += _most_reward(node, weights).sum(axis=0)
            kept += _most_kept(node, window)
            whole += (node.share * node.present).sum(axis=(0, 1))
            done += count
    finally:
        backend.close()
    return Bound(returns / steps, np.maximum(whole - kept, 0.0) * period_s)


def _node(backend: SimulatorBackend, future: Future, first: int, count: int) -> Node:
    engine, context = backend.engine, backend.context
    hardware, promises = engine.hardware, context.promises
    block = future.window(first, count)
    rows = np.asarray(block.slices, np.float64)
    period_s = np.asarray(context.period_s, np.float64)
    offered = rows[:, kernels.ARRIVE_MBIT] / period_s
    present = rows[:, kernels.ACTIVE] > 0
    elastic = rows[:, kernels.ELASTIC_MBPS] > 0
    cost, packet_mbit = rows[:, kernels.CPU_S_PER_MBIT], rows[:, kernels.PACKET_MBIT]
    uplink, factor = (np.asarray(block.node[:, row], np.float64) for row in range(2))
    received = (rows[:, kernels.RX_CPU_S_PER_MBIT] * offered).sum(axis=1) + hardware.system_cpus
    cpus = _most_work(hardware, received, factor)
    threads = np.asarray(context.threads, np.float64)
    open_share = np.clip(1.0 - received / factor / hardware.logical_cpus, 0.0, 1.0)
    most = threads * (open_share * factor)[:, None] / cost
    bound_s = 1e-6 * np.asarray(promises.delay_bound_us, np.float64)
    full_s = np.asarray(hardware.n3_buffer_packets, np.float64) * packet_mbit / np.maximum(offered, TINY)
    prompt = np.where(full_s > bound_s, offered * period_s / (period_s + bound_s), 0.0)
    weight = np.asarray(promises.weight, np.float64)
    shape = offered.shape
    return Node(
        offered=offered,
        committed=np.broadcast_to(np.asarray(promises.committed_mbps, np.float64), shape),
        cpu_s=cost,
        tx_cpu_s=1e-6 * np.asarray(hardware.tx_cost_us, np.float64) / packet_mbit,
        most=most,
        prompt=prompt,
        cpus=cpus,
        uplink=uplink,
        share=np.broadcast_to(weight / weight.sum(axis=0), shape),
        present=present,
        elastic=elastic,
        can_hold=np.maximum((threads * present).sum(axis=1), np.asarray(context.logical_cpus, np.float64)),
    )


def _most_work(hardware: HardwareArrays, kernel_cpus: Array, factor: Array) -> Array:
    """CPU seconds at full speed that UPFs can have a second, (T, L): who wants less runs faster where threads share
    cores, so the best is where what is wanted just fits."""
    logical, cores, smt = (
        np.asarray(getattr(hardware, name), np.float64) for name in ("logical_cpus", "physical_cores", "smt_yield")
    )
    best = np.zeros_like(kernel_cpus)
    for wanted_share in np.linspace(0.0, 1.5, 151):
        wanted = wanted_share * logical
        siblings = np.maximum(logical - cores, TINY)
        shared = np.where(logical > cores, np.maximum(wanted + kernel_cpus - cores, 0.0) / siblings, 0.0)
        speed = np.maximum(1.0 - (1.0 - smt) * shared, smt) * factor
        # The next point of the grid is wanted at most: what lies between must not be missed.
        best = np.maximum(best, np.minimum(wanted + 0.01 * logical, logical * speed - kernel_cpus))
    return np.maximum(best, float(kernels.MIN_CAPACITY_CPUS))


def _prices(node: Node, demand_at: Callable[[Array, Array], Array]) -> tuple[Array, Array]:
    """Prices (T, L) of CPU and uplink at which all that pays its price fits; ``demand_at(cpu, uplink)`` gives rates."""
    cpu, uplink = np.zeros_like(node.cpus), np.zeros_like(node.uplink)
    takes = (node.cpu_s + node.tx_cpu_s, np.ones_like(node.cpu_s))
    capacity = (node.cpus, node.uplink)
    for _ in range(ALTERNATIONS):
        for which in range(2):
            low = np.zeros_like(cpu)
            high = np.full_like(cpu, 1e3)
            for halving in range(ROUNDS):
                middle = 0.5 * (low + high) if halving else np.zeros_like(low)
                prices = (middle, uplink) if which == 0 else (cpu, middle)
                used = (demand_at(*prices) * takes[which]).sum(axis=1)
                over = used > capacity[which]
                low, high = np.where(over, middle, low), np.where(over, high, middle)
            if which == 0:
                cpu = high
            else:
                uplink = high
    return cpu, uplink


def _unit_price(node: Node, cpu: Array, uplink: Array) -> Array:
    """What a Mbit/s of each slice costs in each period, (T, S, L); sending it may be charged in the period after."""
    later = np.minimum(cpu, np.concatenate([cpu[1:], np.zeros_like(cpu[:1])]))
    return cpu[:, None] * node.cpu_s + later[:, None] * node.tx_cpu_s + uplink[:, None]


def _most_reward(node: Node, weights: RewardWeights) -> Array:
    """Upper bound of the reward, (T, L)."""
    priority = node.share[0].argmax(axis=0)
    others = np.arange(node.share.shape[1])[:, None] != priority
    others_offered = np.maximum((node.offered * others).sum(axis=1), TINY)[:, None]
    owed = RATE_TOLERANCE * np.minimum(node.offered, node.committed)
    free = ~node.present | node.elastic | (owed <= TINY)
    sla = weights.sla * node.share
    # A limit is never below what is used, so that use is the least that is held.
    slope = weights.carried * others * (~node.elastic) / others_offered
    held = weights.cpu_held * node.cpu_s / node.can_hold[:, None]
    ceiling = np.minimum(node.offered, node.most)

    def value(rate: Array) -> Array:
        ratio = np.where(free, 1.0, np.minimum(rate / np.maximum(owed, TINY), 1.0))
        keeps = (ratio >= 1.0 - 1e-9) & (rate >= node.prompt * (1.0 - 1e-9) * ~free)
        return np.asarray(sla * (RATE_SHARE * ratio + KEPT_SHARE * keeps + DELAY_SHARE) + (slope - held) * rate)

    corners = [
        np.zeros_like(owed),
        np.minimum(owed, ceiling),
        np.minimum(np.maximum(owed, node.prompt), ceiling),
        ceiling,
    ]
    values = [value(rate) for rate in corners]

    def best_at(price: Array) -> tuple[Array, Array]:
        best, rate = values[0].copy(), corners[0].copy()
        for corner, gain in zip(corners[1:], values[1:], strict=True):
            net = gain - price * corner
            better = net > best
            best, rate = np.where(better, net, best), np.where(better, corner, rate)
        return best, rate

    def demand_at(cpu: Array, uplink: Array) -> Array:
        return best_at(cpu[:, None] * (node.cpu_s + node.tx_cpu_s) + uplink[:, None])[1]

    cpu, uplink = _prices(node, demand_at)
    best, _ = best_at(_unit_price(node, cpu, uplink))
    # An elastic source may offer nothing, which carries all of it.
    elastic = weights.carried * (node.elastic & others).any(axis=1)
    total = best.sum(axis=1) + cpu * node.cpus + uplink * node.uplink + elastic
    nothing_offered = weights.carried * ((node.offered * others).sum(axis=1) <= TINY)
    most = weights.sla + weights.carried
    return np.asarray(np.minimum(total + nothing_offered, most))


def _most_kept(node: Node, window: int) -> Array:
    """Upper bound of the weight of promises kept, summed over periods, (L,).

    A rate is kept on average over the last ``window`` periods, so a kept period has to pay its price in the cheapest of
    them; what makes that a bound is that each Mbit counts in ``window`` averages, each with one part in ``window``.
    """
    periods = len(node.offered)
    mean_offered = _trailing_mean(node.offered, window)
    owed = RATE_TOLERANCE * np.minimum(mean_offered, node.committed)
    free = node.elastic | (owed <= TINY)
    value = node.share * node.present
    need = np.maximum(owed, node.prompt)
    out_of_reach = np.minimum(_trailing_mean(node.most, window), node.most) < node.prompt

    def demand_at(cpu: Array, uplink: Array) -> Array:
        price = cpu[:, None] * (node.cpu_s + node.tx_cpu_s) + uplink[:, None]
        return np.where(~free & ~out_of_reach & (value > price * need), need, 0.0)

    cpu, uplink = _prices(node, demand_at)
    best = np.full(node.cpus.shape[1], np.inf)
    for span in dict.fromkeys((1, window, min(4 * window, periods))):
        smooth_cpu, smooth_uplink = (_trailing_mean(price[:, None], span)[:, 0] for price in (cpu, uplink))
        price = _unit_price(node, smooth_cpu, smooth_uplink)
        by_rate = value - owed * _trailing_least(price, window)
        by_delay = value - node.prompt * price
        gain = np.where(free, value, np.clip(np.minimum(by_rate, by_delay), 0.0, value))
        gain = np.where(out_of_reach & ~free, 0.0, gain)
        paid = (smooth_cpu * node.cpus + smooth_uplink * node.uplink).sum(axis=0)
        best = np.minimum(best, gain.sum(axis=(0, 1)) + paid)
    return best


def _trailing_mean(values: Array, window: int) -> Array:
    """Mean of each and the ``window - 1`` before it, as many as there are, along the first axis."""
    total = np.cumsum(values, axis=0)
    total[window:] -= total[:-window].copy()
    count = np.minimum(np.arange(1, len(values) + 1), window).reshape(-1, *[1] * (values.ndim - 1))
    return np.asarray(total / count)


def _trailing_least(values: Array, window: int) -> Array:
    """Least of each and the ``window - 1`` before it, along the first axis."""
    least: Array = minimum_filter1d(values, window, axis=0, origin=(window - 1) // 2, mode="nearest")
    return least
