"""Settings of the source, and the queries that they make."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from slicepilot.configs import ConfigError, validate
from slicepilot.controller.telemetry.prometheus.config import PrometheusSpec, Queries, check_period, rows_of

from .sources import PERIOD_S, spec_of


def test_a_period_below_twice_the_scrape_interval_is_refused() -> None:
    queries = Queries.from_yaml("cadvisor")
    assert queries.scrape_interval_s == 15
    check_period(queries, 30.0)
    with pytest.raises(ConfigError, match=r"^control period = 29 s: expected 30 to 30, twice the scrape interval"):
        check_period(queries, 29.0)
    slow = spec_of("http://localhost:1", scrape_interval_s=30.0).loaded_queries()
    with pytest.raises(ConfigError, match=r"^scrape_interval_s = 30: expected at most 15"):
        check_period(slow, 30.0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"url": "ftp://a"}, r"url = 'ftp://a': expected http://HOST:PORT"),
        ({"url": "http://me:secret@a"}, "and no password"),
        ({"url": "https://a", "slices": {"s": {"pod": 'x"} or vector(1)'}}}, r"slices\.s\.pod"),
        ({"url": "https://a", "token_file": "relative"}, "token_file"),
        ({"url": "https://a", "headers": {"X-Scope-OrgID": "a\r\nb"}}, r"headers\.X-Scope-OrgID"),
        ({"url": "https://a", "headers": {"Content-Length": "7"}}, "Content-Length: the client sets it itself"),
        ({"url": "https://a", "headers": {"X-A": "1", "x-a": "2"}}, "X-A: given twice"),
        ({"url": "https://a", "headers": {"X-A": {"file": "relative"}}}, r"headers\.X-A"),
    ],
)
def test_settings_that_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        validate(PrometheusSpec, given, "node.yaml")


def test_an_empty_label_is_a_label_that_a_series_lacks() -> None:
    spec = spec_of("http://localhost:1", labels={"container": ""})
    query = "container_cpu_usage_seconds_total"
    slices = {"s1": {"namespace": "core", "pod": "upf-1", "container": "", "ping": "10.45.0.1"}}
    rows = rows_of(spec.loaded_queries(), dataclasses.replace(spec, slices=slices), ("s1",), PERIOD_S)
    assert any(query in part and 'container=""' in part for row in rows for part in row.parts)
