"""The conclusions of Mishra and Pandey (2026), with criteria on figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from slicepilot.training.studies.study import Finding, Holds, Values, read

from .samples import CONTROLLED, CONTROLLER, LOADS, SLICES, TRANSACTIONS, delay_key, pfcp_key

BUDGET_US = 2000.0
"""Assumed by orchestrators that learn, as the study has it: its line at 2 ms."""

ESTABLISHMENT_CAUSE = (
    "The study calls a round trip an establishment where it takes more than 200 us, and times all messages of "
    "Open5GS's SMF. The testbed tells types by the messages' headers, and its UPF makes a session in less time."
)
MACHINE_CAUSE = (
    "SMF and UPFs wait for a CPU where other processes of the machine have it: rows idle/pfcp are the same "
    "transactions without any load of the study."
)
IDLE_CAUSE = (
    "On two CPUs that the load keeps awake no idle state is left that more packets would keep a UPF out of; waiting "
    "for a CPU takes its place."
)
SHARED_CAUSE = (
    "The study's 20 cores leave each UPF a core of its own; here load, UPFs and measurement share two CPUs, so that "
    "slices wait for each other."
)


def _listed(names: Sequence[str], values: Sequence[float]) -> str:
    return ", ".join(f"{name} {value:.0f}" for name, value in zip(names, values, strict=True)) + " us"


def _heavy_over_light(slice_name: str, low: float, high: float, player: str) -> Holds:
    """Whether a slice's 99th percentile under the heavy load over that under the light load is between two bounds."""

    def holds(values: Values) -> tuple[bool, str]:
        figures = read(values, *(delay_key(load, slice_name, "p99", player) for load in LOADS))
        return low <= figures[-1] / figures[0] <= high, f"p99 of {slice_name}: {_listed(LOADS, figures)}"

    return holds


def _wide_tail(player: str) -> Holds:
    """Whether mMTC's 99th percentile is 20 medians at each load, more of them than in any other slice."""

    def holds(values: Values) -> tuple[bool, str]:
        texts, wide = [], True
        for load in LOADS:
            tails, medians = (read(values, *(delay_key(load, n, s, player) for n in SLICES)) for s in ("p99", "p50"))
            ratios = {name: tail / middle for name, tail, middle in zip(SLICES, tails, medians, strict=True)}
            wide = wide and ratios["mMTC"] == max(ratios.values()) and ratios["mMTC"] >= 20.0
            texts.append(f"{load}: " + ", ".join(f"{name} {value:.0f}" for name, value in ratios.items()))
        return wide, f"p99 over p50, {'; '.join(texts)}"

    return holds


def _falls(values: Values) -> tuple[bool, str]:
    figures = read(values, *(delay_key(load, "eMBB", "p50") for load in LOADS))
    return all(a > b for a, b in pairwise(figures)), f"p50 of eMBB: {_listed(LOADS, figures)}"


def _order(statistic: str, names: Sequence[str], near: float = 1.0) -> Holds:
    """Whether a statistic rises over slices in this order at each load, where less than a ratio counts as equal."""

    def holds(values: Values) -> tuple[bool, str]:
        texts, rising = [], True
        for load in LOADS:
            figures = read(values, *(delay_key(load, name, statistic) for name in names))
            rising = rising and all(a < near * b for a, b in pairwise(figures))
            texts.append(f"{load}: {_listed(names, figures)}")
        return rising, f"{statistic}, {'; '.join(texts)}"

    return holds


def _within_budget(kinds: Sequence[str], player: str) -> Holds:
    """Whether 99% of some PFCP transactions take less than 2 ms at each load."""

    def holds(values: Values) -> tuple[bool, str]:
        cells = [(load, kind) for kind in kinds for load in LOADS]
        figures = read(values, *(pfcp_key(load, kind, "p99", player) for load, kind in cells))
        names = [f"{kind} {load}" for load, kind in cells]
        return all(value < BUDGET_US for value in figures), f"p99, {_listed(names, figures)}"

    return holds


