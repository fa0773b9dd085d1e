"""CPU limit of one slice: the CFS quota of its cgroup (Documentation/scheduler/sched-bwc.rst)."""

from __future__ import annotations

import errno
import math
import time

from slicepilot.controller.system.cgroup import CpuGroup
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.env.knobs import MIN_QUOTA_US, QUOTA_DEAD_BAND_RATIO, QUOTA_PERIODS_PER_WRITE, QUOTA_WRITE_STOCK

from .bandwidth import (
    LET_GO_S,
    NO_QUOTA,
    Bandwidth,
    BandwidthFiles,
    bandwidth_files,
    in_words,
    limit_above,
    put_back_limit,
    put_back_pod_limit,
)

UNLIMITED = math.inf


class PodQuota:
    """The quota of the group above, which binds all containers of a pod together: as wide as its widest container needs
    it.

    It is the sum of what its containers are allowed, so it grows by what a container gets beyond the original. Without
    an original limit there is nothing to do. All raise ActuatorError.

    Attributes:
        original: what `restore` puts back.
    """

    def __init__(self, group: CpuGroup) -> None:
        self._files = bandwidth_files(group)
        self.original = self._held = self._files.read()

    def widen(self, extra_mcpu: float) -> None:
        """Raise the limit to the original plus ``extra_mcpu``; inf removes it. The burst stays."""
        quota_us, period_us, _ = self.original
        if quota_us < 0:
            return
        wanted_us = NO_QUOTA if extra_mcpu == UNLIMITED else quota_us + math.ceil(extra_mcpu * 1e-3 * period_us)
        wanted = self.original._replace(quota_us=wanted_us)
        if self._held != wanted:
            self._files.write(*wanted)
            self._held = wanted

    def deviation(self) -> str | None:
        current = self._files.read()
        if self.original[0] < 0 or current == self._held:
            return None
        return f"{in_words(*current)} instead of {in_words(*self._held)} for its pod"

    def rebase(self) -> None:
        """Restore at the end the values that another program has written, if it has."""
        current = self._files.read()
        if current != self._held:
            self.original = current

    def share_of(self, period_us: int) -> int:
        """The quota of another period that would be as much as what is put back; -1 is none."""
        quota_us, own_period_us, _ = self.original
        return NO_QUOTA if quota_us < 0 else quota_us * period_us // own_period_us

    def reassert(self) -> None:
        if self.original[0] >= 0:
            self._files.write(*self._held)

    def restore(self, removed: bool) -> None:
        """Restore the original, after the pod's containers, unless a container has got a higher limit meanwhile.

        ``removed``: a container was just removed, and the kernel may still count it."""
        if self.original[0] >= 0 and self._files.read() != self.original:
            put_back_pod_limit(self._files, self.original, time.monotonic() + (LET_GO_S if removed else 0.0))
        self._held = self.original

    def put_back(self, files: BandwidthFiles, wanted: Bandwidth) -> None:
        """A container's, within the pod's."""
        put_back_limit(files, wanted, self._files, self.original)

    def close(self) -> None:
        self._files.close()


