"""Scenarios for another number of slices, to measure how cost and policies scale."""

from __future__ import annotations

import dataclasses

from ..slices import SliceSet, SNssai
from .backend import ScenarioEpisodes


def repeated_slices(episodes: ScenarioEpisodes, num_slices: int) -> ScenarioEpisodes:
    """The same node and loads with the slices repeated in order, or cut; CPUs and uplink grow or shrink along."""
    base = episodes.slices.slices
    specs, loads = [], {}
    for i in range(num_slices):
        spec = base[i % len(base)]
        name = f"{spec.name}-{i // len(base)}" if i >= len(base) else spec.name
        s_nssai = SNssai(spec.s_nssai.sst, f"{i + 1:06X}")
        specs.append(dataclasses.replace(spec, name=name, s_nssai=s_nssai))
        loads[name] = episodes.scenario.loads.get(spec.name, ())
    share = num_slices / len(base)
    hardware = dataclasses.replace(
        episodes.hardware,
        logical_cpus=episodes.hardware.logical_cpus * share,
        physical_cores=episodes.hardware.physical_cores * share,
        uplink_mbps=episodes.hardware.uplink_mbps * share,
    )
    scenario = dataclasses.replace(episodes.scenario, loads=loads)
    return ScenarioEpisodes(scenario, hardware, slices=SliceSet(tuple(specs)))
