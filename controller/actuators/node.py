"""All knobs of all slices of one node."""

from __future__ import annotations

import atexit
import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from ...env.backend import Receipt
from ...env.knobs import Knobs, NiceScope
from ...env.slices import FloatArray
from .cgroup import CpuGroup
from .egress import EgressConfig, open_egress
from .kernel_file import ActuatorError
from .nice import ThreadNice
from .quota import CpuQuota, QuotaConfig
from .weight import GroupWeight


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


class NodeActuator:
    """Applies `Knobs` of one lane, arrays (S, 1), to the kernel, and restores what it found.

    What was found comes back with `restore`, at the end of a ``with`` block, at `close`, and at the latest when the
    interpreter exits. A slice whose group or device has vanished is not tried again: its error is in every receipt, the
    other slices go on.

    Raises:
        ActuatorError: a target is missing or not permitted; nothing is left changed.
    """

    def __init__(
        self, targets: Sequence[SliceTargets], quota: QuotaConfig | None = None, egress: EgressConfig | None = None
    ) -> None:
        self._slices: list[_SliceKnobs] = []
        atexit.register(self.close)
        try:
            for target in targets:
                self._slices.append(_SliceKnobs(target, quota, egress))
            self._receipt = Receipt(self.read())
        except BaseException:
            self.close()
            raise
        self._shape = (len(targets), 1)

    def apply(self, knobs: Knobs) -> Receipt:
        """Set what differs from what holds; the receipt says what holds now and what failed.

        When nothing had to be written the receipt is the last one, the same object; when everything asked for holds
        exactly, its knobs are the ones given.

        Raises:
            ValueError: arrays that are not (S, 1).
        """
        for array in (knobs.cpu_limit_mcpu, knobs.nice, knobs.egress_mbps):
            if array.shape != self._shape:
                raise ValueError(f"knobs: shape {array.shape}; accepted: {self._shape}")
        limits, nices, rates = _column(knobs.cpu_limit_mcpu), _column(knobs.nice), _column(knobs.egress_mbps)
        scope = knobs.nice_scope
        errors: list[str] = []
        changed, exact = False, True
        for knob, limit, nice, rate in zip(self._slices, limits, nices, rates, strict=True):
            before = knob.held
            held = knob.set(limit, nice, rate, scope, errors)
            if held != before:
                changed = True
            if held != (limit, nice, rate):
                exact = False
        if errors:
            self._receipt = Receipt(self._held(scope), "; ".join(errors))
        elif changed or self._receipt.error is not None or scope != self._receipt.applied.nice_scope:
            self._receipt = Receipt(knobs if exact else self._held(scope))
        return self._receipt

    def deploy(self, request_mcpu: FloatArray | None) -> None:
        """Give each group the weight that its pod's CPU request (S,) stands for; None is the weight as found.

        It is what nice 0 means from now on; group nice is 0 afterwards. Raises ActuatorError.
        """
        requests = [None] * len(self._slices) if request_mcpu is None else request_mcpu.tolist()
        for knob, request in zip(self._slices, requests, strict=True):
            knob.deploy(request)

    def read(self, nice_scope: NiceScope = "group") -> Knobs:
        """What holds in the kernel; raises ActuatorError."""
        return _knobs([knob.read(nice_scope) for knob in self._slices], nice_scope)

    def restore(self) -> None:
        """Put everything back as found; what has vanished needs nothing.

        Raises:
            ActuatorError: all that could not be restored, after everything else has been.
        """
        failures: list[str] = []
        for knob in self._slices:
            for restore in knob.restorers():
                try:
                    restore()
                except ActuatorError as error:
                    if not error.vanished:
                        failures.append(f"{knob.name}: {error}")
        if failures:
            raise ActuatorError("not restored: " + "; ".join(failures))

    def close(self) -> None:
        """Restore and release everything; more than once does nothing. Raises as `restore` does."""
        try:
            self.restore()
        finally:
            for knob in self._slices:
                knob.close()
            self._slices = []
            atexit.unregister(self.close)

    def __enter__(self) -> NodeActuator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _held(self, nice_scope: NiceScope) -> Knobs:
        return _knobs([knob.held for knob in self._slices], nice_scope)


class _SliceKnobs:
    """The knobs of one slice; ``held`` is (CPU limit in mCPU, nice, egress in Mbit/s)."""

    def __init__(self, target: SliceTargets, quota: QuotaConfig | None, egress: EgressConfig | None) -> None:
        self.name = target.name
        group = CpuGroup.at(target.cgroup)
        with contextlib.ExitStack() as undo:
            self.quota = CpuQuota(group, quota)
            undo.callback(self.quota.close)
            undo.callback(self.quota.restore)
            self.weight = GroupWeight(group)
            undo.callback(self.weight.close)
            self.threads = ThreadNice(group)
            device = target.egress_device
            self.egress = open_egress(device, target.netns, egress) if device is not None else None
            undo.pop_all()
        self.held: tuple[float, float, float] = self.read("group")
        self._gone = ""

    def set(
        self, limit: float, nice: float, rate: float, scope: NiceScope, errors: list[str]
    ) -> tuple[float, float, float]:
        """Set what differs; returns what holds. What fails is added to ``errors``, the other knobs are still set."""
        if self._gone:
            errors.append(self._gone)
            return self.held
        held_limit, held_nice, held_rate = self.held
        if limit != held_limit:
            try:
                held_limit = self.quota.set(limit)
            except ActuatorError as error:
                self._note(error, errors)
        if nice != held_nice or scope != "group" or self.threads.active:
            try:
                held_nice = self._set_nice(int(nice), scope)
            except ActuatorError as error:
                self._note(error, errors)
        if rate != held_rate and self.egress is not None:
            try:
                held_rate = self.egress.set(rate)
            except ActuatorError as error:
                self._note(error, errors)
        self.held = held_limit, held_nice, held_rate
        return self.held

    def _note(self, error: ActuatorError, errors: list[str]) -> None:
        """A slice of which something has vanished is not tried again."""
        errors.append(f"{self.name}: {error}")
        if error.vanished:
            self._gone = errors[-1]

    def deploy(self, request_mcpu: float | None) -> None:
        self.weight.deploy(request_mcpu)
        self.held = self.held[0], 0 if not self.threads.active else self.held[1], self.held[2]

    def _set_nice(self, nice: int, scope: NiceScope) -> int:
        """Nice of one scope; that of the other is put back."""
        if scope == "group":
            if self.threads.active:
                self.threads.restore()
            return self.weight.set(nice)
        self.weight.set(0)
        return self.threads.set(nice)

    def read(self, scope: NiceScope) -> tuple[float, float, float]:
        nice = self.weight.read() if scope == "group" else self.threads.read()
        return self.quota.read(), nice, math.inf if self.egress is None else self.egress.read()

    def restorers(self) -> tuple[Callable[[], None], ...]:
        own = (self.quota.restore, self.weight.restore, self.threads.restore)
        return own if self.egress is None else (*own, self.egress.restore)

    def close(self) -> None:
        for knob in (self.quota, self.weight, self.egress):
            if knob is not None:
                knob.close()


def _column(array: FloatArray) -> list[float]:
    """Plain numbers: Python compares them faster than NumPy's."""
    return array.ravel().tolist()


def _knobs(rows: Sequence[tuple[float, float, float]], nice_scope: NiceScope) -> Knobs:
    limits, nices, rates = np.asarray(rows, np.float32).T.reshape(3, -1, 1)
    return Knobs(limits, nices, rates, nice_scope)
