"""Servers that speak the same API, with limits and remarks of their own."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest

from slicepilot.configs import FailureError
from slicepilot.controller.telemetry.prometheus.client import Client
from slicepilot.controller.telemetry.prometheus.config import rows_of
from slicepilot.controller.telemetry.prometheus.source import PrometheusSource

from .servers import compatible
from .sources import PERIOD_S, reported, source_of, spec_of, until, valid

MANY = tuple(f"upf-{number}" for number in range(24))
UNSPLIT_BYTES = 30_000


@pytest.mark.parametrize(
    "habits",
    [
        {"most_query_bytes": 1 << 14},
        {"most_query_bytes": 3000},
        {"most_query_bytes": 3000, "status": 400},
        {"most_query_bytes": 3000, "status": 413},
        {"get_alone": True, "most_url_bytes": 8192},
        {"get_alone": True, "most_url_bytes": 4000},
    ],
)
def test_a_query_that_is_too_long_for_a_server_is_split(habits: dict[str, Any]) -> None:
    """VictoriaMetrics/VictoriaMetrics#5875: 24 slices in one query are more than 16 KiB."""
    with compatible(**habits) as (address, server), source_of(spec_of(f"http://{address}", MANY)) as source:
        assert valid(source) == [True] * 24
        assert source.check() == []
        assert max(server.queries) < UNSPLIT_BYTES
        assert len(server.queries) > len(source.queries.slices)


def test_a_query_of_one_slice_that_is_too_long_is_reported_with_the_servers_words() -> None:
    with compatible(most_query_bytes=50) as (address, _), pytest.raises(FailureError) as caught:
        PrometheusSource(spec_of(f"http://{address}", MANY), tuple(f"s{n}" for n in range(1, 25)), PERIOD_S)
    assert re.search(r"offered_mbps: answers 422: too long query; got \d+ bytes; mustn't exceed 50$", str(caught.value))


def test_a_range_of_too_many_points_is_split() -> None:
    spec = spec_of("http://localhost:1", MANY[:3])
    rows = rows_of(spec.loaded_queries(), spec, tuple(spec.slices), PERIOD_S)
    times_s = 1_700_000_000 + 15 * np.arange(1001, dtype=np.float64)
    with compatible(most_points=300) as (address, server):
        reading = Client(dataclasses.replace(spec, url=f"http://{address}"), {}).over(rows[0], 60.0, times_s)
        assert reading.values.shape == (1001, 3)
        assert np.isfinite(reading.values).all()
        np.testing.assert_allclose(reading.newest_s, np.repeat(times_s[:, None] - 2, 3, axis=1))
        assert reading.why == (None,) * 3
        assert len(server.queries) == 4


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            {"warnings": ["No StoreAPIs matched\x1b[2J", "receive series: rpc error"]},
            r"No StoreAPIs matched\?\[2J; rec",
        ),
        ({"warnings": "one text"}, "one text"),
        ({"isPartial": True}, "isPartial"),
    ],
)
def test_a_partial_answer_is_counted_reported_and_not_acted_on(more: dict[str, Any], words: str) -> None:
    """thanos-io/thanos#622: what a store that is away had is missing in sums."""
    with compatible() as (address, server), source_of(spec_of(f"http://{address}", MANY[:2])) as source:
        assert valid(source) == [True, True]
        assert source.counts["prometheus_partial_answers"] == 0
        server.more, server.partial_rows = more, ("quantile(0.99",)
        lines = until(lambda: reported(source, f"delay_p99_us: a partial answer: {words}"))
        assert all(line.isprintable() for line in lines)
        assert valid(source) == [False, False]
        until(lambda: source.counts["prometheus_partial_answers"] >= 2)
        server.more = {}
        until(lambda: valid(source) == [True, True] and source.check() == [])
        server.more, server.partial_rows = more, ("",)
        with pytest.raises(FailureError, match=words):
            PrometheusSource(spec_of(f"http://{address}"), ("s1",), PERIOD_S)


def test_remarks_on_queries_are_counted_and_shown_and_the_figures_used() -> None:
    with (
        compatible(more={"infos": ["PromQL info: metric might not be a counter\x00"]}) as (address, _),
        source_of(spec_of(f"http://{address}")) as source,
    ):
        assert valid(source) == [True]
        assert source.check() == []
        assert source.counts["prometheus_remarked_answers"] >= len(source.queries.slices)
        assert "prometheus offered_mbps: PromQL info: metric might not be a counter?" in source.remarks
