"""What the agent reports to the process that serves metrics, and the agent's own metrics.

Names follow those of a controller (`slicepilot.controller.publisher.metrics`). Labels ``loop``, ``sliceset``
and ``sliceset_namespace`` say which loop a figure is of: ``namespace`` and ``pod`` are the scrape target's, which here
is the agent's own pod.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

Row = tuple[Sequence[str], float]
LOOP_LABELS = ("loop", "sliceset", "sliceset_namespace")
PREFIX = "slicepilot_agent_"


@dataclass(frozen=True)
class LoopFacts:
    """A loop, as its agent knows it.

    Attributes:
        loop: its name on the node, as for `slicepilot explain --name`.
        sliceset, sliceset_namespace: its SliceSet.
        socket: of its publisher's metrics; empty while it does not run.
        starts, failures: how often it was started; how often it ended unexpectedly or could not be started.
    """

    loop: str
    sliceset: str
    sliceset_namespace: str
    socket: str = ""
    starts: int = 0
    failures: int = 0

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.loop, self.sliceset, self.sliceset_namespace)


@dataclass(frozen=True)
class AgentFacts:
    """An agent's own figures.

    Attributes:
        node, version: its node's name, its own version.
        started_s, time_s: its start, and the time of these figures, since the epoch.
        lease_held, sums_up: whether it acts for the node, and sums up for all nodes.
        requests: requests to the API server by verb, status (0: no answer) and count.
        slice_sets: SliceSets with pods here, by the reason of their condition Ready.
        heard_s: time of the last answer or event of each list at the API server, since the epoch.
    """

    node: str
    version: str
    started_s: float
    time_s: float
    lease_held: bool = False
    sums_up: bool = False
    requests: tuple[tuple[str, int, int], ...] = ()
    slice_sets: Mapping[str, int] = field(default_factory=dict)
    heard_s: Mapping[str, float] = field(default_factory=dict)
    loops: tuple[LoopFacts, ...] = ()

    def message(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def read(message: bytes) -> AgentFacts:
    """The facts of a message; raises ValueError, TypeError or KeyError."""
    document: dict[str, Any] = json.loads(message)
    requests = tuple((str(verb), int(status), int(count)) for verb, status, count in document.pop("requests"))
    loops = tuple(LoopFacts(**item) for item in document.pop("loops"))
    return AgentFacts(**document, requests=requests, loops=loops)


def agent_metrics(facts: AgentFacts, served: set[str], cpu_s: float) -> Iterator[Metric]:
    """The agent's metrics.

    Args:
        facts: the newest.
        served: loops whose own metrics are on the page.
        cpu_s: CPU time of the process that serves.
    """
    yield _gauge("info", "The agent.", ("node", "version"), [((facts.node, facts.version), 1)])
    yield _gauge("start_time_seconds", "Its start since the epoch.", (), [((), facts.started_s)])
    yield _gauge("told_timestamp_seconds", "Time of these figures, since the epoch.", (), [((), facts.time_s)])
    yield _gauge("lease_held", "1 while it acts for its node.", (), [((), facts.lease_held)])
    yield _gauge("sums_up", "1 while it sums up the status of all nodes.", (), [((), facts.sums_up)])
    yield _counter(
        "api_requests",
        "Requests to the API server by verb and status; code 0: no answer.",
        ("verb", "code"),
        [((verb, str(status)), count) for verb, status, count in facts.requests],
    )
    text = "SliceSets with pods on this node, by the reason of their condition Ready."
    yield _gauge("slicesets", text, ("reason",), [((key,), count) for key, count in sorted(facts.slice_sets.items())])
    text = "Last answer or event of a list at the API server, since the epoch."
    yield _gauge("heard_timestamp_seconds", text, ("list",), [((key,), at_s) for key, at_s in facts.heard_s.items()])
    text = "1 where a loop runs and its metrics are on this page."
    yield _gauge("loop_up", text, LOOP_LABELS, [(loop.labels, loop.loop in served) for loop in facts.loops])
    yield _counter(
        "loop_starts", "Starts of a loop.", LOOP_LABELS, [(loop.labels, loop.starts) for loop in facts.loops]
    )
    text = "Unexpected ends of a loop, and starts that failed."
    yield _counter("loop_failures", text, LOOP_LABELS, [(loop.labels, loop.failures) for loop in facts.loops])
    yield _counter("metrics_cpu_seconds", "CPU time of the process that serves this page.", (), [((), cpu_s)])


def _gauge(name: str, text: str, labels: Sequence[str], rows: Iterable[Row]) -> Metric:
    return _filled(GaugeMetricFamily(f"{PREFIX}{name}", text, labels=labels), rows)


def _counter(name: str, text: str, labels: Sequence[str], rows: Iterable[Row]) -> Metric:
    return _filled(CounterMetricFamily(f"{PREFIX}{name}", text, labels=labels), rows)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, rows: Iterable[Row]) -> Metric:
    for values, value in rows:
        family.add_metric(list(values), float(value))
    return family
