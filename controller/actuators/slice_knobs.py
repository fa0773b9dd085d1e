"""The knobs of one slice: set, read back, left to somebody else, restored."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from ...env.knobs import KNOB_FIELDS, KnobName, NiceScope
from ..system.cgroup import CpuGroup
from ..system.kernel_file import ActuatorError
from .egress import EgressConfig, EgressRate
from .nice import ThreadNice, ThreadOriginal
from .quota import CpuQuota, QuotaConfig
from .weight import GroupWeight

Remember = Callable[[str, Sequence[ThreadOriginal]], None]


@dataclass(frozen=True)
class SliceTargets:
    """Where one slice's knobs are.

    Attributes:
        name: for messages.
        cgroup: the group of its UPF in the hierarchy of the cpu controller.
        egress_device: device through which it leaves towards N6; none leaves its egress alone.
        netns: path of that device's network namespace; none is this process's own.
    """

    name: str
    cgroup: Path
    egress_device: str | None = None
    netns: Path | None = None


class Held(NamedTuple):
    """What holds: CPU limit in mCPU (inf: none), nice, egress in Mbit/s (inf: none)."""

    cpu_limit_mcpu: float
    nice: float
    egress_mbps: float


class Knob(Protocol):
    """What quota, weight, threads and egress have in common; all raise ActuatorError."""

    def deviation(self) -> str | None:
        """What the kernel has in place of what was written last; None where that holds."""
        ...

    def adopt(self) -> float:
        """Take what the kernel has for what holds, without writing; returns it."""
        ...

    def reassert(self) -> float:
        """Write again what holds here; returns it."""
        ...

    def restore(self) -> None:
        """What was found."""
        ...


class SliceKnobs:
    """Opens the knobs of a slice.

    Attributes:
        held: what holds; the first one as found.
        yielded: knobs that are not written, nor restored: somebody else's values hold.

    Raises:
        ActuatorError: a target is missing or not permitted; nothing is left changed.
    """

    def __init__(
        self,
        target: SliceTargets,
        quota: QuotaConfig | None,
        egress: EgressConfig | None,
        remember: Remember | None = None,
    ) -> None:
        self.name, self.target = target.name, target
        self._where = _identity(target)
        group = CpuGroup.at(target.cgroup)
        with contextlib.ExitStack() as undo:
            self.quota = CpuQuota(group, quota)
            undo.callback(self.quota.close)
            undo.callback(self.quota.restore)
            self.weight = GroupWeight(group)
            undo.callback(self.weight.close)
            tell = None if remember is None else lambda originals: remember(target.name, originals)
            self.threads = ThreadNice(group, tell)
            device = target.egress_device
            self.egress = EgressRate(device, target.netns, egress) if device is not None else None
            undo.pop_all()
        self.yielded: set[KnobName] = set()
        self.held = self.read("group")
        self._gone = ""

    def set(self, limit: float, nice: float, rate: float, scope: NiceScope, errors: list[str]) -> Held:
        """Set what differs; returns what holds. What fails is added to ``errors``, the other knobs are still set."""
        if self._gone:
            errors.append(self._gone)
            return self.held
        held_limit, held_nice, held_rate = self.held
        if limit != held_limit and "cpu_limit_mcpu" not in self.yielded:
            try:
                held_limit = self.quota.set(limit)
            except ActuatorError as error:
                self._note(error, errors)
        if (nice != held_nice or scope != "group" or self.threads.active) and "nice" not in self.yielded:
            try:
                held_nice = self._set_nice(int(nice), scope)
            except ActuatorError as error:
                self._note(error, errors)
        if rate != held_rate and self.egress is not None and "egress_mbps" not in self.yielded:
            try:
                held_rate = self.egress.set(rate)
            except ActuatorError as error:
                self._note(error, errors)
        if self.held != (held_limit, held_nice, held_rate):
            self.held = Held(held_limit, held_nice, held_rate)
        return self.held

    def vanished(self) -> str:
        """Why a group, namespace or device has gone, also when another has its name now; empty where all are there.

        Some 20 us; what is kept open would not say it: a socket keeps its namespace alive.
        """
        if not self._gone and _identity(self.target) != self._where:
            self._gone = f"{self.name}: its cgroup or network namespace has gone"
        return self._gone

    def deploy(self, request_mcpu: float | None) -> None:
        """See `GroupWeight.deploy`; a nice that was yielded stays."""
        if "nice" not in self.yielded:
            self.weight.deploy(request_mcpu)
            self.held = self.held._replace(nice=self.held.nice if self.threads.active else 0)

    def read(self, scope: NiceScope) -> Held:
        """What holds in the kernel; raises ActuatorError."""
        nice = self.weight.read() if scope == "group" else self.threads.read()
        return Held(self.quota.read(), nice, math.inf if self.egress is None else self.egress.read())

    def deviation(self, knob: KnobName) -> str | None:
        """What the kernel has in place of what was written last; None where that holds, or where a slice is gone."""
        if self._gone:
            return None
        try:
            found = [told for part in self._parts(knob) if (told := part.deviation()) is not None]
        except ActuatorError as error:
            if error.vanished:  # not somebody's change; the next write says it
                return None
            raise
        return "; ".join(found) or None

    def found(self, knob: KnobName) -> float:
        """What the kernel has of one knob, in its unit; a rate whose shaper was taken off is none."""
        if knob == "cpu_limit_mcpu":
            return self.quota.read()
        if knob == "nice":
            return self.threads.read() if self.threads.active else self.weight.read()
        with contextlib.suppress(ActuatorError):
            return math.inf if self.egress is None else self.egress.read()
        return math.inf

    def adopt(self, knob: KnobName) -> float:
        """Take what the kernel has for what holds; raises ActuatorError."""
        return self._hold(knob, [part.adopt() for part in self._parts(knob)])

    def reassert(self, knob: KnobName) -> float:
        """Write again what holds here; raises ActuatorError."""
        return self._hold(knob, [part.reassert() for part in self._parts(knob)])

    def restorers(self) -> list[Callable[[], None]]:
        """What puts each knob back as found, except those that were yielded."""
        return [part.restore for knob in KNOB_FIELDS if knob not in self.yielded for part in self._all_parts(knob)]

    def close(self) -> None:
        """Release files and sockets."""
        for knob in (self.quota, self.weight, self.egress):
            if knob is not None:
                knob.close()

    def _all_parts(self, knob: KnobName) -> list[Knob]:
        if knob == "cpu_limit_mcpu":
            return [self.quota]
        if knob == "nice":
            return [self.weight, self.threads]
        return [] if self.egress is None else [self.egress]

    def _parts(self, knob: KnobName) -> list[Knob]:
        """The same without threads that are not reniced."""
        return [part for part in self._all_parts(knob) if part is not self.threads or self.threads.active]

    def _hold(self, knob: KnobName, values: list[float]) -> float:
        """The last part's value counts: threads are what a nice of process scope means."""
        if not values:
            return math.inf
        self.held = self.held._replace(**{knob: float(values[-1])})
        return values[-1]

    def _set_nice(self, nice: int, scope: NiceScope) -> int:
        """Nice of one scope; that of the other is put back."""
        if scope == "group":
            if self.threads.active:
                self.threads.restore()
            return self.weight.set(nice)
        self.weight.set(0)
        return self.threads.set(nice)

    def _note(self, error: ActuatorError, errors: list[str]) -> None:
        """A slice of which something has vanished is not written any more."""
        errors.append(f"{self.name}: {error}")
        if error.vanished:
            self._gone = errors[-1]


def _identity(target: SliceTargets) -> tuple[tuple[int, int] | None, ...]:
    """What tells a slice's group and namespace from later ones of the same names; None for what is not there."""
    found: list[tuple[int, int] | None] = []
    for path in (target.cgroup, target.netns):
        try:
            stat = None if path is None else path.stat()
        except OSError:
            stat = None
        found.append(None if stat is None else (stat.st_dev, stat.st_ino))
    return tuple(found)
