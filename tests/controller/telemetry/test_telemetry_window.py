"""What the programs make of counters and histograms: delays, rates, loss, backlog."""

from __future__ import annotations

import struct
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slicepilot.controller.telemetry.histogram import edges_ns, quantiles_us
from slicepilot.controller.telemetry.layout import AT_N6, BUCKETS, MARKS
from slicepilot.env.telemetry import Telemetry

from ...effort import examples

fast = settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
OFFERED, CARRIED, P50, P99, LOSS = range(5)


def window(bench: Any, end: bool = True) -> list[float]:
    """Rows of the only slice since the last call."""
    telemetry, now = Telemetry.empty(1), now_ns()
    bench.programs.window.read(now, telemetry, end)
    return [float(value) for value in telemetry.slices[:, 0, 0]]


def now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def test_buckets_are_narrow_and_without_gaps() -> None:
    edges = edges_ns()
    assert len(edges) == BUCKETS + 1
    assert edges[0] == 0
    assert edges[-1] > 100e9
    widths = np.diff(edges)
    assert (widths > 0).all()
    from_1_us = edges[:-1] >= 1000
    assert (widths[from_1_us] / edges[:-1][from_1_us]).max() <= 0.12


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(exponent=st.floats(-6.0, -1.5))
def test_a_delay_is_counted_in_the_bucket_that_holds_it(make_bench: Any, packets: Any, exponent: float) -> None:
    inner = packets.ipv4(packets.udp(bytes(40)))
    with make_bench(report_every=1) as bench:
        bench.enter(packets.n3(packets.gtpu(inner)))
        time.sleep(10**exponent)
        bench.leave(inner)
        [event] = bench.programs.events.read()
        delay_ns = int(event["exit_ns"]) - int(event["n3_ns"])
        [bucket] = np.flatnonzero(bench.slices[0]["delay"][AT_N6])
        assert edges_ns()[bucket] <= delay_ns < edges_ns()[bucket + 1]
        assert 1e9 * 10**exponent <= delay_ns + 64


@fast
@given(
    counts=st.dictionaries(st.integers(0, BUCKETS - 1), st.integers(1, 5000), min_size=1, max_size=40),
    already=st.dictionaries(st.integers(0, BUCKETS - 1), st.integers(1, 2**32 - 1), max_size=40),
)
def test_quantiles_of_a_window(bench: Any, counts: dict[int, int], already: dict[int, int]) -> None:
    histogram = bench.slices[0]["delay"][AT_N6]
    for bucket, count in already.items():
        histogram[bucket] = count
    window(bench)
    added = np.zeros(BUCKETS, np.uint32)
    for bucket, count in counts.items():
        added[bucket] = count
    histogram += added  # wraps, as the kernel's counters do
    rows = window(bench)
    assert rows[P50 : P99 + 1] == pytest.approx(quantiles_us(added, (0.5, 0.99)), rel=1e-4, abs=0.002)
    assert window(bench)[P50 : P99 + 1] == [0, 0]


@fast
@given(values_us=st.lists(st.floats(1, 1e6), min_size=20, max_size=400))
def test_interpolated_quantiles_are_close(values_us: list[float]) -> None:
    counts = np.bincount(np.searchsorted(edges_ns(), np.asarray(values_us) * 1e3, side="right") - 1, minlength=BUCKETS)
    for level, found in zip((0.5, 0.99), quantiles_us(counts, (0.5, 0.99)), strict=True):
        exact = np.quantile(values_us, level, method="inverted_cdf")
        assert found == pytest.approx(exact, rel=0.12)


@pytest.mark.realtime
def test_rates_and_loss(bench: Any) -> None:
    window(bench)
    begun = now_ns()
    bench.slices[0]["n3"]["bytes"] += 4_000_000
    bench.slices[0]["exit"][AT_N6]["bytes"] += 3_000_000
    time.sleep(0.05)
    rows = window(bench)
    seconds = 1e-9 * (now_ns() - begun)
    assert rows[OFFERED] == pytest.approx(32 / seconds, rel=0.05)
    assert rows[CARRIED] == pytest.approx(24 / seconds, rel=0.05)
    assert rows[LOSS] == pytest.approx(0.25, abs=1e-6)
    bench.slices[0]["exit"][AT_N6]["bytes"] += 1_000_000  # what waited inside
    assert window(bench)[LOSS] == 0


def test_long_windows_and_high_rates_do_not_overflow(bench: Any) -> None:
    window(bench)
    begun = now_ns()
    bench.slices[0]["n3"]["bytes"] += 5 * 10**11
    time.sleep(2.3)
    rows = window(bench)
    assert rows[OFFERED] == pytest.approx(4e6 / (1e-9 * (now_ns() - begun)), rel=0.01)


def mark(bench: Any, *ages_ms: float) -> list[int]:
    """Let packets have arrived at N3 so long ago, at most one a millisecond; returns when."""
    arrivals = [now_ns() - round(1e6 * age) for age in ages_ms]
    for at in arrivals:
        bench.slices[0]["n3"]["mark_ns"][(at >> 20) % MARKS] = at
    return arrivals


