"""Search for the parameters under which the simulator fits the measurements of a node best: CMA-ES (Hansen,
arXiv:1604.00772)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slicepilot.data.intervals import Array, weighted_quantile
from slicepilot.env.arrays import FloatArray
from slicepilot.env.simulator.hardware import Hardware

# What is fitted and within which bounds; the rest is known (CPUs, link rate, buffers, CFS period).
BOUNDS: dict[str, tuple[float, float]] = {
    "upf_cost_us": (0.5, 1.6),  # times the testbed's burn, or times 10 us without burn
    "rx_cost_us": (0.2, 25.0),
    "tx_cost_us": (0.2, 25.0),
    "sched_slice_ms": (0.2, 10.0),
    "wake_wait_ms": (0.0, 8.0),
    "n3_buffer_packets": (20.0, 400.0),
    "cpu_cv": (0.01, 0.4),
    "wake_cost_ratio": (0.0, 0.5),
    "placement_cv": (0.0, 0.5),
    "placement_tau_s": (0.05, 2.0),
}
GENERATIONS, POPULATION = 50, 16
SCANNED = 101
# Where the p99 delay of a slice that carries next to nothing says nothing.
MIN_CARRIED_MBPS = 0.5


@dataclass(frozen=True)
class Observed:
    """Measurements of N segments, (N, S) each: rates in Mbit/s, 99th percentile of the delay in us."""

    offered_mbps: Array
    carried_mbps: Array
    delay_p99_us: Array

    @classmethod
    def of(cls, series: FloatArray) -> Observed:
        """Means of the rates, and the percentile by volume, of offered and carried rate and p99 delay (T, 3, S, N)."""
        offered, carried, delay = (series[:, row].astype(np.float64) for row in range(3))
        return cls(offered.mean(0).T, carried.mean(0).T, weighted_quantile(delay, carried, 0.99).T)


@dataclass(frozen=True)
class Errors:
    """Errors of a simulation against the measurements, over all segments and slices.

    Attributes:
        throughput_pct: absolute error of the carried rate in % of the offered rate, (K,).
        delay_factor: how many times the p99 delay is too long or too short, at least 1, (M,).
    """

    throughput_pct: Array
    delay_factor: Array

    def summary(self) -> dict[str, float]:
        """Means, medians, 90th percentiles and the shares within 10%, and within factors of 1.5 and 2."""
        return {
            "throughput_mean_pct": float(self.throughput_pct.mean()),
            "throughput_median_pct": float(np.median(self.throughput_pct)),
            "throughput_p90_pct": float(np.quantile(self.throughput_pct, 0.9)),
            "throughput_within_10_pct": float(100 * (self.throughput_pct <= 10).mean()),
            "delay_p99_median_factor": float(np.median(self.delay_factor)),
            "delay_p99_p90_factor": float(np.quantile(self.delay_factor, 0.9)),
            "delay_p99_within_1_5_pct": float(100 * (self.delay_factor <= 1.5).mean()),
            "delay_p99_within_2_pct": float(100 * (self.delay_factor <= 2).mean()),
        }


def compare(observed: Observed, simulated: Observed) -> Errors:
    """The simulation's errors, without segments in which a slice offers or carries next to nothing."""
    offered = observed.offered_mbps > MIN_CARRIED_MBPS
    off = np.abs(simulated.carried_mbps - observed.carried_mbps)[offered]
    throughput = 100 * off / observed.offered_mbps[offered]
    known = (observed.carried_mbps > MIN_CARRIED_MBPS) & (observed.delay_p99_us > 0)
    ratio = np.log(np.maximum(simulated.delay_p99_us, 1.0) / np.maximum(observed.delay_p99_us, 1.0))[known]
    return Errors(throughput.ravel(), np.exp(np.abs(ratio)))


def loss_of(errors: Errors) -> float:
    """The fit's loss: throughput error in tenths plus delay error in factors of 2, capped at 16."""
    delay = np.minimum(np.log2(errors.delay_factor), 4.0)
    return float((errors.throughput_pct / 10).mean() + delay.mean())


def search(
    start: Hardware,
    bounds: Mapping[str, tuple[float, float]],
    losses: Callable[[Sequence[Hardware]], Iterable[float]],
    generations: int = GENERATIONS,
    on_generation: Callable[[float], None] | None = None,
    population: int = POPULATION,
    spread: float = 0.25,
) -> Hardware:
    """The hardware with the least loss, as far as the search got.

    Args:
        start: where the search begins, and all that is not searched for.
        bounds: what is searched for, and between what; ``upf_cost_us`` in times of the start's.
        losses: what is minimised, of so many candidates.
        generations, population, spread: of CMA-ES, the last in parts of the bounds.
        on_generation: called with the least loss so far after each generation.
    """
    import cma  # pulls in matplotlib

    scale = {"upf_cost_us": start.upf_cost_us}

    def hardware_of(point: Sequence[float]) -> Hardware:
        """Of a point of the unit cube."""
        values: dict[str, Any] = {}
        for x, (name, (low, high)) in zip(point, bounds.items(), strict=True):
            value = (low + (high - low) * min(max(float(x), 0.0), 1.0)) * scale.get(name, 1.0)
            values[name] = float(f"{value:.4g}")
        return dataclasses.replace(start, **values)

    if len(bounds) == 1:  # CMA-ES needs two parameters; a single parameter is scanned on a grid
        scanned = [hardware_of([x]) for x in np.linspace(0.0, 1.0, SCANNED)]
        return scanned[int(np.argmin(list(losses(scanned))))]
    first = [
        min(max((getattr(start, name) / scale.get(name, 1.0) - low) / (high - low), 0.05), 0.95)
        for name, (low, high) in bounds.items()
    ]
    options = {"seed": 1, "popsize": population, "maxiter": generations, "verbose": -9}
    strategy = cma.CMAEvolutionStrategy(first, spread, options)
    while not strategy.stop():
        points = strategy.ask()
        outside = [50.0 * sum(max(0.0, -x, x - 1.0) ** 2 for x in point) for point in points]
        reached = losses([hardware_of(point) for point in points])
        strategy.tell(points, [own + beyond for own, beyond in zip(reached, outside, strict=True)])
        if on_generation is not None:
            on_generation(float(strategy.result.fbest))
    best = strategy.result.xbest
    assert best is not None, "at least one candidate was evaluated"
    return hardware_of(best)
