"""Fit `slicepilot.training.studies.mishra.packets.PacketPath` and a packet's cost on two of the study's three loads.

``python benchmarks/packet_path/fit.py [TRIALS]`` searches at random around the shipped values, and prints the best with
its errors (mean absolute difference of logarithms) on the loads fitted and on the medium load, which is never fitted.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, replace

import numpy as np

from slicepilot.data.reference import forwarding_delays
from slicepilot.training.studies.mishra.packets import PacketPath, arrivals_s, delays_us, packets_per_s
from slicepilot.training.studies.mishra.samples import LOADS, SLICES
from slicepilot.training.studies.mishra.simulated import scenario_of

FREE = ("wake_us", "wake_sigma", "busy_pps", "pause_s", "paused_ratio", "window_packets")
FITTED = ("light", "heavy")
SECONDS = {"eMBB": 60.0, "URLLC": 2400.0, "mMTC": 40.0}
PRINTED = {(row.load, row.slice): np.log([row.mean, row.p50, row.p99]) for row in forwarding_delays()}


def figures(path: PacketPath, cost_us: float, load: str) -> dict[str, np.ndarray]:
    """Logarithms of mean, median and 99th percentile by slice."""
    loads = {name: source for name in SLICES for source in scenario_of(load).loads[name]}
    node_pps = sum(map(packets_per_s, loads.values()))
    result = {}
    for name, source in loads.items():
        rng = np.random.default_rng(1)
        delays = delays_us(arrivals_s(source, SECONDS[name], path, cost_us, rng), node_pps, path, cost_us, rng)
        result[name] = np.log([delays.mean(), *np.quantile(delays, [0.5, 0.99])])
    return result


def loss(path: PacketPath, cost_us: float) -> float:
    """Squared differences on the loads fitted, and of how far the tails are apart where their order is wrong."""
    total = 0.0
    for load in FITTED:
        own = figures(path, cost_us, load)
        total += sum(float(((own[name] - PRINTED[load, name]) ** 2).sum()) for name in SLICES)
        for first, second in (("URLLC", "eMBB"), ("eMBB", "mMTC")):
            total += 10.0 * max(float(own[first][2] - own[second][2]) + 0.05, 0.0)
    return total


def error(path: PacketPath, cost_us: float, load: str) -> float:
    """Of a load, over slices and statistics."""
    own = figures(path, cost_us, load)
    return float(np.mean([np.abs(own[name] - PRINTED[load, name]) for name in SLICES]))


def main(trials: int) -> None:
    """Search."""
    rng = np.random.default_rng(0)
    path, cost_us = PacketPath(), scenario_of("light").hardware_spec().upf_cost_us
    least = loss(path, cost_us)
    for trial in range(trials):
        values = asdict(path)
        for name in rng.choice(FREE, 3, replace=False):
            values[name] *= float(np.exp((0.2 if trial < trials // 3 else 0.06) * rng.standard_normal()))
        values["window_packets"] = max(1, round(values["window_packets"]))
        tried, tried_us = replace(path, **values), cost_us * float(np.exp(0.03 * rng.standard_normal()))
        if (now := loss(tried, tried_us)) < least:
            path, cost_us, least = tried, tried_us, now
            print(f"{trial}: {least:.3f}", flush=True)
    print(path, f"upf_cost_us: {cost_us:.1f}")
    print(*(f"{load}: {error(path, cost_us, load):.3f}" for load in LOADS))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
