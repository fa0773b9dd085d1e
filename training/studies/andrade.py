"""Andrade and Wickboldt (2025): 26 settings of CPU limits, nice and Cilium egress limits on five UPFs of one node."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slicepilot.agents.base import Agent
from slicepilot.data.intervals import mean_interval
from slicepilot.data.reference import calibration_rows, published_settings, verification_rows
from slicepilot.env.backend import Context
from slicepilot.env.knobs import Knobs
from slicepilot.env.simulator.hardware import Hardware
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.env.simulator.study import (
    GROUPS,
    RAMP,
    SAMPLE_S,
    TABLE_MBIT,
    WINDOW_S,
    StudySamples,
    play_settings,
    play_study,
)
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

from . import andrade_pictures
from .study import Effort, Figure, Finding, Findings, Row, Source, Store, Values, as_json, figures_of

Array = npt.NDArray[np.float64]
EXPERIMENTS = tuple(setting.experiment for setting in published_settings())
METRICS = {"throughput": "Mbit/s", "latency": "ms"}
STATISTICS = ("mean", "median", "std", "iqr")
TOLERANCE = {"throughput": 0.10, "latency": 0.25}
"""Of means and medians; spreads are shown and not judged."""
NICE_CAUSE = (
    "In the simulator, as between cpu cgroups of this machine's kernel, nice ranks only the threads of one pod; the "
    "study reports a gain where nice and limits are combined."
)
LOSS_CAUSE = "A mean over round trips of lost and repeated probes, up to 127 s: few samples decide."
REPETITIONS, QUICK_REPETITIONS = 10, 3


def key(experiment: int | str, group: str, metric: str, statistic: str) -> str:
    """Of a row."""
    return f"{experiment}/{group}/{metric}/{statistic}"


def _statistics(samples: Array) -> dict[str, float]:
    """As the study's tables have them, of any number of samples."""
    low, middle, high = np.quantile(samples, [0.25, 0.5, 0.75])
    spread = float(samples.std(ddof=1)) if samples.size > 1 else math.nan
    return {"mean": float(samples.mean()), "median": float(middle), "std": spread, "iqr": float(high - low)}


def figures_of_samples(name: int | str, group: str, metric: str, samples: Array) -> Iterator[tuple[str, Figure]]:
    """Rows of one group's samples (T, S, repetitions): statistics of all together.

    The interval is that of the mean over repetitions, of means and medians alone.
    """
    whole = _statistics(samples.ravel())
    for statistic in STATISTICS:
        low = high = None
        if statistic in ("mean", "median") and samples.shape[-1] > 1:
            each = [_statistics(samples[..., k].ravel())[statistic] for k in range(samples.shape[-1])]
            spread = mean_interval(each)
            low, high = min(spread.low, whole[statistic]), max(spread.high, whole[statistic])
        yield key(name, group, metric, statistic), Figure(whole[statistic], low, high)


