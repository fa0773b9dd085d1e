"""The conclusions of Mishra and Pandey (2026), with criteria on figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


def _rows(what: str, keys: Mapping[str, str], test: Callable[[list[float]], bool]) -> Holds:
    """Whether a test holds of the figures of some rows, whose keys are given by the names that the text has."""

    def holds(values: Values) -> tuple[bool, str]:
        figures = read(values, *keys.values())
        return test(figures), f"{what} {_listed(list(keys), figures)}"

    return holds


def _delays(name: str, statistic: str, player: str = "") -> dict[str, str]:
    return {load: delay_key(load, name, statistic, player) for load in LOADS}


def _latencies(kind: str, statistic: str, player: str = "") -> dict[str, str]:
    return {f"{kind} {load}": pfcp_key(load, kind, statistic, player) for load in LOADS}


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


def _slices(player: str, when: str) -> tuple[Finding, ...]:
    """The three questions about slices."""
    return (
        Finding(
            f"eMBB's delay is sensitive to load{when}.",
            "Its 99th percentile under the heavy load is at least 1.5 times that under the light load.",
            _rows("p99 of eMBB:", _delays("eMBB", "p99", player), lambda p99: p99[-1] / p99[0] >= 1.5),
            cause=SHARED_CAUSE,
        ),
        Finding(
            f"URLLC's delay is not sensitive to load{when}.",
            "Its 99th percentile under the heavy load is at most 1.25 times that under the light load.",
            _rows("p99 of URLLC:", _delays("URLLC", "p99", player), lambda p99: p99[-1] / p99[0] <= 1.25),
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
        _rows("p50 of eMBB:", _delays("eMBB", "p50"), lambda p50: all(a > b for a, b in pairwise(p50))),
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
        _rows("p99,", _latencies("modification", "p99"), lambda p99: max(p99) < BUDGET_US),
        cause=MACHINE_CAUSE,
    ),
    Finding(
        "The load of the data plane does not change how long a modification takes.",
        "The longest mean of the three loads is at most 1.5 times the shortest.",
        _rows("means,", _latencies("modification", "mean"), lambda means: max(means) <= 1.5 * min(means)),
        cause=MACHINE_CAUSE,
    ),
    Finding(
        "An establishment takes longer than a modification.",
        "Its mean is longer at each load.",
        _rows(
            "means,",
            _latencies("establishment", "mean") | _latencies("modification", "mean"),
            lambda means: all(a > b for a, b in zip(means[: len(LOADS)], means[len(LOADS) :], strict=True)),
        ),
        cause=ESTABLISHMENT_CAUSE,
    ),
    Finding(
        "An establishment is not inside 2 ms.",
        "Its 99th percentile is above 2 ms at each load.",
        _rows("p99,", _latencies("establishment", "p99"), lambda p99: min(p99) > BUDGET_US),
        cause=ESTABLISHMENT_CAUSE,
    ),
    *_slices(CONTROLLED, f" while {CONTROLLER} controls the slices"),
    Finding(
        f"PFCP stays inside 2 ms while {CONTROLLER} controls the slices.",
        "The 99th percentiles of establishment, modification and deletion are below 2 ms at each load.",
        _rows(
            "p99,",
            {name: key for kind in TRANSACTIONS for name, key in _latencies(kind, "p99", CONTROLLED).items()},
            lambda p99: max(p99) < BUDGET_US,
        ),
        cause=MACHINE_CAUSE,
    ),
)
