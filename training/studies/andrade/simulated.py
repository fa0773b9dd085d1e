"""The ramp of Andrade and Wickboldt (2025) in the simulator, under their settings and under agents."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from slicepilot.agents.heuristics.registry import make
from slicepilot.data.reference import published_settings
from slicepilot.env.simulator.hardware import Hardware
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.env.simulator.study import (
    RAMP,
    SAMPLE_S,
    TABLE_MBIT,
    WINDOW_S,
    StudySamples,
    play_study,
)
from slicepilot.training.studies.study import Effort, Figure, Findings, Store, as_json, figures_of

from .samples import EXPERIMENTS, figures_of_samples

REPETITIONS, QUICK_REPETITIONS = 10, 3


def simulate(effort: Effort, store: Store) -> Findings:
    """The whole ramp of all settings, and of agents, on the fitted node."""
    repetitions = QUICK_REPETITIONS if effort.quick else REPETITIONS
    node = Hardware.from_yaml("andrade")
    parts = 1 + len(effort.agents)

    def step(part: int, done: int, total: int) -> None:
        effort.say("simulating the ramp", (part + done / total) / parts)

    settings = partial(play_study, published_settings(), node, repetitions, effort.seed, on_step=partial(step, 0))
    kept = store.get("settings", lambda: _summary(settings(), dict(zip(EXPERIMENTS, EXPERIMENTS, strict=True))))
    result = Findings(values=figures_of(kept["figures"]), material={"series": kept["series"]})
    free, slices = published_settings()[4], Scenario.from_yaml(RAMP).slice_set()
    for part, agent in enumerate(effort.agents, start=1):
        played = partial(
            play_study,
            [free],
            node,
            repetitions,
            effort.seed,
            on_step=partial(step, part),
            control=make(agent, slices, node),
        )
        kept = store.get(f"agent/{agent}", lambda: _summary(played(), {free.experiment: agent}))  # noqa: B023
        result.extra |= figures_of(kept["figures"])
        result.material["series"] |= kept["series"]
    result.remarks.append(
        f"simulated: the ramp of 1200 s, {repetitions} repetitions, seed {effort.seed}; the node was fitted on the "
        f"calibration rows alone, nine other experiments are shown and were never fitted"
    )
    return result


def _summary(samples: StudySamples, names: Mapping[int, int | str]) -> dict[str, Any]:
    """Figures and the ramp of all settings that were played, as JSON."""
    last = slice(-round(WINDOW_S / SAMPLE_S), None)
    figures, series = dict[str, Figure](), dict[str, Any]()
    values = {"throughput": samples.server_mbps / TABLE_MBIT, "latency": samples.round_trip_ms}
    for number, name in names.items():
        lanes = samples.lanes_of(number)
        for group, slices in samples.groups_of(number).items():
            for metric, all_samples in values.items():
                own = all_samples[:, slices, lanes].astype(np.float64)
                figures |= dict(figures_of_samples(name, group, metric, own[last]))
                quartiles = np.quantile(own, [0.25, 0.5, 0.75], axis=(1, 2)).T.round(2)
                box = np.quantile(own[last], [0.05, 0.25, 0.5, 0.75, 0.95]).round(2)
                series[f"{name}/{group}/{metric}"] = {"quartiles": quartiles.tolist(), "box": box.tolist()}
    return {"figures": as_json(figures), "series": series}
