"""Telemetry from counters and histograms in arrays: delays, rates, loss, backlog, CPU use, waits."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slicepilot.controller.telemetry import layout
from slicepilot.controller.telemetry.histogram import edges_ns, quantiles_us
from slicepilot.controller.telemetry.layout import AT_N6, BUCKETS, MARKS
from slicepilot.controller.telemetry.window import ADAPT_NS, GIVE_UP_NS, CpuWindow, PacketWindow
from slicepilot.env.telemetry import Telemetry
from tests.effort import examples

from .conftest import bench_of

OFFERED, CARRIED, P50, P99, LOSS = range(5)
ALL, HALF, QUARTER = 0xFFFFFFFF, 0x7FFFFFFF, 0x3FFFFFFF
MS = 1_000_000


@dataclass
class Packets:
    """Counters of one slice, and a clock."""

    timed_per_s: int = 0
    now_ns: int = 10**12 + 12345
    slices: Any = field(default_factory=lambda: np.zeros(1, layout.SLICE))

    def __post_init__(self) -> None:
        self.slices["timing"]["enter_up_to"] = self.slices["timing"]["leave_up_to"] = ALL
        self.window = PacketWindow(self.slices, AT_N6, [False], 150.0, self.timed_per_s)
        self.after(0)

    @property
    def n3(self) -> Any:
        return self.slices[0]["n3"]

    @property
    def n6(self) -> Any:
        return self.slices["exit"][0, AT_N6]

    @property
    def delay(self) -> Any:
        return self.slices["delay"][0, AT_N6]

    def after(self, ms: float, end: bool = True) -> list[float]:
        """Rows of the slice, so long after the last call."""
        self.now_ns += round(MS * ms)
        telemetry = Telemetry.empty(1)
        self.window.read(self.now_ns, telemetry, end)
        return [float(value) for value in telemetry.slices[:, 0, 0]]

    def mark(self, *ages_ms: float) -> list[int]:
        """Let packets have arrived at N3 so long ago, at most one in a millisecond; returns when."""
        arrivals = [self.now_ns - round(MS * age) for age in ages_ms]
        for at in arrivals:
            self.n3["mark_ns"][(at >> 20) % MARKS] = at
        return arrivals


@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(exponent=st.floats(-6.0, -1.5))
def test_a_delay_is_counted_in_the_bucket_that_holds_it(bench: Any, packets: Any, exponent: float) -> None:
    inner = packets.ipv4(packets.udp(struct.pack("!d", exponent) + bytes(40)))
    before, began = bench.slices[0]["delay"][AT_N6].copy(), time.monotonic_ns()
    bench.enter(packets.n3(packets.gtpu(inner)))
    time.sleep(10**exponent)
    bench.leave(inner)
    most_ns = time.monotonic_ns() - began
    [bucket] = np.flatnonzero(bench.slices[0]["delay"][AT_N6] - before)
    assert 1e9 * 10**exponent < edges_ns()[bucket + 1]
    assert edges_ns()[bucket] <= most_ns


COUNTS = st.dictionaries(st.integers(0, BUCKETS - 1), st.integers(1, 5000), min_size=1, max_size=40)


@settings(max_examples=examples(60), deadline=None)
@given(counts=COUNTS, already=st.dictionaries(st.integers(0, BUCKETS - 1), st.integers(1, 2**32 - 1), max_size=40))
def test_quantiles_of_a_window(counts: dict[int, int], already: dict[int, int]) -> None:
    packets = Packets()
    packets.delay[list(already)] = list(already.values())
    packets.after(5)
    added = np.zeros(BUCKETS, np.uint32)
    added[list(counts)] = list(counts.values())
    packets.delay[:] += added  # wraps, as the kernel's counters do
    wanted = pytest.approx(quantiles_us(added, (0.5, 0.99)).tolist(), rel=1e-5, abs=1e-3)
    assert packets.after(1, end=False)[P50 : P99 + 1] == wanted, "a rehearsal reads the same"
    assert packets.after(5)[P50 : P99 + 1] == wanted
    assert packets.after(5)[P50 : P99 + 1] == [0, 0]


@settings(max_examples=examples(40), deadline=None)
@given(values_us=st.lists(st.floats(1, 1e6), min_size=20, max_size=400))
def test_interpolated_quantiles_are_close(values_us: list[float]) -> None:
    counts = np.bincount(np.searchsorted(edges_ns(), np.asarray(values_us) * 1e3, side="right") - 1, minlength=BUCKETS)
    for level, value in zip((0.5, 0.99), quantiles_us(counts, (0.5, 0.99)), strict=True):
        assert value == pytest.approx(np.quantile(values_us, level, method="inverted_cdf"), rel=0.12)
    both = quantiles_us(np.stack([counts, np.zeros_like(counts)]), (0.5, 0.99))
    assert both[0].tolist() == quantiles_us(counts, (0.5, 0.99)).tolist()
    assert np.isnan(both[1]).all(), "nothing was counted"


@given(ms=st.floats(1, 1e5), offered=st.integers(0, 10**13), carried=st.integers(0, 10**13), end=st.booleans())
def test_rates_and_loss(ms: float, offered: int, carried: int, end: bool) -> None:
    packets = Packets()
    packets.n3["bytes"] += offered
    packets.slices["exit"][0, AT_N6]["bytes"] += carried
    rows = packets.after(ms, end)
    assert rows[OFFERED] == pytest.approx(8e-3 * offered / ms, rel=1e-4)
    assert rows[CARRIED] == pytest.approx(8e-3 * carried / ms, rel=1e-4)
    assert rows[LOSS] == pytest.approx(max(1 - carried / offered, 0) if offered else 0, abs=1e-6)
    again = packets.after(ms)
    assert again[OFFERED] == pytest.approx(0 if end else rows[OFFERED] / 2, rel=1e-4)


class TestBacklog:
    """What waits inside a UPF while nothing comes out."""

    def age_ns(self, packets: Packets, ms: float = 0.0, row: int = P99) -> float:
        return 1e3 * packets.after(ms)[row]

    def test_the_oldest_packet_inside_bounds_the_delay(self) -> None:
        packets = Packets()
        packets.mark(5, 3, 1)
        assert self.age_ns(packets) == pytest.approx(5 * MS)
        packets.mark(1)
        assert self.age_ns(packets, 20, P50) == pytest.approx(25 * MS)

    def test_marks_that_were_overwritten_are_remembered(self) -> None:
        packets = Packets()
        packets.mark(0)
        packets.after(0)
        for _ in range(30):
            packets.now_ns += MS
            packets.mark(0)
        assert self.age_ns(packets) == pytest.approx(30 * MS)

    def test_what_left_is_not_inside(self) -> None:
        packets = Packets()
        _, middle, youngest = packets.mark(5, 3, 1)
        packets.slices["exit"]["last_left_ns"][0, AT_N6] = middle
        assert self.age_ns(packets) == pytest.approx(MS)
        packets.slices["exit"]["last_left_ns"][0, AT_N6] = youngest
        assert self.age_ns(packets) == 0

    def test_p50_is_that_of_packets_that_left(self) -> None:
        packets = Packets()
        packets.mark(5)
        packets.delay[100] += 10
        rows = packets.after(0)
        assert rows[P50] < 100
        assert rows[P99] == pytest.approx(5000)

    def test_lost_packets_are_given_up(self) -> None:
        packets = Packets()
        packets.mark(0)
        assert self.age_ns(packets, 200) == pytest.approx(200 * MS)
        assert self.age_ns(packets, 400) == 0
        packets.mark(0)
        assert self.age_ns(packets, 3) == pytest.approx(3 * MS)

    def test_the_age_of_lost_packets_does_not_grow_while_others_arrive_and_are_lost_too(self) -> None:
        packets = Packets()
        ages = []
        for _ in range(400):
            packets.mark(0)
            ages.append(self.age_ns(packets, 10))
        assert max(ages) <= GIVE_UP_NS + 10 * MS
        assert packets.after(0, end=False)[P50] <= 510_000


class TestSampling:
    """Of more packets than `timed_per_s`, every second, fourth and so on is timed; looked at every quarter second."""

    def pass_time(self, packets: Packets, packets_per_s: int) -> tuple[int, int]:
        """What is entered and what is looked for after a quarter of a second at a rate."""
        packets.n3["packets"] += packets_per_s * ADAPT_NS // 10**9
        packets.after(ADAPT_NS / MS)
        return int(packets.slices[0]["timing"]["enter_up_to"]), int(packets.slices[0]["timing"]["leave_up_to"])

    def test_it_follows_the_rate(self) -> None:
        packets = Packets(timed_per_s=50_000)
        assert self.pass_time(packets, 40_000) == (ALL, ALL)
        assert self.pass_time(packets, 150_000) == (QUARTER, QUARTER)
        assert self.pass_time(packets, 70_000) == (HALF, QUARTER)  # first entered, then looked for
        assert self.pass_time(packets, 45_000) == (HALF, HALF)  # near a limit it stays
        assert self.pass_time(packets, 10_000) == (ALL, HALF)
        assert self.pass_time(packets, 10_000) == (ALL, ALL)
        assert self.pass_time(Packets(), 1_000_000) == (ALL, ALL), "unless there is no limit"

    def test_no_packet_is_taken_for_missed_meanwhile(self, packets: Any) -> None:
        numbers, telemetry, now_ns = iter(range(1 << 30)), Telemetry.empty(1), time.monotonic_ns()
        with bench_of(timed_per_s=1000) as bench:
            for rate in (3000, 3000, 10, 10, 8000, 10, 10, 10):
                came = [packets.ipv4(packets.udp(struct.pack("!Q", next(numbers)) + bytes(40))) for _ in range(300)]
                for inner in came:
                    bench.enter(packets.n3(packets.gtpu(inner)))
                now_ns += ADAPT_NS
                bench.slices[0]["n3"]["packets"] += rate * ADAPT_NS // 10**9
                bench.programs.window.read(now_ns, telemetry)
                for inner in came:  # after the decision, which they came before
                    bench.leave(inner)
            entered, left, missed = bench.counts()
            assert entered > 2000
            assert left > 100
            assert missed == 0


class TestCpus:
    """Two slices on three CPUs."""

    START_NS, IDLE, OTHER = 10**12, 2, 3

    def made(self) -> tuple[Any, Any, CpuWindow]:
        slices, running = np.zeros(2, layout.SCHED), np.zeros(3, layout.RUNNING)
        running["since_ns_and_slice"] = self.run(0, self.OTHER)
        window = CpuWindow(slices, running, self.START_NS)
        self.at(window, 0)
        return slices, running, window

    def run(self, ms: float, slice_: int) -> int:
        return int(self.START_NS + MS * ms) & ~layout.RUNNING_SLICE | slice_

    def at(self, window: CpuWindow, ms: float) -> tuple[list[float], list[float], float]:
        telemetry = Telemetry.empty(2)
        window.read(self.START_NS + round(MS * ms), telemetry)
        use, waits = telemetry.cpu_use_mcpu[:, 0].tolist(), telemetry.runqueue_delay_us[:, 0].tolist()
        return use, waits, float(telemetry.cpu_idle_ratio[0])

    def test_a_run_that_goes_on_is_in_every_window_and_is_never_counted_back(self) -> None:
        slices, running, window = self.made()
        running["since_ns_and_slice"][0] = self.run(0, 1)
        assert self.at(window, 10)[0] == pytest.approx([0, 1000], abs=1)
        assert self.at(window, 20)[0] == pytest.approx([0, 1000], abs=1)
        running["since_ns_and_slice"][0] = self.run(30, self.OTHER)
        slices["cpu_ns"][1] = 18 * MS  # its own account leaves out interrupts
        assert self.at(window, 30)[0] == [0, 0]
        slices["cpu_ns"][1] += 12 * MS
        assert self.at(window, 40)[0] == pytest.approx([0, 1000], abs=1)

    def test_idle_time_is_that_of_cpus_that_count(self) -> None:
        _, running, window = self.made()
        running["since_ns_and_slice"][:2] = self.run(0, self.IDLE)
        assert self.at(window, 10)[2] == pytest.approx(2 / 3, rel=1e-3)
        window.counted = np.array([True, False, True])
        assert self.at(window, 20)[2] == pytest.approx(1 / 2, rel=1e-3)
        running["since_ns_and_slice"][0], running["idle_ns"][0] = self.run(25, self.OTHER), 25 * MS
        assert self.at(window, 30)[2] == pytest.approx(1 / 4, rel=1e-3)

    def test_waits_are_the_mean_of_those_that_ended_and_those_that_go_on(self) -> None:
        slices, _, window = self.made()
        slices["waits"][0], slices["wait_ns"][0] = 3, 6 * MS
        assert self.at(window, 10)[1] == [2000, 0]
        since = 12 * MS >> layout.WAIT_UNIT_SHIFT
        slices["waiting"][1] = (2 << layout.WAITER_SHIFT) + 2 * since
        assert self.at(window, 20)[1] == pytest.approx([0, 8000], abs=2)
        assert self.at(window, 30)[1] == pytest.approx([0, 18000], abs=2)
        later = 31 * MS >> layout.WAIT_UNIT_SHIFT  # after the clock was read
        slices["waiting"][1] = (1 << layout.WAITER_SHIFT) + later
        assert self.at(window, 30.5)[1][1] == 0
