"""Metrics show what the ring holds, in both formats of Prometheus."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_plain
from prometheus_client.registry import Collector

from slicepilot.controller.contracts.reasons import Reason
from slicepilot.controller.publisher.counts import DelayCounter, Totals
from slicepilot.controller.publisher.metrics import DELAY_EDGES_NS, Metrics
from slicepilot.controller.publisher.pages import metrics_page
from slicepilot.controller.publisher.status import Status
from slicepilot.controller.record.ring import APPLY_ERROR, LATE, UNUSABLE
from slicepilot.controller.telemetry.histogram import edges_ns
from slicepilot.controller.telemetry.layout import BUCKETS
from slicepilot.env.backend import Context
from slicepilot.env.promises import PromiseMeter
from slicepilot.env.slices import Promises, SliceSet

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Seen:
    """What a publisher would have of a controller."""

    def __init__(self, controller: Any) -> None:
        self.reader = controller.reader()
        self.status, self.totals = Status(controller.count), Totals(controller.count)
        self.metrics = Metrics(self.status, self.totals)
        self.look()

    def look(self) -> None:
        self.totals.add(self.status.update(self.reader), self.status.description)

    def families(self) -> dict[str, Metric]:
        return {family.name: family for family in self.metrics.collect()}

    def value(self, name: str, **labels: str) -> float:
        for family in self.metrics.collect():
            for sample in family.samples:
                if sample.name == f"slicepilot_{name}" and sample.labels == labels:
                    return float(sample.value)
        raise AssertionError(f"no sample {name} {labels}")


@pytest.fixture
def seen(controller: Any) -> Seen:
    return Seen(controller)


def test_the_delay_histogram_is_the_probes(controller: Any, seen: Seen) -> None:
    random = np.random.default_rng(1)
    delays_ns = np.exp(random.normal(math.log(2e6), 1.5, 5000))
    at = np.searchsorted(edges_ns(), delays_ns, side="right") - 1
    controller.counts[1] = np.bincount(at, minlength=BUCKETS)
    controller.ring.delays(controller.counts)
    seen.look()
    for edge in DELAY_EDGES_NS:
        count = seen.value("slice_delay_seconds_bucket", slice="slice2", le=str(edge / 1e9))
        assert count == (delays_ns < edge).sum()
    assert seen.value("slice_delay_seconds_bucket", slice="slice2", le="+Inf") == 5000
    assert seen.value("slice_delay_seconds_count", slice="slice2") == 5000
    assert seen.value("slice_delay_seconds_sum", slice="slice2") == pytest.approx(delays_ns.sum() / 1e9, rel=0.03)
    assert seen.value("slice_delay_seconds_count", slice="slice1") == 0


@given(st.lists(st.lists(st.integers(0, 1 << 30), min_size=2, max_size=2), min_size=1, max_size=8), st.integers(0, 7))
def test_delay_counts_never_fall(steps: list[list[int]], restart_at: int) -> None:
    """The probe wraps at 32 bits and may begin anew; no packet is lost or counted twice."""
    counter, probe = DelayCounter(1), np.full((1, BUCKETS), (1 << 32) - 5, np.uint64)
    counter.update(probe)
    base = counter.total.copy()
    expected = np.zeros(2, np.int64)
    for number, step in enumerate(steps):
        if number == restart_at:
            probe = np.zeros_like(probe)
        probe = probe.copy()
        probe[0, :2] = (probe[0, :2] + np.array(step, np.uint64)) % (1 << 32)
        new = counter.update(probe)
        assert (new >= 0).all()
        expected += step
    gained = (counter.total - base)[0, :2]
    if restart_at >= len(steps):
        assert gained.tolist() == expected.tolist()
    else:
        assert (gained >= 0).all()


def test_a_probe_that_begins_anew_is_counted_from_zero() -> None:
    counter = DelayCounter(2)
    first = np.zeros((2, BUCKETS), np.uint64)
    first[:, 7] = 1000
    assert counter.update(first).sum() == 0
    again = np.zeros_like(first)
    again[0, 7], again[1, 7] = 3, 1001
    assert counter.update(again)[:, 7].tolist() == [3, 1]
    assert counter.total[:, 7].tolist() == [1003, 1001]


def test_decisions_reasons_and_stages_are_counted_tick_by_tick(controller: Any, seen: Seen) -> None:
    controller.tick(10)
    controller.tick(3, flags=LATE)
    controller.tick(2, flags=LATE | UNUSABLE)
    controller.tick(1, flags=APPLY_ERROR, mode=2)
    controller.reasons[2] = Reason.SLEW.bit | Reason.SLA_FLOOR.bit
    controller.tick(4, node_reasons=Reason.PAUSED.bit)
    seen.look()
    counted = {
        outcome: seen.value("decisions_total", mode="live", outcome=outcome) for outcome in ("ok", "late", "unusable")
    }
    assert counted == {"ok": 14, "late": 3, "unusable": 2}
    assert seen.value("decisions_total", mode="canary", outcome="failed") == 1
    interventions = {
        (sample.labels["slice"], sample.labels["reason"], sample.labels["severity"]): sample.value
        for sample in seen.families()["slicepilot_guard_interventions"].samples
        if sample.value
    }
    assert interventions == {
        ("slice3", "slew", "info"): 4,
        ("slice3", "sla_floor", "severe"): 4,
        ("", "paused", "info"): 4,
    }
    assert seen.value("loop_stage_seconds_count", stage="total") == 20
    assert seen.value("loop_stage_seconds_sum", stage="total") == pytest.approx(20 * 100e-6)
    assert seen.value("loop_stage_seconds_bucket", stage="total", le=str(98304 / 1e9)) == 0
    assert seen.value("loop_stage_seconds_bucket", stage="total", le=str(131072 / 1e9)) == 20


def test_rates_add_up_to_bytes_and_cpu_time(controller: Any, seen: Seen) -> None:
    controller.telemetry.slices[0] = 80.0
    controller.telemetry.slices[5] = 500.0
    controller.tick(100)
    controller.telemetry.slices[0] = math.nan
    controller.tick(1)
    seen.look()
    assert seen.value("slice_offered_bytes_total", slice="slice1") == pytest.approx(1.0 * 80e6 / 8)
    assert seen.value("slice_carried_bytes_total", slice="slice1") == pytest.approx(1.01 * 40e6 / 8)
    assert seen.value("slice_cpu_seconds_total", slice="slice5") == pytest.approx(1.01 * 0.5)


def test_broken_promises_are_those_of_the_judge(controller: Any, seen: Seen) -> None:
    """Tick by tick, `PromiseMeter` comes to the same time."""
    slices = SliceSet.from_yaml("testbed-five")
    elements = np.ones(1, np.float32)
    context = Context(
        0.01 * elements, 2 * elements, 1000 * elements, Promises.of(slices), slices.column("upf_threads"), 1000
    )
    meter, random, broken_s = PromiseMeter(context), np.random.default_rng(2), np.zeros(5)
    bounds = context.promises.delay_bound_us[:, 0]
    for number in range(1, 701):
        offered = random.uniform(0, 80, 5).astype(np.float32)
        share = 1.0 if (number // 150) % 2 else 0.6
        controller.telemetry.slices[0, :, 0], controller.telemetry.slices[1, :, 0] = offered, share * offered
        controller.telemetry.slices[3, :, 0] = bounds * np.where(random.random(5) < 0.1, 1.5, 0.5)
        controller.tick()
        broken_s += 0.01 * meter.broken(controller.telemetry)[:, 0]
        if number % 37 == 0 or number == 700:
            seen.look()
    ours = seen.totals.broken_s
    either = [seen.value("slice_promise_broken_seconds_total", slice="slice1", promise=p) for p in ("delay", "rate")]
    assert either == pytest.approx(ours[:, 0].tolist())
    assert (ours > 0).all()
    assert (np.maximum(*ours) <= broken_s + 1e-6).all()
    assert (ours.sum(axis=0) >= broken_s - 1e-6).all()


@pytest.mark.parametrize("count", [1, 5, 64])
def test_both_formats_can_be_parsed_and_say_the_same(make: Callable[..., Any], count: int) -> None:
    controller = make(count)
    seen = Seen(controller)
    page = metrics_page(seen.metrics)
    controller.counts[:, 200] = 7
    controller.tick(30)
    seen.look()
    plain, plain_headers = page("text/plain; version=0.0.4")
    openmetrics, openmetrics_headers = page(OPENMETRICS)
    assert plain_headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert openmetrics_headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert openmetrics.endswith(b"# EOF\n")
    changing = {"slicepilot_heartbeat_age_seconds", "slicepilot_publisher_cpu_seconds_total"}
    first, second = (
        {(s.name, *sorted(s.labels.items())): s.value for family in parsed for s in family.samples}
        for parsed in (parse_plain(plain.decode()), parse_openmetrics(openmetrics.decode()))
    )
    assert first.keys() == second.keys()
    assert all(
        first[key] == second[key] or math.isnan(first[key])
        for key in first
        if key[0] not in changing and not key[0].startswith("process_")
    )
    assert sum(key[0] == "slicepilot_slice_delay_seconds_count" for key in first) == count


@given(
    st.text(max_size=80) | st.from_regex(r"application/openmetrics-text; ?version=[^,]{0,9}(;escaping=[a-z\r\n-]+)?")
)
def test_no_accept_header_makes_more_than_two_formats(accept: str) -> None:
    class Nothing(Collector):
        def collect(self) -> list[Metric]:
            return []

    body, headers = metrics_page(Nothing())(accept)
    assert (body, headers["Content-Type"].split(";")[0]) in {
        (b"", "text/plain"),
        (b"# EOF\n", "application/openmetrics-text"),
    }