class Andrade:
    """Declares the study."""

    name = "andrade"
    title = "Slice isolation with native cloud tools"
    citation = (
        'M. Andrade, J. Wickboldt, "A Study on 5G Network Slice Isolation Based on Native Cloud and Edge Computing '
        'Tools", Journal of Network and Systems Management 33(4):90, 2025'
    )
    asked = (
        "Which fixed CPU limits, nice values and Cilium egress limits keep a priority slice's throughput and latency "
        "while four neighbours on the same edge node add users."
    )

    def rows(self) -> Sequence[Row]:
        """Mean, median, standard deviation and interquartile range of both groups of all experiments."""
        printed = {(r.experiment, r.metric, r.group): r for r in (*calibration_rows(), *verification_rows())}
        result = []
        for setting in published_settings():
            number = setting.experiment
            for metric, unit in METRICS.items():
                for group in GROUPS if setting.active_slices > 1 else GROUPS[:1]:
                    row = printed.get((number, metric, group))
                    for statistic in STATISTICS:
                        value = getattr(row, statistic) if row else math.nan
                        judged = statistic in ("mean", "median")
                        result.append(
                            Row(
                                key(number, group, metric, statistic),
                                f"experiment {number}, {group}, {metric}, {statistic}",
                                unit,
                                None if math.isnan(value) else value,
                                TOLERANCE[metric] if judged else None,
                                _cause(number, metric, statistic),
                            )
                        )
        return result

    def findings(self) -> Sequence[Finding]:
        """What the study concludes."""
        return FINDINGS

    def simulate(self, effort: Effort, store: Store) -> Findings:
        """The whole ramp of all settings, and of agents, on the fitted node."""
        repetitions = QUICK_REPETITIONS if effort.quick else REPETITIONS
        node = Hardware.from_yaml("andrade")
        parts = 1 + len(effort.agents)

        def step(part: int, done: int, total: int) -> None:
            effort.say("simulating the ramp", (part + done / total) / parts)

        settings = partial(play_study, EXPERIMENTS, node, repetitions, effort.seed, on_step=partial(step, 0))
        kept = store.get("settings", lambda: _summary(settings(), dict(zip(EXPERIMENTS, EXPERIMENTS, strict=True))))
        result = Findings(values=figures_of(kept["figures"]), material={"series": kept["series"]})
        free = published_settings()[4]
        for part, agent in enumerate(effort.agents, start=1):
            played = partial(
                play_settings,
                [free],
                node,
                repetitions,
                effort.seed,
                on_step=partial(step, part),
                control=_Agent(agent, node),
            )
            kept = store.get(f"agent/{agent}", lambda: _summary(played(), {free.experiment: agent}))  # noqa: B023
            result.extra |= figures_of(kept["figures"])
            result.material["series"] |= kept["series"]
        result.remarks.append(
            f"simulated: the ramp of 1200 s, {repetitions} repetitions, seed {effort.seed}; the node was fitted on the "
            f"calibration rows alone, nine other experiments are shown and were never fitted"
        )
        return result

    def measure(self, effort: Effort, store: Store) -> Findings:
        """The same on the testbed's UPFs, with time and load scaled."""
        from .andrade_testbed import measure

        return measure(effort, store)

    def release(self, folder: Path, effort: Effort) -> Findings:
        """The tables again, out of the study's own exports."""
        from .andrade_release import read_release

        return read_release(folder, effort)

    def pictures(self, sources: Mapping[Source, Findings]) -> Sequence[str]:
        """The study's figures, from each source that has them."""
        return andrade_pictures.pictures(self.rows(), sources)


STUDY = Andrade()


class _Agent:
    """Any agent by name, as what decides during the ramp."""

    def __init__(self, name: str, node: Hardware) -> None:
        from slicepilot.agents.heuristics.registry import make

        self._agent: Agent = make(name, Scenario.from_yaml(RAMP).slice_set(), node)

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        self._agent.reset(slices, context, seed)

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        return self._agent.decide(telemetry, knobs)


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


def _cause(number: int, metric: str, statistic: str) -> str:
    if metric == "latency" and statistic == "mean":
        return LOSS_CAUSE
    settings = {setting.experiment: setting for setting in published_settings()}
    return NICE_CAUSE if settings[number].s1_nice else ""


# -- findings ----------------------------------------------------------------------------------------------------------


def _read(values: Values, metric: str, *wanted: tuple[int, str], statistic: str | None = None) -> list[float] | None:
    """Figures of experiments and groups: mean throughput, median latency; None where any is missing."""
    statistic = statistic or ("mean" if metric == "throughput" else "median")
    figures = [values.get(key(number, group, metric, statistic)) for number, group in wanted]
    known = [figure.value for figure in figures if figure is not None]
    return known if len(known) == len(figures) else None


def _listed(numbers: Sequence[int], values: Sequence[float], unit: str) -> str:
    return ", ".join(f"{number}: {value:.0f}" for number, value in zip(numbers, values, strict=True)) + f" {unit}"


def _rising(numbers: Sequence[int], group: str, metric: str, values: Values) -> tuple[bool, str] | None:
    """Whether a figure rises over experiments in this order."""
    read = _read(values, metric, *((number, group) for number in numbers))
    if read is None:
        return None
    rises = all(before < after for before, after in pairwise(read))
    return rises, _listed(numbers, read, f"{METRICS[metric]} ({group})")


def _both(*parts: Any) -> Any:
    """Several conditions at once."""

    def holds(values: Values) -> tuple[bool, str] | None:
        results = [part(values) for part in parts]
        if any(result is None for result in results):
            return None
        return all(result[0] for result in results), "; ".join(result[1] for result in results)

    return holds


