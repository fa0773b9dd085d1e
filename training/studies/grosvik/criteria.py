"""The study's three properties of a policy, derived from figures by criteria that are stated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from slicepilot.data.reference import bottleneck_scenarios, published_mechanisms
from slicepilot.training.studies.study import Figure, Finding, Values, read

from .policies import AGENT, MOST_CLASSES, PACKET_MS

LOST_PCT = 0.01
"""Up to this share of its packets a class counts as losing none."""
WAIT_MS = 1.1 * PACKET_MS
"""Delay that even strict priority cannot avoid: a packet of another class being sent, plus 10% for measuring."""
LEAST_SHARE_PCT = 95.0

ISOLATION = (
    f"In all loads the critical class loses nothing (at most {LOST_PCT:g}% of its packets) and, in the steady state, "
    f"its 99th percentile of the delay is at most {WAIT_MS:.2f} ms, a packet's time on the link, longer while best "
    f"effort sends more than the link has left than while it does not."
)
REALLOCATION = (
    f"In all loads best effort carries, in the steady state, at least {LEAST_SHARE_PCT:g}% of what it offers or of "
    f"what the critical class leaves of the link, whichever is less."
)
SCALABILITY = (
    f"With {MOST_CLASSES} classes, under the heaviest load, the policy isolates where it does so with two, and "
    f"reallocates where it does so with two."
)
WEIGHTED_CAUSE = (
    "The kernel's HTB sends a class within its guarantee before all that others borrow, so that a critical class which "
    "sends evenly waits no longer. One that sends frames exceeds its guarantee for moments, and then waits (figures)."
)


def _lost(run: Mapping[str, float]) -> float:
    return max(run[f"critical/loss/{phase}"] for phase in ("on", "off", "change"))


def _longer(run: Mapping[str, float]) -> float:
    return run["critical/delay-p99/on"] - run["critical/delay-p99/off"]


def _share(run: Mapping[str, float]) -> float:
    return min(run[f"best-effort/share/{phase}"] for phase in ("on", "off"))


def isolates(run: Mapping[str, float]) -> bool | None:
    """Whether the critical class is isolated by the figures of a run; None where some are missing."""
    try:
        return _lost(run) <= LOST_PCT and _longer(run) <= WAIT_MS
    except KeyError:
        return None


def reallocates(run: Mapping[str, float]) -> bool | None:
    """Whether best effort gets the remaining rate, by the figures of a run; None where some are missing."""
    try:
        return _share(run) >= LEAST_SHARE_PCT
    except KeyError:
        return None


def most_classes(policy: str, by_number: Mapping[int, Mapping[str, float]]) -> Iterator[tuple[str, Figure]]:
    """The largest number of classes up to which a policy has the properties that it has with the smallest."""
    numbers = sorted(by_number)
    properties = {number: (isolates(by_number[number]), reallocates(by_number[number])) for number in numbers}
    same = [
        number for number in numbers if all(properties[n] == properties[numbers[0]] for n in numbers if n <= number)
    ]
    yield f"{policy}/classes", Figure(float(same[-1]))


def _isolation(policy: str, values: Values) -> tuple[bool, str]:
    cells = _cells(policy, values)
    lost, longer = max(map(_lost, cells.values())), {number: _longer(cell) for number, cell in cells.items()}
    worst = max(longer, key=lambda number: longer[number])
    text = f"critical loses at most {lost:.2f}%, its delay grows by at most {longer[worst]:.2f} ms (load {worst})"
    framed = {phase: values.get(f"{policy}/frames/critical/delay-p99/{phase}") for phase in ("on", "off")}
    if framed["on"] and framed["off"]:
        text += f"; in frames by {framed['on'].value - framed['off'].value:.2f} ms"
    return all(map(isolates, cells.values())), text


def _reallocation(policy: str, values: Values) -> tuple[bool, str]:
    shares = {number: _share(cell) for number, cell in _cells(policy, values).items()}
    worst = min(shares, key=lambda number: shares[number])
    text = f"best effort carries at least {shares[worst]:.1f}% of what is left (load {worst})"
    return shares[worst] >= LEAST_SHARE_PCT, text


def _scalability(policy: str, values: Values) -> tuple[bool, str]:
    [classes] = read(values, f"{policy}/classes")
    return classes >= MOST_CLASSES, f"{classes:.0f} classes"


def _cells(policy: str, values: Values) -> dict[int, dict[str, float]]:
    """Figures of a policy by load; raises KeyError without any."""
    result: dict[int, dict[str, float]] = {}
    for load in bottleneck_scenarios():
        prefix = f"{policy}/{load.scenario}/"
        own = {key.removeprefix(prefix): each.value for key, each in values.items() if key.startswith(prefix)}
        if own:
            result[load.scenario] = own
    if not result:
        raise KeyError(policy)
    return result


PROPERTIES = {
    "performance isolation": (ISOLATION, _isolation),
    "resource reallocation": (REALLOCATION, _reallocation),
    "scalability": (SCALABILITY, _scalability),
}


def _findings() -> Iterator[Finding]:
    """Three of each policy of the study, with its verdict, and three of the agent, which has none in print."""
    for row in published_mechanisms():
        serves = row.classes is None or row.classes >= MOST_CLASSES
        verdicts = (row.performance_isolation, row.resource_reallocation, serves)
        for (name, (criterion, holds)), published in zip(PROPERTIES.items(), verdicts, strict=True):
            cause = WEIGHTED_CAUSE if row.policy == "bandwidth" and holds is _isolation else ""
            yield Finding(f"{row.policy}: {name}", criterion, partial(holds, row.policy), published, cause)
    for name, (criterion, holds) in PROPERTIES.items():
        yield Finding(f"{AGENT}, an agent: {name}", criterion, partial(holds, AGENT))


FINDINGS = tuple(_findings())
