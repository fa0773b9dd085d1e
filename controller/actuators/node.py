"""All knobs of all slices of one node."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np

from slicepilot.controller.system.background import PATIENT_WAIT_S, BackgroundCaller
from slicepilot.controller.system.cgroup_paths import managers
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Receipt
from slicepilot.env.knobs import EGRESS, KNOB_FIELDS, NUM_KNOBS, KnobName, Knobs, NiceScope

from .cilium.rate import ThrottleRate
from .shapers import Shapers
from .shared_cpu import SharedCpu
from .slice_knobs import OriginalCpu, Remember, SliceKnobs, identity_of
from .targets import Pacing, SliceTargets, paced_by

__all__ = ["Deviation", "NodeActuator", "SliceTargets"]


@dataclass(frozen=True)
class Deviation:
    """A knob that another program has set.

    Attributes:
        slice: its name.
        knob: its name.
        actual: the kernel's value, in the knob's unit (inf: no limit).
        ours: the value that was set here.
        text: both values as the kernel has them, since shares and rates may agree where files do not; and which
            programs may have changed it.
    """

    slice: str
    knob: KnobName
    actual: float
    ours: float
    text: str


class NodeActuator:
    """Applies `Knobs` of one lane, (3, S, 1), to the kernel, and restores the original settings.

    They come back with `restore`, at the end of a ``with`` block, at `close`, and at the latest when the
    interpreter exits. A slice whose group or device has vanished is not written any more: its error is in every
    receipt, the other slices go on. `refresh` takes it up again when it has come back.

    Egress rates are set by a thread, which may have to wait for the kernel (`BackgroundCaller`): a receipt says what is
    confirmed.

    Args:
        targets: order of all arrays.
        quota_period_us: CFS period of limits; none keeps each group's.
        drop_horizon_ms: where Cilium paces a slice, how long its packets may have to wait at most; None leaves what is
            there. See docs/cilium.md for what that does to large segments.
        renew: called with a slice that has come back, before its knobs are touched again (`JournalKeeper.renew`).
        remember: called with a slice's name and its threads' nice before they are reniced (`ThreadNice`).
        pacing: which slices Cilium paces: as the journal has it (`JournalKeeper.pacing`), so that all is put back.
        wait_s: how long to wait for such a thread: in a loop `slicepilot.controller.system.background.LOOP_WAIT_S`.

    Attributes:
        receipt: of the last `apply`; before the first, the original settings.
        powerless: no knob of any slice can be moved now.
        restored: slices and knobs that have their original settings after the last `restore`.

    Raises:
        ActuatorError: a target is missing or not permitted; nothing is left changed.
    """

    def __init__(
        self,
        targets: Sequence[SliceTargets],
        quota_period_us: int | None = None,
        drop_horizon_ms: float | None = None,
        remember: Remember | None = None,
        renew: Callable[[SliceTargets], object] | None = None,
        wait_s: float = PATIENT_WAIT_S,
        pacing: Pacing = paced_by,
    ) -> None:
        self._shapers, self._opener = Shapers(wait_s), BackgroundCaller("opener", wait_s)
        self._opening: dict[int, Future[SliceKnobs]] = {}
        self._open = partial(
            SliceKnobs,
            quota_period_us=quota_period_us,
            drop_horizon_ms=drop_horizon_ms,
            shapers=self._shapers,
            remember=remember,
            pacing=pacing,
        )
        self._on_renewed = renew
        self._slices: list[SliceKnobs] = []
        self._requests: list[float | None] = [None] * len(targets)
        self.restored: frozenset[tuple[str, KnobName]] = frozenset()
        self._shared, self._wanted = SharedCpu(targets), Knobs.none(len(targets)).values
        atexit.register(self.close)
        try:
            for target in targets:
                self._slices.append(self._open(target))
            self.receipt = Receipt(self._held("group"))
            self.powerless = not any(item.movable for item in self._slices)
        except BaseException:
            self.close()
            raise
        self._shape = (NUM_KNOBS, len(targets), 1)

    def apply(self, knobs: Knobs) -> Receipt:
        """Set what differs from what holds; the receipt says what holds now and what failed.

        When everything requested holds exactly, its knobs are the same as those given, down to the last bit.

        Raises:
            ValueError: an array that is not (3, S, 1).
        """
        if knobs.values.shape != self._shape:
            raise ValueError(f"knobs: shape {knobs.values.shape}; expected {self._shape}")
        # Plain numbers: Python compares them faster than NumPy's.
        limits, nices, rates = knobs.values[..., 0].tolist()
        scope = knobs.nice_scope
        errors: list[str] = []
        changed, exact = False, True
        if self._shared:
            self._shared.join(limits, nices)
            changed = not np.array_equal(self._wanted, knobs.values)
            exact, self._wanted = False, knobs.values
        if self._opening:
            self._take_up()
        before = [knob.held for knob in self._slices]
        for knob, limit, nice, rate in zip(self._slices, limits, nices, rates, strict=True):
            knob.set(limit, nice, rate, scope, errors)
        if (waits := self._shapers.settle()) is not None:
            errors.append(waits)
        for knob, held_before, limit, nice, rate in zip(self._slices, before, limits, nices, rates, strict=True):
            held = knob.settled(errors)
            if held != held_before:
                changed = True
            if held != (limit, nice, rate):
                exact = False
        if errors or self.powerless:
            self.powerless = not any(item.movable for item in self._slices)
        if errors:
            self.receipt = Receipt(self._held(scope), "; ".join(errors))
        elif changed or self.receipt.error is not None or scope != self.receipt.applied.nice_scope:
            self.receipt = Receipt(knobs if exact else self._held(scope))
        return self.receipt

    def rehearse(self) -> None:
        """Go through the motions of `apply` without effect: what holds is requested again, and of egress what was
        requested last, which may not be confirmed yet."""
        knobs = self.receipt.applied
        for index, item in enumerate(self._slices):
            if item.egress is not None and knobs.values[EGRESS, index, 0] != item.egress.wanted:
                if knobs is self.receipt.applied:
                    knobs = Knobs(knobs.values.copy(), knobs.nice_scope)
                knobs.values[EGRESS, index, 0] = item.egress.wanted
        self.apply(knobs)

    def deploy(self, request_mcpu: FloatArray | None) -> None:
        """Give each group the weight of its pod's CPU request (S,), None the original weight, as the weight of nice 0.

        Group nice is 0 afterwards. Raises ActuatorError.
        """
        self._requests = (
            [None] * len(self._slices) if request_mcpu is None else self._shared.sums(request_mcpu.tolist())
        )
        for knob, request in zip(self._slices, self._requests, strict=True):
            knob.deploy(request)

    def read(self, nice_scope: NiceScope = "group") -> Knobs:
        return self._knobs([knob.read(nice_scope) for knob in self._slices], nice_scope)

    def deviations(self) -> list[Deviation]:
        """Knobs that another program has set since they were written here, except yielded knobs.

        Reads every knob back, some 15 us a slice. Raises ActuatorError.
        """
        result = []
        self._shapers.look()
        for item in self._slices:
            for knob in KNOB_FIELDS:
                text = None if knob in item.yielded else item.deviation(knob)
                if text is not None:
                    cgroup = None if knob == "egress_mbps" else item.target.cgroup
                    if cgroup is not None and (names := managers(cgroup)):
                        text += f"; perhaps by {' or '.join(names)}"
                    result.append(Deviation(item.name, knob, item.actual(knob), getattr(item.held, knob), text))
        return result

    def refresh(self) -> list[str]:
        """Report what has vanished or does not move, and why; take up slices that have come back, with their present
        settings and the weight of their request.

        To be called between ticks: some 20 us a slice. A thread opens slices that have come back, and writes them to
        the journal.
        """
        for index, opening in list(self._opening.items()):
            if opening.done() and (error := opening.exception()) is not None:
                del self._opening[index]
                if not isinstance(error, ActuatorError):
                    raise error
        for index, item in enumerate(self._slices):
            if item.vanished() and index not in self._opening:
                self._opening[index] = self._opener.call(partial(self._again, item))
        self._take_up()
        lost = [text for item in self._slices if (text := item.vanished())]
        self.powerless = not any(item.movable for item in self._slices)
        return [*lost, *(text for item in self._slices for text in item.look_again())]

    @property
    def not_moved(self) -> dict[tuple[str, KnobName], str]:
        """Why knobs, by slice and name, cannot be moved now: the kernel refuses it, or others have set them."""
        result = dict.fromkeys(self.yielded, "another program has set it")
        for item in self._slices:
            for knob, why in item.refused.items():
                result[item.name, knob] = why
        return result

    def _again(self, lost: SliceKnobs) -> SliceKnobs:
        """A slice that has vanished, as it is now; raises ActuatorError where it has not come back.

        Two groups may have swapped names. Then the settings that another slice has made in the group of this name would
        be taken for original settings, so a group that another slice holds is refused, and the group must not change
        while it is opened.
        """
        lost.release()
        identity = identity_of(lost.target)
        if holder := next((item.name for item in self._slices if item is not lost and item.holds(identity)), None):
            raise ActuatorError(f"{lost.target.cgroup}: is the group that {holder} has still set")
        if self._on_renewed is not None:
            self._on_renewed(lost.target)
        fresh = self._open(lost.target)
        if identity != identity_of(lost.target):
            fresh.release()
            raise ActuatorError(f"{lost.target.cgroup}: was renamed while it was opened")
        return fresh

    def _take_up(self) -> None:
        """Take up slices that have come back; `refresh` reports why others have not."""
        for index, opening in list(self._opening.items()):
            if opening.done() and opening.exception() is None:
                fresh = self._opening.pop(index).result()
                try:
                    fresh.deploy(self._requests[index])
                except ActuatorError:  # gone again: `refresh` looks anew
                    fresh.release()
                    continue
                self._slices[index] = fresh
                self._renew()

    def yield_knob(self, name: str, knob: KnobName) -> None:
        """Leave a slice's knob to the program that has set it: it is neither written nor restored, and receipts have
        its actual value. Called again for a yielded knob, it reads the value anew.

        Raises ActuatorError; KeyError for an unknown slice.
        """
        item = self._slice(name)
        item.adopt(knob)
        item.yielded.add(knob)
        self._renew()

    def reassert(self, name: str, knob: KnobName, newest: bool = False) -> None:
        """Write again what was written last, also after `yield_knob`, which ends.

        Args:
            newest: what holds now is put back in the end, and no longer the original (`original_cpu`).

        Raises ActuatorError; KeyError for an unknown slice.
        """
        item = self._slice(name)
        if newest:
            item.rebase(knob)
        item.reassert(knob)
        item.yielded.discard(knob)
        self._renew()

    @property
    def yielded(self) -> list[tuple[str, KnobName]]:
        """Slices and knobs that were left to other programs."""
        return [(item.name, knob) for item in self._slices for knob in KNOB_FIELDS if knob in item.yielded]

    def original_cpu(self, name: str) -> OriginalCpu:
        """The CPU settings that will be restored for a slice; KeyError for an unknown slice."""
        return self._slice(name).original_cpu

    @property
    def paced(self) -> dict[str, ThrottleRate]:
        """Cilium's entries of slices that it paces, by name."""
        return {item.name: throttle for item in self._slices if (throttle := item.throttle) is not None}

    def restore(self) -> None:
        """Put everything back; what has vanished needs nothing, and what was yielded stays.

        Raises:
            ActuatorError: all that could not be restored, after everything else has been.
        """
        failures: list[str] = []
        restored = set()
        # Egress last: that may have to wait for others.
        for item, knob in sorted(product(self._slices, KNOB_FIELDS), key=lambda item: item[1] == "egress_mbps"):
            for restore in item.restorers(knob):
                try:
                    restore()
                except ActuatorError as error:
                    if not error.vanished:
                        failures.append(f"{item.name}: {error}")
                else:
                    restored.add((item.name, knob))
        self.restored = frozenset(restored)
        if failures:
            raise ActuatorError("not restored: " + "; ".join(failures))

    def close(self) -> None:
        """Restore and release everything; more than once does nothing. Raises as `restore` does."""
        self._opener.close()
        self._take_up()
        try:
            self.restore()
        finally:
            for knob in self._slices:
                knob.close()
            self._slices = []
            self._shapers.close()
            atexit.unregister(self.close)

    def __enter__(self) -> NodeActuator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _slice(self, name: str) -> SliceKnobs:
        for item in self._slices:
            if item.name == name:
                return item
        raise KeyError(name)

    def _renew(self) -> None:
        self.powerless = not any(item.movable for item in self._slices)
        scope = self.receipt.applied.nice_scope
        self.receipt = Receipt(self._held(scope), self.receipt.error)

    def _held(self, nice_scope: NiceScope) -> Knobs:
        return self._knobs([knob.held for knob in self._slices], nice_scope)

    def _knobs(self, rows: Sequence[tuple[float, float, float]], nice_scope: NiceScope) -> Knobs:
        values = np.array(np.asarray(rows, np.float32).T, order="C")[..., None]
        self._shared.part(values, self._wanted)
        return Knobs(values, nice_scope)
