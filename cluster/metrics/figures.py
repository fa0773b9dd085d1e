"""What the agent says of itself to the process that serves metrics, and the metrics that become of it.

Names follow those of a controller (`slicepilot.controller.publisher.metrics`). Labels ``loop``, ``sliceset``
and ``sliceset_namespace`` say whose a figure is: ``namespace`` and ``pod`` are what a Prometheus server that finds pods
calls the target, here the agent's own pod.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

Row = tuple[Sequence[str], float]
WHOSE = ("loop", "sliceset", "sliceset_namespace")
PREFIX = "slicepilot_agent_"
"""Of the agent's own names."""


@dataclass(frozen=True)
class LoopFacts:
    """A loop, as its agent knows it.

    Attributes:
        loop: its name on the node: `slicepilot explain --name` takes it.
        sliceset, sliceset_namespace: whose it is.
        socket: where its publisher serves metrics; empty while it does not run.
        starts, failures: how often it was started, and ended by itself or could not be started.
    """

    loop: str
    sliceset: str
    sliceset_namespace: str
    socket: str = ""
    starts: int = 0
    failures: int = 0

    @property
    def labels(self) -> tuple[str, ...]:
        """Values of `WHOSE`."""
        return (self.loop, self.sliceset, self.sliceset_namespace)


@dataclass(frozen=True)
class ListFacts:
    """A list at the API server: how often it was listed and watched, and when it was last heard of, since the epoch."""

    name: str
    lists: int
    watches: int
    heard_s: float


@dataclass(frozen=True)
class AgentFacts:
    """All that an agent says.

    Attributes:
        node, version: its node's name, its own version.
        started_s, time_s: its start, and when it said this, since the epoch.
        lease_held, sums_up: whether it acts for the node, and sums up for all nodes.
        requests: answers of the API server by verb and status; 0: none came.
        slice_sets: SliceSets with pods here, by the reason of their condition Ready.
    """

    node: str
    version: str
    started_s: float
    time_s: float
    lease_held: bool = False
    sums_up: bool = False
    requests: tuple[tuple[str, int, int], ...] = ()
    slice_sets: Mapping[str, int] = field(default_factory=dict)
    lists: tuple[ListFacts, ...] = ()
    loops: tuple[LoopFacts, ...] = ()

    def message(self) -> bytes:
        """For `read`."""
        return json.dumps(asdict(self)).encode()


def read(message: bytes) -> AgentFacts:
    """What `AgentFacts.message` made; raises ValueError, TypeError or KeyError."""
    found: dict[str, Any] = json.loads(message)
    requests = tuple((str(verb), int(status), int(count)) for verb, status, count in found.pop("requests"))
    lists = tuple(ListFacts(**one) for one in found.pop("lists"))
    loops = tuple(LoopFacts(**one) for one in found.pop("loops"))
    return AgentFacts(**found, requests=requests, lists=lists, loops=loops)


def exposed(facts: AgentFacts, served: Mapping[str, bool], own: Callable[[], float]) -> str:
    """In Prometheus' text format.

    Args:
        facts: the newest.
        served: by loop, whether its metrics were had.
        own: CPU time of the process that serves, s.
    """
    return generate_latest(_Families(list(_families(facts, served, own())))).decode()


class _Families(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _families(facts: AgentFacts, served: Mapping[str, bool], cpu_s: float) -> Iterator[Metric]:
    yield _gauge("info", "The agent.", ("node", "version"), [((facts.node, facts.version), 1)])
    yield _gauge("start_time_seconds", "Its start since the epoch.", (), [((), facts.started_s)])
    yield _gauge(
        "told_timestamp_seconds", "When it last said these figures, since the epoch.", (), [((), facts.time_s)]
    )
    yield _gauge("lease_held", "1 while it acts for its node.", (), [((), facts.lease_held)])
    yield _gauge("sums_up", "1 while it sums up what all nodes say.", (), [((), facts.sums_up)])
    yield _counter(
        "api_requests",
        "Requests to the API server by verb and status; code 0: no answer came.",
        ("verb", "code"),
        [((verb, str(status)), count) for verb, status, count in facts.requests],
    )
    yield _gauge(
        "slicesets",
        "SliceSets that this node is one of the meant for, by the reason of their condition Ready.",
        ("reason",),
        [((reason,), count) for reason, count in sorted(facts.slice_sets.items())],
    )
    text = "Last answer or event of a list at the API server, since the epoch."
    yield _gauge("heard_timestamp_seconds", text, ("list",), [((one.name,), one.heard_s) for one in facts.lists])
    yield _counter("lists", "Pages listed.", ("list",), [((one.name,), one.lists) for one in facts.lists])
    yield _counter("watches", "Watches begun.", ("list",), [((one.name,), one.watches) for one in facts.lists])
    loops = facts.loops
    text = "1 where a loop runs and its metrics are among these."
    yield _gauge("loop_up", text, WHOSE, [(one.labels, served.get(one.loop, False)) for one in loops])
    yield _counter("loop_starts", "Starts of a loop.", WHOSE, [(one.labels, one.starts) for one in loops])
    text = "Ends of a loop that nobody asked for, and starts that failed."
    yield _counter("loop_failures", text, WHOSE, [(one.labels, one.failures) for one in loops])
    yield _counter("metrics_cpu_seconds", "CPU time of the process that serves these.", (), [((), cpu_s)])


def _gauge(name: str, text: str, labels: Sequence[str], rows: Iterable[Row]) -> Metric:
    return _filled(GaugeMetricFamily(f"{PREFIX}{name}", text, labels=labels), rows)


def _counter(name: str, text: str, labels: Sequence[str], rows: Iterable[Row]) -> Metric:
    return _filled(CounterMetricFamily(f"{PREFIX}{name}", text, labels=labels), rows)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, rows: Iterable[Row]) -> Metric:
    for values, value in rows:
        family.add_metric(list(values), float(value))
    return family