def _ratio(one: int, other: int, low: float, high: float, values: Values) -> tuple[bool, str] | None:
    """Whether slice 1's throughput in one experiment over that in another is between two bounds."""
    read = _read(values, "throughput", (one, "slice1"), (other, "slice1"))
    if read is None:
        return None
    ratio = read[0] / read[1]
    return low <= ratio <= high, f"{one} over {other}: {ratio:.3f} (slice1, throughput)"


def _collapse(values: Values) -> tuple[bool, str] | None:
    read = _read(values, "throughput", (13, "others"))
    return None if read is None else (read[0] < 5.0, f"13: {read[0]:.1f} Mbit/s (others)")


def _all_experiments(values: Values) -> dict[int, tuple[float, float]] | None:
    """Mean throughput of slice 1 and the others in all experiments with five slices that the study prints."""
    numbers = sorted({r.experiment for r in (*calibration_rows(), *verification_rows()) if r.experiment >= len(GROUPS)})
    result = {}
    for number in numbers:
        if number < published_settings()[4].experiment:
            continue
        read = _read(values, "throughput", (number, "slice1"), (number, "others"))
        if read is None:
            return None
        result[number] = (read[0], read[1])
    return result


def _no_best(values: Values) -> tuple[bool, str] | None:
    figures = _all_experiments(values)
    if figures is None:
        return None
    first = max(figures, key=lambda number: figures[number][0])
    most = max(figures, key=lambda number: figures[number][1])
    differ = first != most and figures[first][1] < 0.7 * figures[most][1]
    return differ, f"slice1 is best off in {first}, the others in {most}"


def _compromise(values: Values) -> tuple[bool, str] | None:
    figures = _all_experiments(values)
    if figures is None:
        return None
    fair = [number for number in figures if figures[number][1] >= 100.0]
    best = sorted(fair, key=lambda number: -figures[number][0])[:2]
    return set(best) == {15, 25}, "best with at least 100 Mbit/s for others: " + ", ".join(map(str, best))


FINDINGS = (
    Finding(
        "Neighbours take throughput from the priority slice and add latency.",
        "Slice 1's mean throughput falls from experiment 1 by 4 to 5, its median latency rises from 1 by 3 to 5.",
        _both(partial(_rising, (5, 4, 1), "slice1", "throughput"), partial(_rising, (1, 3, 5), "slice1", "latency")),
    ),
    Finding(
        "Tighter CPU limits on the others protect the priority slice.",
        "Slice 1's mean throughput rises from experiment 5 by 6 and 7 to 8.",
        partial(_rising, (5, 6, 7, 8), "slice1", "throughput"),
    ),
    Finding(
        "The others pay for it in throughput and latency.",
        "The others' mean throughput falls from experiment 6 by 7 to 8, their median latency rises from 7 to 8.",
        _both(partial(_rising, (8, 7, 6), "others", "throughput"), partial(_rising, (7, 8), "others", "latency")),
    ),
    Finding(
        "Nice alone does not isolate.",
        "Slice 1's mean throughput in experiments 9 and 10 is at most 1.1 of that in 5.",
        _both(partial(_ratio, 9, 5, 0.0, 1.1), partial(_ratio, 10, 5, 0.0, 1.1)),
        published=True,
    ),
    Finding(
        "Nice beside CPU limits helps the priority slice.",
        "Slice 1's mean throughput in experiment 15 is at least 1.03 of that in 7.",
        partial(_ratio, 15, 7, 1.03, math.inf),
        cause=NICE_CAUSE,
    ),
    Finding(
        "Cilium's bandwidth manager without a rate brings nothing.",
        "Slice 1's mean throughput in experiment 11 is at most 1.05 of that in 5.",
        partial(_ratio, 11, 5, 0.0, 1.05),
    ),
    Finding(
        "An egress limit of 75 Mbit/s on the others isolates, and leaves them next to nothing.",
        "Slice 1's mean throughput in experiment 13 is at least 1.15 of that in 5; the others carry under 5 Mbit/s.",
        _both(partial(_ratio, 13, 5, 1.15, math.inf), _collapse),
    ),
    Finding(
        "No setting is best for all.",
        "The setting with most throughput for slice 1 leaves the others less than 0.7 of what the best for them does.",
        _no_best,
    ),
    Finding(
        "Settings 15 and 25 are the best compromise.",
        "Of the settings that leave the others 100 Mbit/s each, slice 1 carries most in 15 and 25.",
        _compromise,
        cause=NICE_CAUSE,
    ),
)
