"""Scenarios for another number of slices, to measure how cost and policies scale."""

from __future__ import annotations

import dataclasses

from .backend import ScenarioRuns


def repeated_slices(episodes: ScenarioRuns, num_slices: int) -> ScenarioRuns:
    """The same node and loads with the slices repeated in order, or cut; CPUs and uplink grow or shrink along."""
    base = episodes.slices
    slices = base.repeated(num_slices)
    loads = {name: episodes.scenario.loads.get(base.names[i % len(base)], ()) for i, name in enumerate(slices.names)}
    share = num_slices / len(base)
    hardware = dataclasses.replace(
        episodes.hardware,
        logical_cpus=episodes.hardware.logical_cpus * share,
        physical_cores=episodes.hardware.physical_cores * share,
        uplink_mbps=episodes.hardware.uplink_mbps * share,
    )
    scenario = dataclasses.replace(episodes.scenario, loads=loads)
    return ScenarioRuns(scenario, hardware, slices=slices)