def _steady(values: Values) -> tuple[bool, str]:
    figures = read(values, *(pfcp_key(load, "modification", "mean") for load in LOADS))
    return max(figures) <= 1.5 * min(figures), f"mean of a modification: {_listed(LOADS, figures)}"


def _establishment_longer(values: Values) -> tuple[bool, str]:
    cells = [(load, kind) for load in LOADS for kind in ("establishment", "modification")]
    figures = read(values, *(pfcp_key(load, kind, "mean") for load, kind in cells))
    longer = all(figures[i] > figures[i + 1] for i in range(0, len(figures), 2))
    return longer, f"means, {_listed([f'{kind} {load}' for load, kind in cells], figures)}"


def _establishment_beyond(values: Values) -> tuple[bool, str]:
    figures = read(values, *(pfcp_key(load, "establishment", "p99") for load in LOADS))
    return min(figures) > BUDGET_US, f"p99 of an establishment: {_listed(LOADS, figures)}"


def _slices(player: str, when: str) -> tuple[Finding, ...]:
    """The three questions about slices."""
    return (
        Finding(
            f"eMBB's delay is sensitive to load{when}.",
            "Its 99th percentile under the heavy load is at least 1.5 times that under the light load.",
            _heavy_over_light("eMBB", 1.5, math.inf, player),
            cause=SHARED_CAUSE,
        ),
        Finding(
            f"URLLC's delay is not sensitive to load{when}.",
            "Its 99th percentile under the heavy load is at most 1.25 times that under the light load.",
            _heavy_over_light("URLLC", 0.0, 1.25, player),
            cause=SHARED_CAUSE,
        ),
        Finding(
            f"mMTC's tail is wide{when}.",
            "Its 99th percentile is at least 20 times its median at each load, the widest of the three slices.",
            _wide_tail(player),
            cause=SHARED_CAUSE,
        ),
    )


FINDINGS = (
    *_slices("", ""),
    Finding(
        "The more packets, the shorter eMBB's median.",
        "eMBB's median falls from the light by the medium to the heavy load.",
        _falls,
        cause=IDLE_CAUSE,
    ),
    Finding(
        "The busiest UPF has the shortest median, the idlest the longest.",
        "At each load the median rises from mMTC by eMBB to URLLC.",
        _order("p50", ("mMTC", "eMBB", "URLLC")),
        cause=IDLE_CAUSE,
    ),
    Finding(
        "URLLC has the shortest tail, mMTC the longest.",
        "At each load the 99th percentile rises from URLLC by eMBB to mMTC; up to 15% count as equal, since of 3,624 "
        "packets 36 are beyond it.",
        _order("p99", ("URLLC", "eMBB", "mMTC"), 1.15),
        cause=SHARED_CAUSE,
    ),
    Finding(
        "A PFCP session modification is inside 2 ms whatever the load.",
        "Its 99th percentile is below 2 ms at each load.",
        _within_budget(("modification",), ""),
        cause=MACHINE_CAUSE,
    ),
    Finding(
        "The load of the data plane does not change how long a modification takes.",
        "The longest mean of the three loads is at most 1.5 times the shortest.",
        _steady,
        cause=MACHINE_CAUSE,
    ),
    Finding(
        "An establishment takes longer than a modification.",
        "Its mean is longer at each load.",
        _establishment_longer,
        cause=ESTABLISHMENT_CAUSE,
    ),
    Finding(
        "An establishment is not inside 2 ms.",
        "Its 99th percentile is above 2 ms at each load.",
        _establishment_beyond,
        cause=ESTABLISHMENT_CAUSE,
    ),
    *_slices(CONTROLLED, f" while {CONTROLLER} controls the slices"),
    Finding(
        f"PFCP stays inside 2 ms while {CONTROLLER} controls the slices.",
        "The 99th percentiles of establishment, modification and deletion are below 2 ms at each load.",
        _within_budget(TRANSACTIONS, CONTROLLED),
        cause=MACHINE_CAUSE,
    ),
)
