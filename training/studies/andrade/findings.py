"""The conclusions of Andrade and Wickboldt (2025), with criteria on figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from slicepilot.data.intervals import mean_interval
from slicepilot.data.reference import calibration_rows, published_settings, verification_rows
from slicepilot.training.studies.study import Finding, Holds, Values, read

from .samples import METRICS, key

NICE_CAUSE = (
    "Nice ranks threads inside a cpu cgroup and does nothing between pods (measured: benchmarks/nice_between_pods). "
    "Runs of a setting differ by some 12 Mbit/s in the study; the interval of 15 over 7 in its release has 1 in it."
)
NICE_PAIRS = ((14, 6), (15, 7), (16, 8), (23, 17), (24, 20), (25, 18), (26, 21))
"""Settings with nice and without it, all else equal, of which both are printed."""


def _read(values: Values, metric: str, *wanted: tuple[int, str]) -> list[float]:
    """Figures of experiments and groups: mean throughput, median latency."""
    statistic = "mean" if metric == "throughput" else "median"
    return read(values, *(key(number, group, metric, statistic) for number, group in wanted))


def _listed(numbers: Sequence[int], values: Sequence[float], unit: str) -> str:
    return ", ".join(f"{number}: {value:.0f}" for number, value in zip(numbers, values, strict=True)) + f" {unit}"


def _rising(numbers: Sequence[int], group: str, metric: str, values: Values) -> tuple[bool, str]:
    """Whether a figure rises over experiments in this order."""
    figures = _read(values, metric, *((number, group) for number in numbers))
    rises = all(before < after for before, after in pairwise(figures))
    return rises, _listed(numbers, figures, f"{METRICS[metric]} ({group})")


def _both(*parts: Holds) -> Holds:
    """Several conditions at once."""

    def holds(values: Values) -> tuple[bool, str]:
        results = [part(values) for part in parts]
        return all(result[0] for result in results), "; ".join(result[1] for result in results)

    return holds


def _ratio(above: int, below: int, low: float, high: float, values: Values) -> tuple[bool, str]:
    """Whether the ratio of slice 1's throughput in two experiments is between two bounds."""
    numerator, denominator = _read(values, "throughput", (above, "slice1"), (below, "slice1"))
    ratio = numerator / denominator
    return low <= ratio <= high, f"{above} over {below}: {ratio:.3f} (slice1, throughput)"


def _nice_over_all(values: Values) -> tuple[bool, str]:
    """Whether the mean effect of nice over all pairs can be none."""
    ratios = []
    for with_nice, without in NICE_PAIRS:
        nice, plain = _read(values, "throughput", (with_nice, "slice1"), (without, "slice1"))
        ratios.append(math.log(nice / plain))
    spread = mean_interval(ratios)
    ratio, low, high = (math.exp(value) for value in (spread.value, spread.low, spread.high))
    return low <= 1.0 <= high, f"nice over none in {len(ratios)} pairs: {ratio:.3f} ({low:.3f} to {high:.3f})"


def _collapse(values: Values) -> tuple[bool, str]:
    [others] = _read(values, "throughput", (13, "others"))
    return others < 5.0, f"13: {others:.1f} Mbit/s (others)"


def _all_experiments(values: Values) -> dict[int, tuple[float, float]]:
    """Mean throughput of slice 1 and the others in all experiments with five slices that the study prints."""
    printed = {row.experiment for row in (*calibration_rows(), *verification_rows())}
    numbers = [s.experiment for s in published_settings() if s.active_slices == 5 and s.experiment in printed]
    figures = {number: _read(values, "throughput", (number, "slice1"), (number, "others")) for number in numbers}
    return {number: (slice1, others) for number, (slice1, others) in figures.items()}


def _no_best(values: Values) -> tuple[bool, str]:
    figures = _all_experiments(values)
    first = max(figures, key=lambda number: figures[number][0])
    most = max(figures, key=lambda number: figures[number][1])
    differ = first != most and figures[first][1] < 0.7 * figures[most][1]
    return differ, f"slice1 is best off in {first}, the others in {most}"


def _compromise(values: Values) -> tuple[bool, str]:
    figures = _all_experiments(values)
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
        "Over all settings, nice makes no difference.",
        "Slice 1's mean throughput with nice over that without, in the seven pairs of settings that differ by nice "
        "alone (14 and 6, 15 and 7, 16 and 8, 23 and 17, 24 and 20, 25 and 18, 26 and 21): the 95% interval of the "
        "geometric mean has 1 in it.",
        _nice_over_all,
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
