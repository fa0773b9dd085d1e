"""What happened between two readings: rates, delays, loss and CPU use, from counters that BPF programs only add to.

`read_packets` and `read_cpus` compute the figures of all slices from the memory that the programs write. They are
compiled, since a control loop sleeps between its ticks: dozens of NumPy calls, whose code has left the caches, take
some 300 us for five slices (`slicepilot bench loop`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from slicepilot.env.compiled import kernel
from slicepilot.env.telemetry import NODE_FIELDS, SLICE_FIELDS, Telemetry

from . import layout
from .histogram import edges_ns

ETHERNET_HEADER_BYTES = 14  # a link's rate counts them (net/sched: qdisc_pkt_len)
NEVER = np.iinfo(np.int64).max
GIVE_UP_NS = 500_000_000
ADAPT_NS = 250_000_000
FADE = 1 / 256
MOST_GAIN = 65536.0
ALL = 0xFFFFFFFF

BUCKETS, MARKS = layout.BUCKETS, layout.MARKS
RUNNING_SLICE, TASKS, WAIT_UNIT = layout.RUNNING_SLICE, layout.WAITER_SHIFT, layout.WAIT_UNIT_SHIFT
SUM_OF_WAITS, MOST_TASKS = (1 << TASKS) - 1, (1 << 64 - TASKS) - 1
OFFERED, CARRIED, P50, P99, LOSS, CPU_USE, RUNQUEUE_DELAY = (
    SLICE_FIELDS.index(name)
    for name in (
        *("offered_mbps", "carried_mbps", "delay_p50_us", "delay_p99_us", "loss_ratio"),
        *("cpu_use_mcpu", "runqueue_delay_us"),
    )
)
CPU_IDLE, UPLINK_USE = (NODE_FIELDS.index(name) for name in ("cpu_idle_ratio", "uplink_use_ratio"))

PACKETS_READ = np.dtype(
    [
        ("offered", "i8"),
        ("carried", "i8"),
        ("packets", "i8"),
        ("answered", "i8"),
        ("settled_ns", "i8"),  # what arrived until then has left, or is given up
        ("oldest_ns", "i8"),  # arrival of the oldest packet inside, as far as known
        ("recent_answered", "f8"),
        ("recent_answers", "f8"),
        ("owed", "f8"),
        ("delay", "u4", BUCKETS),
    ]
)
"""Values of a slice's packets when its last window ended."""
CPU_READ = np.dtype([("used_ns", "i8"), ("waits", "i8"), ("wait_ns", "i8"), ("open_ns", "i8")])
"""Values of a slice's tasks when its last window ended; ``open_ns`` is the time of runs that go on."""


class PacketWindow:
    """Rates, delays, loss and link use since the last window.

    Args:
        slices: `layout.SLICE`, live (S, ...): what the packet programs count.
        last: exit point at which packets are seen last.
        services: whether each slice is a service.
        uplink_mbps: rate of the shared uplink; inf: its use reads 0.
        timed_per_s: time about so many packets of a slice per second at most; 0: all.
    """

    def __init__(
        self, slices: npt.NDArray[Any], last: int, services: Sequence[bool], uplink_mbps: float, timed_per_s: int
    ) -> None:
        self._slices, self._last = slices, last
        self._read = np.zeros(len(slices), PACKETS_READ)
        self._read["oldest_ns"], self._read["delay"] = NEVER, slices["delay"][:, last]
        self._services, self._uplink_mbps = np.array(services, np.bool_), float(uplink_mbps)
        self._edges_us = 1e-3 * edges_ns()
        self._sampling = Sampling(slices, timed_per_s)
        self._ended_ns = 0

    def read(self, now_ns: int, to: Telemetry, end: bool = True) -> None:
        """Write the figures of the window that ends now; without ``end`` it goes on, and nothing is remembered."""
        read_packets(
            *(now_ns, now_ns - self._ended_ns, self._slices, self._last, self._edges_us, self._services),
            *(self._uplink_mbps, self._read, end, to.slices, to.node),
        )
        if end:
            self._ended_ns = now_ns
            self._sampling.adapt(now_ns)


