"""The knobs of one slice: set, read back, left to another program, restored."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from slicepilot.controller.system.cgroup import CpuGroup
from slicepilot.controller.system.cgroup_paths import awaited
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.env.knobs import KNOB_FIELDS, KnobName, NiceScope

from .bandwidth import Bandwidth, limit_mcpu
from .cilium.choice import Choice
from .cilium.rate import ThrottleRate
from .egress import EgressRate
from .nice import ThreadNice, ThreadOriginal
from .quota import CpuQuota, PodQuota
from .shapers import Rate, Shaper, Shapers
from .targets import CPU_KNOBS, Pacing, SliceTargets, paced_by, pod_of
from .weight import GroupWeight, weight_refusal

__all__ = ["CPU_KNOBS", "SliceKnobs", "SliceTargets"]

PARTS = ("cgroup", "network namespace")  # of a target, in the order of `identity_of`
Remember = Callable[[str, Sequence[ThreadOriginal]], None]
Knob = CpuQuota | GroupWeight | ThreadNice | Shaper
"""What sets a knob; all methods raise ActuatorError. ``deviation`` is the kernel's value if it differs from the value
that was written last, else None; ``adopt`` takes what the kernel has for what holds, without writing, and returns it;
``reassert`` writes again what holds here, and returns it; ``restore`` puts the original back."""


class Held(NamedTuple):
    """Values that hold: CPU limit in mCPU (inf: none), nice, egress in Mbit/s (inf: none)."""

    cpu_limit_mcpu: float
    nice: float
    egress_mbps: float


class OriginalCpu(NamedTuple):
    """The settings that are restored of a slice's CPU knobs: its quota, its pod's, and the weight; None for knobs that
    are not moved."""

    quota: Bandwidth | None
    pod_quota: Bandwidth | None
    weight: int | None


class SliceKnobs:
    """Opens the knobs of a slice.

    Attributes:
        held: what holds; at first the original settings.
        yielded: knobs that are not written, nor restored: somebody else's values hold. Nor are `SliceTargets.fixed`.
        refused: knobs that the kernel does not let move, and why: they hold what they have, until `look_again`.

    Raises:
        ActuatorError: a target is missing or not permitted; nothing is left changed.
    """

    def __init__(
        self,
        target: SliceTargets,
        quota_period_us: int | None,
        drop_horizon_ms: float | None,
        shapers: Shapers,
        remember: Remember | None = None,
        pacing: Pacing = paced_by,
    ) -> None:
        self.name, self.target, self._shapers = target.name, target, shapers
        self._where = identity_of(target)
        self.refused: dict[KnobName, str] = {}
        self.quota: CpuQuota | None = None
        self.weight: GroupWeight | None = None
        self.threads: ThreadNice | None = None
        self.egress: Shaper | None = None
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            # A group that was to be made for the CPU knobs does not exist if these knobs are left alone.
            unused = target.cgroup is None or (target.left.issuperset(CPU_KNOBS) and awaited(target.cgroup))
            group = None if unused else CpuGroup.at(target.group)
            self._original_limit = math.inf if group is None else limit_mcpu(group)
            self._most_mcpu = min(self._original_limit if target.within_original else math.inf, target.ceiling_mcpu)
            if group is not None and "cpu_limit_mcpu" not in target.left:
                pod = PodQuota(pod_of(group)) if target.moves_pod else None
                self.quota = CpuQuota(group, quota_period_us, pod)
                undo.callback(self.quota.restore)
            if group is not None and "nice" not in target.left:
                weighed = pod_of(group) if target.weighs_pod else group
                if why := weight_refusal(weighed):
                    self.refused["nice"] = why
                else:
                    self.weight = GroupWeight(weighed, target.request_mcpu)
                    note = None if remember is None else lambda originals: remember(target.name, originals)
                    self.threads = ThreadNice(group, note)
            if target.egress_device is not None and "egress_mbps" not in target.left:
                self.egress = shapers.add(_rate(target, target.egress_device, drop_horizon_ms, pacing(target)))
                undo.callback(self.egress.restore)
            self.yielded: set[KnobName] = set()
            # A shaper is put there pacing nothing; where Cilium paces, there is a rate already.
            self.held = Held(*self._read_cpu("group"), math.inf if self.egress is None else self.egress.held)
            self._gone = ""
            undo.pop_all()

    def set(self, limit: float, nice: float, rate: float, scope: NiceScope, errors: list[str]) -> None:
        """Set knobs that differ, and request the egress rate. Failures are added to ``errors`` and do not keep other
        knobs from being set; `settled` returns the values that hold then."""
        if self._gone:
            errors.append(self._gone)
            return
        held_limit, held_nice, held_rate = self.held
        if self._most_mcpu < math.inf:
            limit = min(limit if limit > 0 else math.inf, self._most_mcpu)
        if limit != held_limit and self.quota is not None and self._ours("cpu_limit_mcpu"):
            try:
                held_limit = self.quota.set(limit)
            except ActuatorError as error:
                self._note(error, errors, "cpu_limit_mcpu")
        niced = self.threads is not None and (nice != held_nice or scope != "group" or self.threads.active)
        if niced and self._ours("nice"):
            try:
                held_nice = self._set_nice(int(nice), scope)
            except ActuatorError as error:
                self._note(error, errors, "nice")
        if (held_limit, held_nice) != self.held[:2]:
            self.held = Held(held_limit, held_nice, held_rate)
        if self.egress is not None and "egress_mbps" not in self.yielded:
            self.egress.set(rate)

    def settled(self, errors: list[str]) -> Held:
        """The values that hold, the egress rate as far as it is confirmed; a failure to set it is added to
        ``errors``."""
        shaper = self.egress
        if shaper is not None and not self._gone:
            if (error := shaper.failure()) is not None:
                self._note(error, errors)
            if shaper.held != self.held.egress_mbps:
                self.held = self.held._replace(egress_mbps=shaper.held)
        return self.held

    def _ours(self, knob: KnobName) -> bool:
        return knob not in self.yielded and knob not in self.refused

    @property
    def movable(self) -> bool:
        """Whether any knob of it can be moved now."""
        return not self._gone and any(
            (
                self.quota is not None and self._ours("cpu_limit_mcpu"),
                self.weight is not None and self._ours("nice"),
                self.egress is not None and self._ours("egress_mbps"),
            )
        )

    def look_again(self) -> list[str]:
        """Why knobs do not move; those that the kernel has refused a value of are tried again after this."""
        report = [f"{self.name}: {knob} does not move: {why}" for knob, why in self.refused.items()]
        if self.weight is None:
            self.refused = {knob: why for knob, why in self.refused.items() if knob == "nice"}
        else:
            self.refused = {}
        return report

    @property
    def throttle(self) -> ThrottleRate | None:
        """Cilium's entry, where that is the egress rate; looking into it is allowed on any thread."""
        rate = None if self.egress is None else self.egress.rate
        return rate if isinstance(rate, ThrottleRate) else None

    def vanished(self) -> str:
        """Why a group, namespace or device has gone, also when another has its name now; empty where all are there.

        Some 20 us; what is kept open would not say it: a socket keeps its namespace alive.
        """
        if not self._gone and (now := identity_of(self.target)) != self._where:
            what = [part for part, *ids in zip(PARTS, now, self._where, strict=True) if ids[0] != ids[1]]
            self._gone = f"{self.name}: its {' and '.join(what)} has gone"
        return self._gone

    def holds(self, identity: Sequence[tuple[int, int] | None]) -> bool:
        """Whether a group (`identity_of`) is the group whose CPU knobs this slice has open."""
        return (self.quota is not None or self.weight is not None) and self._where[0] == identity[0]

    def deploy(self, request_mcpu: float | None) -> None:
        if not self._gone and self.weight is not None and self.threads is not None and self._ours("nice"):
            try:
                self.weight.deploy(request_mcpu)
            except ActuatorError as error:
                if error.vanished:
                    raise
                self.refused["nice"] = str(error)
                return
            self.held = self.held._replace(nice=self.held.nice if self.threads.active else 0)

    def read(self, scope: NiceScope) -> Held:
        return Held(*self._read_cpu(scope), math.inf if self.egress is None else self.egress.read())

    def _read_cpu(self, scope: NiceScope) -> tuple[float, float]:
        niced = self.weight if scope == "group" else self.threads
        return (
            self._original_limit if self.quota is None else self.quota.read(),
            0 if niced is None else niced.read(),
        )

    def deviation(self, knob: KnobName) -> str | None:
        """The kernel's value where it differs from the value that was written last; None if equal, or if the slice has
        gone."""
        try:
            result = [report for part in self._parts(knob) if (report := part.deviation()) is not None]
        except ActuatorError as error:
            if error.vanished:  # not somebody's change; the next write says it
                if knob == "egress_mbps" and self.throttle is not None:  # there may be none: what holds is the original
                    self._gone = f"{self.name}: {error}"
                return None
            raise
        return "; ".join(result) or None

    def actual(self, knob: KnobName) -> float:
        """The kernel's value of a knob that deviates, in the knob's unit; inf for a rate whose shaper was removed."""
        if knob == "cpu_limit_mcpu":
            return self._original_limit if self.quota is None else self.quota.read()
        if knob == "nice":
            niced = self.threads if self.threads is not None and self.threads.active else self.weight
            return 0 if niced is None else niced.read()
        return math.inf if self.egress is None else self.egress.seen_mbps

    def adopt(self, knob: KnobName) -> None:
        """Take the kernel's value as the value that holds; raises ActuatorError."""
        self._hold(knob, [part.adopt() for part in self._parts(knob)])

    def reassert(self, knob: KnobName) -> None:
        """Write the held value again; raises ActuatorError."""
        self.refused.pop(knob, None)
        self._hold(knob, [part.reassert() for part in self._parts(knob)])

    def rebase(self, knob: KnobName) -> None:
        """Take the value that another program has set as the original; raises ActuatorError. The original of an egress
        rate stays."""
        if knob == "cpu_limit_mcpu" and self.quota is not None:
            self.quota.rebase()
        if knob == "nice" and self.weight is not None:
            self.weight.rebase()

    @property
    def original_cpu(self) -> OriginalCpu:
        """The CPU settings that will be restored, for the journal."""
        quota, pod = (None, None) if self.quota is None else self.quota.originals
        return OriginalCpu(quota, pod, None if self.weight is None else self.weight.original)

    def restorers(self, knob: KnobName) -> list[Callable[[], None]]:
        """Functions that restore a knob; none for a knob that was yielded or never moved."""
        return [] if knob in self.yielded else [part.restore for part in self._all_parts(knob)]

    def release(self) -> None:
        """Restore the remaining knobs of a slice that has vanished or moved on, and close everything.

        The UPF's former group keeps nothing of ours. An open socket would keep a namespace alive that its owner has
        removed.
        """
        for restore in (restorer for knob in KNOB_FIELDS for restorer in self.restorers(knob)):
            with contextlib.suppress(ActuatorError):
                restore()
        self.close()
        self.quota = self.weight = self.threads = self.egress = None

    def close(self) -> None:
        for knob in (self.quota, self.weight):
            if knob is not None:
                knob.close()
        if self.egress is not None:
            shaper, self.egress = self.egress, None
            self._shapers.remove(shaper)

    def _all_parts(self, knob: KnobName) -> list[Knob]:
        parts: dict[KnobName, list[Knob | None]] = {
            "cpu_limit_mcpu": [self.quota],
            "nice": [self.weight, self.threads],
            "egress_mbps": [self.egress],
        }
        return [part for part in parts[knob] if part is not None]

    def _parts(self, knob: KnobName) -> list[Knob]:
        """The parts of a knob, without threads that are not reniced; none of a slice that has gone."""
        parts = [] if self._gone else self._all_parts(knob)
        return [part for part in parts if not isinstance(part, ThreadNice) or part.active]

    def _hold(self, knob: KnobName, values: list[float]) -> None:
        """The last part's value counts: threads are what a nice of process scope means."""
        if values:
            self.held = self.held._replace(**{knob: float(values[-1])})

    def _set_nice(self, nice: int, scope: NiceScope) -> int:
        """Nice of a scope; that of the other is put back."""
        assert self.weight is not None
        assert self.threads is not None
        if scope == "group":
            if self.threads.active:
                self.threads.restore()
            return self.weight.set(nice)
        self.weight.set(0)
        return self.threads.set(nice)

    def _note(self, error: ActuatorError, errors: list[str], knob: KnobName | None = None) -> None:
        """A slice of which something has vanished is not written any more, nor a knob that the kernel refuses."""
        errors.append(f"{self.name}: {error}")
        if error.vanished:
            self._gone = errors[-1]
        elif knob is not None:
            self.refused[knob] = str(error)


def _rate(target: SliceTargets, device: str, drop_horizon_ms: float | None, choice: Choice) -> Rate:
    """The object that sets the egress rate: Cilium's entry of the pod if it paces the slice, else a shaper."""
    if choice.throttle is not None:
        return ThrottleRate(choice.throttle, drop_horizon_ms)
    return EgressRate(device, target.netns, target.part)


def identity_of(target: SliceTargets) -> tuple[tuple[int, int] | None, ...]:
    """Device and inode of a slice's group and namespace, which distinguish them from later groups and namespaces of the
    same names; None for what does not exist."""
    result: list[tuple[int, int] | None] = []
    for path in (target.cgroup, target.netns):
        try:
            stat = None if path is None else path.stat()
        except OSError:
            stat = None
        result.append(None if stat is None else (stat.st_dev, stat.st_ino))
    return tuple(result)
