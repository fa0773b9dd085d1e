"""The metrics pages of several publishers, merged into one in Prometheus' text format.

One page a node, because discovery cannot list a pod's loops: Prometheus knows the ports that a pod declares, not the
loops that come and go behind them, and has no way to learn whose a loop's port is now.

A page is read by the client library's parser and written anew from what was read: so it is valid whatever a publisher
writes. Each sample gets labels that say which loop it is of; a page that has these labels itself, or names of the
agent's own metrics, is refused as a whole.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Mapping

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from .figures import PREFIX

TYPES = {"counter", "gauge", "histogram", "summary", "unknown"}
PARTS = ("_bucket", "_sum", "_count")
"""Suffixes of a histogram's samples: a metric of such a name would be taken for a part of another metric."""
NAME, LABEL = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*"), re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
BOUNDS = ("le", "quantile")
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")  # readers differ in which of them end a line


class MergedPages(Collector):
    """Merges pages; render it with `prometheus_client.generate_latest`."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}
        self._types: dict[str, collections.Counter[str]] = {}

    def add(self, text: str, labels: Mapping[str, str]) -> None:
        """Add all samples of a publisher's page, or none.

        Args:
            text: the page.
            labels: that its samples get, and may not have.

        Raises:
            ValueError: it is not valid, or claims to be another's.
        """
        if CONTROL.search(text):
            raise ValueError("a control character in a metrics page")
        metrics = list(text_string_to_metric_families(text))
        for metric in metrics:
            _check(metric, labels)
        for metric in metrics:
            name = f"{metric.name}_total" if metric.type == "counter" else metric.name
            merged = self._metrics.setdefault(name, Metric(metric.name, metric.documentation, metric.type))
            self._types.setdefault(name, collections.Counter())[metric.type] += 1
            merged.samples += [
                Sample(sample.name, {**sample.labels, **labels}, sample.value) for sample in metric.samples
            ]

    def collect(self) -> Iterable[Metric]:
        """All metrics. The type is what most publishers say, so that a single publisher cannot change it for the
        others."""
        for name, metric in self._metrics.items():
            metric.type = self._types[name].most_common(1)[0][0]
            yield metric


def _check(metric: Metric, labels: Mapping[str, str]) -> None:
    """Raises ValueError."""
    if not NAME.fullmatch(metric.name) or metric.type not in TYPES or metric.name.endswith(PARTS):
        raise ValueError(f"not a metric: {metric.name!r:.100} of type {metric.type!r:.20}")
    if metric.name.startswith(PREFIX):
        raise ValueError(f"a metric of the agent's own: {metric.name!r:.100}")
    for sample in metric.samples:
        if not sample.labels.keys().isdisjoint(labels) or not all(map(LABEL.fullmatch, sample.labels)):
            raise ValueError(f"labels of {sample.name!r:.100}")
        for bound in BOUNDS:
            float(sample.labels.get(bound, 0))