class Sampling:
    """Times fewer packets of a slice that has many: a half, a quarter and so on still suffices for a window's quantiles
    and costs the UPF less CPU time.

    When sampling increases, packets are given records at the entry first. They are looked for at the exit a while
    later, when all packets without a record have left, so that no packet counts as missed. Each window adapts a single
    slice.
    """

    def __init__(self, slices: npt.NDArray[Any], timed_per_s: int) -> None:
        self._n3, self._timing, self._limit = slices["n3"], slices["timing"], timed_per_s
        self._seen = [(0, 0)] * len(slices)
        self._next = 0

    def adapt(self, now_ns: int) -> None:
        index = self._next
        self._next = (index + 1) % len(self._seen)
        before_ns, before = self._seen[index]
        if not self._limit or now_ns - before_ns < ADAPT_NS:
            return
        packets = int(self._n3["packets"][index]) + int(self._n3["unproven"][index])
        timing, rate = self._timing[index], 1e9 * (packets - before) / (now_ns - before_ns)
        self._seen[index] = now_ns, packets
        enter = int(timing["enter_up_to"])
        fewer, more = self._thinned(rate), self._thinned(1.25 * rate)  # not back and forth at a limit
        timing["leave_up_to"] = min(fewer, enter)
        timing["enter_up_to"] = fewer if fewer < enter else max(more, enter)

    def _thinned(self, rate: float) -> int:
        up_to = ALL
        for _ in range(16):
            if rate <= self._limit:
                break
            rate, up_to = rate / 2, up_to >> 1
        return up_to


class CpuWindow:
    """CPU use, waits for a CPU, and idle CPUs since the last window; runs and waits that go on are in it.

    Args:
        slices: `layout.SCHED`, live (S,): what the scheduler's programs count.
        running: `layout.RUNNING`, live (C,): what each CPU runs.
        start_ns: what the programs count waits from.

    Attributes:
        counted: (C,), for each CPU whether its idle time counts.
    """

    def __init__(self, slices: npt.NDArray[Any], running: npt.NDArray[Any], start_ns: int) -> None:
        self._slices, self._running, self._start_ns = slices, running, start_ns
        self._read, self._idled_ns = np.zeros(len(slices), CPU_READ), np.zeros(len(running), np.int64)
        self.counted = np.ones(len(running), np.bool_)
        self._ended_ns = 0

    def read(self, now_ns: int, to: Telemetry, end: bool = True) -> None:
        """Write the figures of the window that ends now; without ``end`` it goes on, and nothing is remembered."""
        read_cpus(
            *(now_ns, now_ns - self._ended_ns, now_ns - self._start_ns, self._slices, self._running),
            *(self.counted, self._read, self._idled_ns, end, to.slices, to.node),
        )
        if end:
            self._ended_ns = now_ns


@kernel
def read_packets(
    now_ns: int,
    window_ns: int,
    slices: np.ndarray,
    last: int,
    edges_us: np.ndarray,
    services: np.ndarray,
    uplink_mbps: float,
    read: np.ndarray,
    end: bool,
    figures: np.ndarray,
    node: np.ndarray,
) -> None:
    """Figures of slices (S, ...) into the rows of telemetry."""
    added, on_link = np.zeros(BUCKETS, np.int64), 0.0
    mbps = 8e3 / max(window_ns, 1)
    for s in range(len(read)):
        past, n3, left = read[s], slices[s].n3, slices[s].exit[last]
        offered_now, carried_now, packets_now = np.int64(n3.bytes), np.int64(left.bytes), np.int64(left.packets)
        offered, carried = float(offered_now - past.offered), float(carried_now - past.carried)
        on_link += carried + ETHERNET_HEADER_BYTES * (packets_now - past.packets)
        if services[s]:
            # The offered rate in bytes of answers: bytes that left, and the expected answers to open requests, from the
            # recent ratio of answer to request bytes. An answer counts when it is requested; its bytes are subtracted
            # as they leave.
            answered = float(np.int64(left.answered_bytes) - past.answered)
            recent_answered = past.recent_answered * (1 - FADE) + answered
            recent_answers = past.recent_answers * (1 - FADE) + carried
            gain = 1.0
            if recent_answered > 0 and recent_answers > 0:
                gain = min(recent_answers / recent_answered, MOST_GAIN)
            offered = past.owed + carried + (offered - answered) * gain
            if end:
                past.answered += np.int64(answered)
                past.recent_answered, past.recent_answers = recent_answered, recent_answers
                past.owed = min(offered, 0.0)
            offered = max(offered, 0.0)
        figures[OFFERED, s, 0] = mbps * offered
        figures[CARRIED, s, 0] = mbps * carried
        figures[LOSS, s, 0] = max(offered - carried, 0.0) / max(offered, 1.0)

        timed, delay, delay_read = 0, slices[s].delay, past.delay
        for bucket in range(BUCKETS):
            count = np.int64(delay[last, bucket]) - np.int64(delay_read[bucket]) & ALL  # counters wrap
            added[bucket] = count
            timed += int(count)
            if end:
                delay_read[bucket] += np.uint32(count)
        age_us = 1e-3 * _age_ns(now_ns, n3.mark_ns, np.int64(left.last_left_ns), past)
        figures[P50, s, 0] = _quantile_us(added, edges_us, 0.5 * timed) if timed else age_us
        figures[P99, s, 0] = max(_quantile_us(added, edges_us, 0.99 * timed) if timed else 0.0, age_us)
        if end:
            past.offered, past.carried, past.packets = offered_now, carried_now, packets_now
    node[UPLINK_USE, 0] = mbps * on_link / uplink_mbps


