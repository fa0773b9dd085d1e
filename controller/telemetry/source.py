"""What the control loop sees of the kernel: `KernelSource.measure`, called every few milliseconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from slicepilot.controller.system.background import PATIENT_WAIT_S, BackgroundCaller, RepeatedCall
from slicepilot.controller.system.clocks import check_clocks
from slicepilot.env.telemetry import Telemetry

from .attachments import Hook
from .layout import AT_N6, AT_TUN
from .packets import PacketProbe
from .points import NetPoint, SlicePoints
from .sched import SchedProbe
from .shared_groups import SharedGroups

TIMED_PER_S = 50_000  # of a slice: 250 in 5 ms, enough for a 99th percentile
WATCH_S, LOOK_S = 0.1, 0.5
"""How often packets that stop are looked for, and how often points are looked at anyway."""
FLOWING = 10
"""Packets in `WATCH_S`: not by chance none in the next."""
RARELY_S = 5.0
"""Least time between looks because packets pass one point only: so it is of a slice that waits for a CPU, too."""


class _Look(NamedTuple):
    """The result of a check of the hooks: of `Hooks.heal`, with ``renewed``, ``hidden``, ``taken`` and ``remarks``."""

    lost: dict[Hook, str]
    renewed: dict[Hook, str]
    hidden: frozenset[Hook]
    taken: int
    remarks: list[str]


class KernelSource:
    """Telemetry of slices on this node, one lane.

    Offered is what arrives at N3 and carried what leaves at the last point (N6, else the TUN device), both in bytes of
    inner IP packets. Delays are those of packets that left in the window; where a packet waits inside for longer than
    that, p99 (and p50 if none left) is its age, a lower bound of the delay it will have. CPU use and run-queue delay
    take in what runs and waits at the moment of reading. ``throttled_ratio`` is left alone: the caller knows the quota
    and reads it from ``cpu.stat``. Of slices in one cgroup each is charged with CPU time by its packets, since that is
    what a UPF works on, and waits as long as the others.

    Args:
        points: one per slice, in order. Either all slices have an N6 point or none has.
        report_every, timed_per_s, by_flow: see `PacketPrograms`.
        uplink_mbps: rate of the shared uplink, for ``uplink_use_ratio``; inf: it reads 0.
        wait_s: how long `check` waits for the thread that looks; in a loop
            `slicepilot.controller.system.background.LOOP_WAIT_S`.

    Attributes:
        background: the thread that looks after what is attached.
        counts_since_s: when packets began to be counted, by `time.monotonic`.
        tasks: what has to be called between ticks beside `check`, and how often, in seconds.
        remarks: what others have attached that does not keep packets from being seen.
        reachable: whether any slice's N3 was there when `check` last looked. A UPF's own devices come and go when it
            restarts.

    Raises:
        ConfigError: points that do not go together, or clocks that are not the machine's (`check_clocks`).
        ProbeError: something that is needed is missing; nothing stays attached.
    """

    def __init__(
        self,
        points: Sequence[SlicePoints],
        *,
        report_every: int = 0,
        timed_per_s: int = TIMED_PER_S,
        by_flow: bool = False,
        uplink_mbps: float = float("inf"),
        wait_s: float = PATIENT_WAIT_S,
    ) -> None:
        check_clocks()
        self.packets = PacketProbe(
            points,
            report_every=report_every,
            timed_per_s=timed_per_s,
            by_flow=by_flow,
            uplink_mbps=uplink_mbps,
        )
        self.counts_since_s = time.monotonic()
        try:
            self._shared = SharedGroups([point.cgroup for point in points], self.packets.slices)
            self.sched = SchedProbe(self._shared.groups, [point.name for point in points])
        except BaseException:
            self.packets.close()
            raise
        self._windows = self.packets.window, self.sched.window
        slices, self._last = len(points), AT_TUN if points[0].n6 is None else AT_N6
        self._telemetry, self._rehearsed = Telemetry.empty(slices), Telemetry.empty(slices)
        self.background = BackgroundCaller("points", wait_s)
        self._look, self._lost = RepeatedCall(self.background, self._looked), dict[Hook, str]()
        self._mended: dict[NetPoint, str] = {}
        self._doubted: set[NetPoint] | None = None
        self.reachable, self._taken = True, 0
        self._passed, self._looked_s = np.zeros((2, slices), np.uint64), self.counts_since_s
        self._new = np.zeros((2, slices), np.uint64)
        self._stopped, self._one_sided_s = np.zeros(slices, np.bool_), -RARELY_S
        self.tasks: tuple[tuple[Callable[[], object], float], ...] = ((self.watch, WATCH_S),)
        self._crowded = np.zeros(slices, np.uint64)
        self._take(self._looked())
        self.measure()

    def __enter__(self) -> KernelSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def measure(self) -> Telemetry:
        if self._look.pending and not self._look.failed:  # what went wrong is for `check`
            self._take_look()
        if self._doubted is not None:
            self._mark(self._doubted)
            self._doubted = set() if self._doubted else None
        if self._look.pending:  # nobody knows yet why packets have stopped: the kernel may make the look wait
            self._telemetry.valid[self._stopped] = False
        telemetry, now_ns = self._telemetry, time.monotonic_ns()
        for window in self._windows:
            window.read(now_ns, telemetry)
        if self._shared.any:
            self._shared.split(telemetry)
        return telemetry

    def warm_up(self) -> None:
        """Read without ending the window, so that `measure` finds its code and memory in the caches a few tens of
        microseconds later."""
        now_ns = time.monotonic_ns()
        for window in self._windows:
            window.read(now_ns, self._rehearsed, end=False)

    def cpu_ns(self) -> npt.NDArray[np.float64]:
        return self._shared.totals(self.sched.slices["cpu_ns"][: len(self.packets.points)])

    def delay_counts(self) -> npt.NDArray[np.uint32]:
        """Delays of all timed packets at the last point so far, a histogram per slice (S, BUCKETS)."""
        points = self.packets.points
        return self.packets.slices["delay"][: len(points), self._last].copy()

    def check(self) -> list[str]:
        """What is not measured any more, and why; marks slices without a first or last point invalid.

        Attaches again what has come back: a UPF that restarted, new groups below a slice's; and what another program
        has taken, for a few times (`Hooks.heal`). Points are looked at by a thread, which takes about 0.1 ms a point,
        or as long as others make it wait; what it has not seen by now is in the next `measure`, and reported by the
        next call. Call it about once a second, outside the loop's budget.
        """
        self._start_look()
        self._take_look()
        return self._unmeasured()

    def check_without_thread(self) -> list[str]:
        """As `check`, in the calling thread, however long that takes. For callers that have no loop: so no thread with
        capabilities remains when a controller follows (`privileges.keep_only`)."""
        self._take(self._looked())
        return self._unmeasured()

    def _unmeasured(self) -> list[str]:
        mended, self._mended = self._mended, {}
        return [*self._lost.values(), *mended.values(), *self._crowded_slices(), *self.sched.refresh()]

    @property
    def counts(self) -> dict[str, int]:
        """How often another program had taken packets at a hook before they were seen (`Hooks`), by metric."""
        return {"hooks_taken": self._taken}

    def watch(self) -> None:
        """Check the points, as `check` does: at once if packets stop at a point, or pass one point only, since another
        program may keep them from the other; else every `LOOK_S`. Call it every `WATCH_S`, outside the loop's
        budget."""
        slices, points = self.packets.slices, len(self.packets.points)
        passed = np.stack([slices["n3"]["packets"][:points], slices["exit"]["packets"][:points, self._last]])
        new, self._passed = passed - self._passed, passed
        stopped, now_s = ((self._new >= FLOWING) & (new == 0)).any(axis=0), time.monotonic()
        one_sided = (new.max(axis=0) >= FLOWING) & (new.min(axis=0) == 0)
        if one_sided.any() and now_s - self._one_sided_s >= RARELY_S:
            self._one_sided_s = now_s
            stopped |= one_sided
        self._new = new
        self._stopped |= stopped
        if stopped.any() or now_s - self._looked_s >= LOOK_S:
            self._start_look()

    def _start_look(self) -> None:
        self._looked_s = time.monotonic()
        self._look.start()

    def _looked(self) -> _Look:
        hooks = self.packets.hooks
        return _Look(hooks.heal(), dict(hooks.renewed), frozenset(hooks.hidden), hooks.taken, hooks.remarks)

    def _take_look(self) -> None:
        if (look := self._look.take()) is not None:
            self._take(look)

    def _take(self, look: _Look) -> None:
        self._lost, self._taken, self.remarks = look.lost, look.taken, look.remarks
        self._mended |= {hook.point: text for hook, text in look.renewed.items() if text}
        self._doubted = {hook.point for hook in look.renewed}
        gone = {hook.point for hook in look.lost.keys() - look.hidden}
        self.reachable = any(point.n3 not in gone for point in self.packets.points)
        self._stopped[:] = False
        self._mark(self._doubted)

    def _mark(self, doubted: set[NetPoint]) -> None:
        """Mark slices invalid that have a first or last point that is away, or whose window has begun without it."""
        away = {hook.point for hook in self._lost} | doubted
        for index, item in enumerate(self.packets.points):
            self._telemetry.valid[index] = away.isdisjoint({item.n3, item.n6 or item.tun})

    def _crowded_slices(self) -> list[str]:
        now = self.packets.slices["n3"]["crowded"][:-1].copy()
        new, self._crowded = now - self._crowded, now
        return [
            f"{self.packets.points[index].name}: {new[index]} of its packets are of more senders or flows than there "
            "is room for, and were not measured"
            for index in np.flatnonzero(new)
        ]

    def close(self) -> None:
        self.background.close()
        try:
            self.packets.close()
        finally:
            self.sched.close()