def left(bench: Any, arrived_ns: int) -> None:
    """Let the packet that left last be one that had arrived then."""
    bench.slices[0]["exit"][AT_N6]["last_left_ns"] = arrived_ns


def age_since(bench: Any, arrived_ns: int, row: int = P99) -> bool:
    """Does a window show the age of the packet that arrived then?"""
    before = now_ns()
    age_ns = 1e3 * window(bench)[row]
    return before - arrived_ns <= age_ns + 1 and age_ns <= now_ns() - arrived_ns


@pytest.mark.realtime
class TestBacklog:
    """What waits inside a UPF while nothing comes out."""

    def test_the_oldest_packet_inside_bounds_the_delay(self, bench: Any) -> None:
        oldest, *_ = mark(bench, 5, 3, 1)
        assert age_since(bench, oldest)
        mark(bench, 1)
        time.sleep(0.02)
        assert age_since(bench, oldest, P50)

    def test_marks_that_were_overwritten_are_remembered(self, bench: Any) -> None:
        [first] = mark(bench, 0)
        window(bench)
        for _ in range(30):
            time.sleep(0.001)
            mark(bench, 0)
        assert age_since(bench, first)

    def test_what_left_is_not_inside(self, bench: Any) -> None:
        _, middle, youngest = mark(bench, 5, 3, 1)
        left(bench, middle)
        assert age_since(bench, youngest)
        left(bench, youngest)
        assert window(bench)[P99] == 0

    def test_p50_is_that_of_packets_that_left(self, bench: Any) -> None:
        [arrived] = mark(bench, 5)
        left(bench, arrived - 3_000_000)
        bench.slices[0]["delay"][AT_N6][100] += 10
        assert age_since(bench, arrived)
        bench.slices[0]["delay"][AT_N6][100] += 10
        assert window(bench)[P50] < 100

    def test_lost_packets_are_given_up(self, bench: Any) -> None:
        [lost] = mark(bench, 0)
        time.sleep(0.2)
        assert age_since(bench, lost)
        time.sleep(0.4)
        assert window(bench)[P99] == 0
        [arrived] = mark(bench, 0)
        assert age_since(bench, arrived)


@pytest.mark.realtime
class TestThinning:
    """Of more packets than `timed_per_s`, every second, fourth and so on is timed; looked at every quarter second."""

    ALL, HALF, QUARTER = 0xFFFFFFFF, 0x7FFFFFFF, 0x3FFFFFFF

    def pass_time(self, bench: Any, packets_per_s: int) -> tuple[int, int]:
        """What is entered and what is looked for after a quarter of a second at a rate."""
        begun = time.monotonic()
        time.sleep(0.26)
        bench.slices[0]["n3"]["packets"] += round(packets_per_s * (time.monotonic() - begun))
        window(bench)
        timing = bench.slices[0]["timing"]
        return int(timing["enter_up_to"]), int(timing["leave_up_to"])

    def test_it_follows_the_rate(self, make_bench: Any) -> None:
        with make_bench(timed_per_s=50_000) as bench:
            window(bench)
            assert self.pass_time(bench, 40_000) == (self.ALL, self.ALL)
            assert self.pass_time(bench, 150_000) == (self.QUARTER, self.QUARTER)
            assert self.pass_time(bench, 70_000) == (self.HALF, self.QUARTER)  # first entered, then looked for
            assert self.pass_time(bench, 45_000) == (self.HALF, self.HALF)  # near a limit it stays
            assert self.pass_time(bench, 10_000) == (self.ALL, self.HALF)
            assert self.pass_time(bench, 10_000) == (self.ALL, self.ALL)

    def test_unless_told_not_to(self, bench: Any) -> None:
        window(bench)
        assert self.pass_time(bench, 1_000_000) == (self.ALL, self.ALL)

    def test_no_packet_is_taken_for_missed_meanwhile(self, make_bench: Any, packets: Any) -> None:
        numbers = iter(range(1 << 30))
        with make_bench(timed_per_s=1000) as bench:
            window(bench)
            self.pass_time(bench, 3000)
            for rate in (3000, 10, 10, 8000, 10, 10, 10):
                came = [packets.ipv4(packets.udp(struct.pack("!Q", next(numbers)) + bytes(40))) for _ in range(300)]
                for inner in came:
                    bench.enter(packets.n3(packets.gtpu(inner)))
                self.pass_time(bench, rate)
                for inner in came:  # after the decision, which they came before
                    bench.leave(inner)
            entered, found, missed = bench.counts()
            assert entered > 2000
            assert found > 100
            assert missed == 0


def test_rehearsing_changes_nothing(bench: Any) -> None:
    window(bench)
    bench.slices[0]["n3"]["bytes"] += 1000
    bench.slices[0]["delay"][AT_N6][50] += 3
    window(bench, end=False)
    rows = window(bench)
    assert rows[OFFERED] > 0
    assert rows[P99] > 0