@kernel
def _quantile_us(added: np.ndarray, edges_us: np.ndarray, rank: float) -> float:
    """The value of a histogram that ``rank`` samples do not exceed, interpolated inside its bucket."""
    below = 0
    bucket = 0
    while bucket < BUCKETS - 1 and below + added[bucket] < rank:
        below += added[bucket]
        bucket += 1
    inside = (rank - below) / max(added[bucket], 1)
    return edges_us[bucket] + (edges_us[bucket + 1] - edges_us[bucket]) * inside


@kernel
def _age_ns(now_ns: int, marks_ns: np.ndarray, last_left_ns: int, past: Any) -> int:
    """Age of the oldest packet inside the UPF, 0 where none is: a lower bound of the delay that it will have, which the
    delays of packets that left do not show while nothing comes out.

    As long as packets leave in the order in which they came, a mark later than the arrival of the packet that left last
    is of a packet that is still inside. The oldest is kept, since the ring of marks overwrites it. A dropped packet
    looks the same until a later packet leaves, so if nothing has arrived for `GIVE_UP_NS`, no packet counts as inside.
    If packets arrive and none has left for as long, older packets count as lost: their age would grow without bound.
    """
    settled = max(past.settled_ns, last_left_ns, now_ns - GIVE_UP_NS)
    oldest, newest = past.oldest_ns if past.oldest_ns > settled else NEVER, 0
    for index in range(MARKS):
        mark: Any = np.int64(marks_ns[index])
        newest = max(newest, mark)
        if settled < mark < oldest:
            oldest = mark
    if newest + GIVE_UP_NS < now_ns:
        settled, oldest = max(settled, newest), NEVER
    past.settled_ns, past.oldest_ns = settled, oldest
    return now_ns - oldest if oldest < now_ns else 0


@kernel
def read_cpus(
    now_ns: int,
    window_ns: int,
    since_start_ns: int,
    live: np.ndarray,
    running: np.ndarray,
    counted: np.ndarray,
    read: np.ndarray,
    idled_ns: np.ndarray,
    end: bool,
    figures: np.ndarray,
    node: np.ndarray,
) -> None:
    """Figures of slices (S,) and CPUs (C,) into the rows of telemetry."""
    slices, cpus, idle = len(read), 0, 0
    for s in range(slices):
        read[s].open_ns = 0
    for cpu in range(len(running)):
        word: Any = np.int64(running[cpu].since_ns_and_slice)
        which, since = word & RUNNING_SLICE, word & ~RUNNING_SLICE
        age = max(now_ns - since, 0)
        if which < slices:
            item: Any = read[which]
            item.open_ns += age
        idled = max(np.int64(running[cpu].idle_ns) + (age if which == slices else 0), idled_ns[cpu])
        if counted[cpu]:
            cpus += 1
            idle += idled - idled_ns[cpu]
        if end:
            idled_ns[cpu] = idled
    node[CPU_IDLE, 0] = idle / max(window_ns * cpus, 1)
    for s in range(slices):
        past, now = read[s], live[s]
        # A run counts by the clock until its own account is known, which may be a little less: never count back.
        used = max(np.int64(now.cpu_ns) + past.open_ns, past.used_ns)
        figures[CPU_USE, s, 0] = 1e3 * (used - past.used_ns) / max(window_ns, 1)
        ended, ended_ns, now_waiting = np.int64(now.waits), np.int64(now.wait_ns), np.int64(now.waiting)
        tasks = now_waiting >> TASKS & MOST_TASKS
        # Sum over tasks of now - since, in the units and bits of the sum; below 0 for a wait that has just begun.
        age = (tasks * (since_start_ns >> WAIT_UNIT) - now_waiting) & SUM_OF_WAITS
        age = (age << WAIT_UNIT) if age <= SUM_OF_WAITS >> 1 else 0
        figures[RUNQUEUE_DELAY, s, 0] = 1e-3 * (ended_ns - past.wait_ns + age) / max(ended - past.waits + tasks, 1)
        if end:
            past.used_ns, past.waits, past.wait_ns = used, ended, ended_ns
