"""The settings of Andrade and Wickboldt (2025) on the UPFs of a local testbed, with time and load scaled."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np

from slicepilot.env.simulator.scenario import Scenario
from slicepilot.env.simulator.study import GROUPS
from slicepilot.training.evaluation.rollouts import Rollout
from slicepilot.training.studies.study import Effort, Findings, Store
from slicepilot.training.studies.testbed import StudyTestbed

from .samples import EXPERIMENTS, figures_of_samples

SCENARIO = "testbed-andrade"
TIME_SCALE, LOAD_SCALE = 0.01, 0.35
"""Of the study's ramp: a run takes 12 s instead of 1200, a user sends 15.75 Mbit/s instead of 45."""
SAMPLES, SAMPLE_S = 10, 0.3
TURNS, QUICK_TURNS = 2, 1
QUICK_EXPERIMENTS = (1, 5, 6, 7, 8, 15)


def measure(effort: Effort, store: Store) -> Findings:
    """Run settings and agents, interleaved; each run is stored as soon as it ends.

    Raises:
        ConfigError: there is no testbed to be had.
    """
    scenario = Scenario.from_yaml(SCENARIO)
    turns = QUICK_TURNS if effort.quick else TURNS
    experiments = QUICK_EXPERIMENTS if effort.quick else EXPERIMENTS
    names: dict[int | str, str] = {number: f"experiment-{number}-scaled" for number in experiments}
    names |= {agent: agent for agent in effort.agents}
    with closing(StudyTestbed()) as testbed:
        kept: dict[int | str, list[Any]] = {name: [] for name in names}
        for turn in range(turns):
            for number, (name, agent) in enumerate(names.items()):
                effort.say(f"turn {turn + 1}: {agent}", (turn + number / len(names)) / turns)
                seed = effort.seed + turn
                run = store.get(f"{turn}/{name}", lambda: _samples(testbed.play(agent, scenario, seed)))  # noqa: B023
                kept[name].append(run)
    result = Findings()
    for name, runs in kept.items():
        target = result.values if isinstance(name, int) else result.extra
        for metric in ("throughput", "latency"):
            for group in GROUPS:
                each = [run[metric][group] for run in runs]
                if each[0]:
                    samples = np.moveaxis(np.asarray(each, np.float64), 0, -1)
                    target |= dict(figures_of_samples(name, group, metric, samples))
    result.shown_only = {key for key in result.values if "/latency/" in key}
    result.remarks.append(
        f"measured: UPFs of this machine on two CPUs, time scaled by {TIME_SCALE:g}, load by {LOAD_SCALE:g} (rates are "
        f"divided by it), limits and egress as shares of the node, {turns} turns; latency is the way from N3 to N6, "
        f"without the radio and the way back, and is not compared in ms"
    )
    return result


def _samples(rollout: Rollout) -> dict[str, Any]:
    """Samples (T, S) by metric and group of the end of a run; empty for a group that is not there."""
    periods = round(SAMPLE_S / rollout.period_s)
    last = slice(len(rollout.time_s) - SAMPLES * periods, None)

    def per_sample(name: str) -> Any:
        return rollout.row(name)[last, :, 0].reshape(SAMPLES, periods, -1)

    present = np.atleast_1d(rollout.valid[last, :, 0].all(axis=0))
    priority = np.arange(len(present)) == rollout.slices.priority_index
    values = {
        "throughput": per_sample("carried_mbps").mean(axis=1) / LOAD_SCALE,
        "latency": np.median(per_sample("delay_p50_us"), axis=1) / 1e3,
    }
    groups = dict(zip(GROUPS, (priority & present, ~priority & present), strict=True))
    return {
        metric: {group: samples[:, mask].round(3).tolist() if mask.any() else [] for group, mask in groups.items()}
        for metric, samples in values.items()
    }
