"""The ramp of Andrade and Wickboldt (2025) in the simulator, under their settings and under agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from slicepilot.agents.heuristics.registry import make
from slicepilot.data.reference import PublishedSetting
from slicepilot.env.simulator.hardware import Hardware
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.env.simulator.study import RAMP, SAMPLE_S, TABLE_MBIT, WINDOW_S, find_settings, play_study
from slicepilot.training.studies.study import Effort, Figure, Findings, Store, as_json, figures_of

from .samples import EXPERIMENTS, figures_of_samples

REPETITIONS, QUICK_REPETITIONS = 10, 3
FREE = 5
"""The experiment without control, which agents play instead."""


def simulate(effort: Effort, store: Store) -> Findings:
    """The whole ramp of all settings, and of agents, on the fitted node."""
    repetitions = QUICK_REPETITIONS if effort.quick else REPETITIONS
    result = Findings(material={"series": {}})
    for part, agent in enumerate((None, *effort.agents)):

        def step(done: int, total: int, part: int = part) -> None:
            effort.say("simulating the ramp", (part + done / total) / (1 + len(effort.agents)))

        settings = find_settings(EXPERIMENTS if agent is None else [FREE])
        names: dict[int, int | str] = {setting.experiment: agent or setting.experiment for setting in settings}
        played = partial(_play, settings, names, agent, repetitions, effort.seed, step)
        kept = store.get("settings" if agent is None else f"agent/{agent}", played)
        target = result.values if agent is None else result.extra
        target |= figures_of(kept["figures"])
        result.material["series"] |= kept["series"]
    result.remarks.append(
        f"simulated: the ramp of 1200 s, {repetitions} repetitions, seed {effort.seed}; the node was fitted on the "
        f"calibration rows alone, nine other experiments are shown and were never fitted"
    )
    return result


def _play(
    settings: Sequence[PublishedSetting],
    names: Mapping[int, int | str],
    agent: str | None,
    repetitions: int,
    seed: int,
    on_step: Callable[[int, int], None],
) -> dict[str, Any]:
    """Figures and the ramp of settings, as JSON."""
    node = Hardware.from_yaml("andrade")
    control = None if agent is None else make(agent, Scenario.from_yaml(RAMP).slice_set(), node)
    samples = play_study(settings, node, repetitions, seed, on_step=on_step, control=control)
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