class CpuQuota:
    """Sets a limit in thousandths of a CPU; inf is none.

    The original quota, period and burst are remembered at construction and come back with `restore`. The burst is as
    large as it was, or as the quota where that is less. A pod is widened before its container and narrowed after it:
    the kernel refuses a container more than its pod has (cgroup v1), or lets the pod's limit hold (v2). Writes are
    rationed: `slicepilot.env.knobs` says why, and the simulator does as much.

    Args:
        group: the slice's cgroup.
        period_us: CFS period to run with; none keeps the group's.
        pod: of the group above, where that is to follow.

    Raises:
        ActuatorError: the group has no quota, or the kernel refuses a value (a cgroup v1 group may not be allowed a
            larger share than its parent).
    """

    def __init__(self, group: CpuGroup, period_us: int | None = None, pod: PodQuota | None = None) -> None:
        self._pod, self._group = pod, group
        self._files = bandwidth_files(group)
        self._original = self._files.read()
        quota_us, own_period_us, self._burst_us = self._original
        self.period_us = period_us or own_period_us
        self._quota_us = self._in_own_period(quota_us, own_period_us)
        if self.period_us != own_period_us:
            self._change_period()
        self._limit_mcpu = self._limit(self._quota_us, self.period_us)
        self._stock, self._stocked_ns = QUOTA_WRITE_STOCK, time.monotonic_ns()

    def set(self, limit_mcpu: float) -> float:
        """Ask for a limit; returns what holds, which differs by minimum quota, held-back writes, or by what the groups
        above have: version 1 refuses more than that.

        A limit that only whole microseconds keep from being exact counts as held.
        """
        held_us = self._quota_us
        exact_us = limit_mcpu * 1e-3 * self.period_us
        quota_us = NO_QUOTA if limit_mcpu == UNLIMITED else max(round(exact_us), MIN_QUOTA_US)
        if quota_us == held_us:
            return self._limit_mcpu
        near = abs(quota_us - held_us) <= QUOTA_DEAD_BAND_RATIO * held_us
        if quota_us > 0 and held_us > 0 and not self._take_write(QUOTA_WRITE_STOCK if near else 1.0):
            return self._limit_mcpu
        try:
            self._write(quota_us)
        except ActuatorError as error:
            most_us = self._most_us() if error.errno == errno.EINVAL else quota_us
            if not MIN_QUOTA_US <= most_us < quota_us:
                raise
            if most_us != held_us:
                self._write(most_us)
            quota_us = most_us
        exact = exact_us >= MIN_QUOTA_US and (quota_us < 0 or abs(quota_us - exact_us) < 1)
        self._quota_us = quota_us
        self._limit_mcpu = limit_mcpu if exact else self._limit(quota_us, self.period_us)
        return self._limit_mcpu

    def read(self) -> float:
        return self._limit(*self._files.read()[:2])

    @property
    def _written(self) -> Bandwidth:
        return Bandwidth(self._quota_us, self.period_us, self._burst_us).fitting

    def deviation(self) -> str | None:
        written, current = self._written, self._files.read()
        if current != written:
            return f"{in_words(*current)} instead of {in_words(*written)}"
        return None if self._pod is None else self._pod.deviation()

    def adopt(self) -> float:
        """Take the limit that another program has written as the current limit, and return it."""
        quota_us, period_us, self._burst_us = self._files.read()
        self._quota_us = self._in_own_period(quota_us, period_us)
        self._limit_mcpu = self._limit(quota_us, period_us)
        return self._limit_mcpu

    def rebase(self) -> None:
        """Restore at the end the values that another program has written, if it has, also of the pod."""
        current = self._files.read()
        if current != self._written:
            self._original = current
            self._burst_us = current.burst_us
        if self._pod is not None:
            self._pod.rebase()
            # Which the container has not noticed where it was at that.
            most = self._pod.share_of(self._original.period_us)
            if 0 <= most < self._original.quota_us or self._original.quota_us < 0 <= most:
                self._original = self._original._replace(quota_us=most).fitting

    @property
    def originals(self) -> tuple[Bandwidth, Bandwidth | None]:
        """The original bandwidth, and the pod's if that follows."""
        return self._original, None if self._pod is None else self._pod.original

    def reassert(self) -> float:
        """Write again what holds here, under our period; returns that limit."""
        narrows = self._limit(self._quota_us, self.period_us) < self.read()
        if self._pod is not None and not narrows:
            self._pod.reassert()
        self._files.write(self._quota_us, self.period_us, self._burst_us)
        if self._pod is not None and narrows:
            self._pod.reassert()
        self._limit_mcpu = self._limit(self._quota_us, self.period_us)
        return self._limit_mcpu

    def restore(self) -> None:
        try:
            if self._files.read() != self._original:
                if self._pod is None:
                    self._files.write(*self._original)
                else:
                    self._pod.put_back(self._files, self._original)
        except ActuatorError as error:
            if self._pod is not None:  # a pod outlives a container that is started again
                self._pod.restore(removed=error.vanished)
            raise
        if self._pod is not None:
            self._pod.restore(removed=False)
        self._quota_us, _, self._burst_us = self._original
        self._limit_mcpu = self._limit(*self._original[:2])

    def close(self) -> None:
        self._files.close()
        if self._pod is not None:
            self._pod.close()

    def _write(self, quota_us: int) -> None:
        if self._pod is None:
            self._files.write_quota(quota_us, self.period_us, self._burst_us)
        else:
            self._write_both(self._pod, quota_us)

    def _most_us(self) -> int:
        """The quota under our period that is as much as the least of the groups above; without any, 0."""
        least_mcpu = limit_above(self._group.path.resolve())[0]
        return 0 if least_mcpu == UNLIMITED else int(least_mcpu * 1e-3 * self.period_us)

    def _write_both(self, pod: PodQuota, quota_us: int) -> None:
        """The pod's first where the container's grows, the container's first where it shrinks."""
        original_mcpu = self._limit(*self._original[:2])
        extra_mcpu = (
            max(0.0, self._limit(quota_us, self.period_us) - original_mcpu) if original_mcpu < UNLIMITED else 0.0
        )
        if quota_us < 0 or 0 <= self._quota_us < quota_us:
            pod.widen(extra_mcpu)
            self._files.write_quota(quota_us, self.period_us, self._burst_us)
        else:
            self._files.write_quota(quota_us, self.period_us, self._burst_us)
            pod.widen(extra_mcpu)

    def _take_write(self, least_stock: float) -> bool:
        now_ns = time.monotonic_ns()
        gained = (now_ns - self._stocked_ns) / (1e3 * self.period_us * QUOTA_PERIODS_PER_WRITE)
        stock = min(self._stock + gained, QUOTA_WRITE_STOCK)
        self._stocked_ns = now_ns
        allowed = stock >= least_stock
        self._stock = stock - 1.0 if allowed else stock
        return allowed

    def _change_period(self) -> None:
        """Change from the group's period to ours. Where the kernel refuses, the group's period stays: a small quota in
        a long period has no equal in a short period, and on cgroup v1 a limit must not exceed those of groups above."""
        try:
            self._files.write(self._quota_us, self.period_us, self._burst_us)
        except ActuatorError:
            self._files.write(*self._original)
            self._quota_us, self.period_us, _ = self._original

    def _in_own_period(self, quota_us: int, period_us: int) -> int:
        """The quota of the same CPU limit in our period."""
        if quota_us < 0 or period_us == self.period_us:
            return quota_us
        return max(round(quota_us * self.period_us / period_us), MIN_QUOTA_US)

    @staticmethod
    def _limit(quota_us: int, period_us: int) -> float:
        return UNLIMITED if quota_us < 0 else 1e3 * quota_us / period_us
