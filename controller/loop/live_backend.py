"""One node as a backend: telemetry from the kernel, knobs in the kernel, a period in real time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from slicepilot.controller.actuators.egress import QUEUE_PACKETS
from slicepilot.controller.system.cores import physical_cores
from slicepilot.controller.system.realtime import no_collections, on_time
from slicepilot.controller.telemetry.throttling import ThrottleMeter
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import PACERS, Context, NodeTraits, Receipt
from slicepilot.env.knobs import KnobName, Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

from .ticks import AbsoluteTicks

ENDLESS = 1 << 31
"""Control periods of a run that nothing ends."""


class TelemetrySource(Protocol):
    """Where measurements come from.

    Attributes:
        tasks: what has to be called between ticks beside `check`, and how often, in seconds.
        counts, remarks: see `LiveBackend`.
    """

    tasks: tuple[tuple[Callable[[], object], float], ...]
    remarks: list[str]

    @property
    def counts(self) -> dict[str, int]: ...

    def measure(self) -> Telemetry:
        """Figures of one lane since the last call; arrays belong to the source and hold until the next call."""
        ...

    def warm_up(self) -> None:
        """Go through the motions of `measure` without ending the window: brings code and data into the caches."""

    def check(self) -> list[str]:
        """Report what cannot be measured any more, and why; mark such slices invalid, and take up what has come back.

        May take milliseconds; called about once a second, between ticks.
        """
        ...

    def delay_counts(self) -> npt.NDArray[np.uint32]:
        """Delays of all timed packets so far, a histogram per slice (S, BUCKETS).

        `slicepilot.controller.telemetry.histogram` has the buckets and their quantiles.
        """
        ...

    def close(self) -> None: ...


class Actuator(Protocol):
    """Applies knobs or, in shadow, does not: `NodeActuator`, `ShadowActuator`, `CanaryActuator`.

    Attributes:
        receipt: of the last `apply`; before the first, the values that hold.
        powerless: it would set knobs, but none can be moved now.
        not_moved: why knobs, by slice and name, cannot be moved now: the kernel refuses it, or others have set them.
    """

    receipt: Receipt

    @property
    def powerless(self) -> bool: ...

    @property
    def not_moved(self) -> Mapping[tuple[str, KnobName], str]: ...

    def apply(self, knobs: Knobs) -> Receipt:
        """Set knobs (S, 1); says what holds."""
        ...

    def rehearse(self) -> None:
        """Go through the motions of `apply` without effect: brings code and data into the caches."""

    def deploy(self, request_mcpu: FloatArray | None) -> None:
        """Set the pods' CPU requests (S,), from which the weight of nice 0 follows."""

    def refresh(self) -> list[str]:
        """Look after what may have changed, between ticks; what is lost, and why."""
        ...

    def close(self) -> None:
        """Restore the original knobs and release everything."""


def live_context(
    slices: SliceSet,
    period_s: float,
    uplink_mbps: float,
    logical_cpus: float | None = None,
    num_steps: int = ENDLESS,
    traits: NodeTraits | None = None,
) -> Context:
    """Facts about a live node that do not change.

    Args:
        slices: of the node.
        period_s: control period.
        uplink_mbps: rate of the shared N6 uplink.
        logical_cpus: of the node; none takes those this process may use.
        num_steps: control periods of one run.
        traits: how it queues and paces, None where that is not known.
    """
    cpus = len(os.sched_getaffinity(0)) if logical_cpus is None else logical_cpus
    return replace(Context.alike(slices, period_s, cpus, uplink_mbps, num_steps), traits=traits)


def live_traits(slices: SliceSet, quota_period_ms: float, n3_buffer_packets: float, paced: bool = True) -> NodeTraits:
    """The traits of a node whose knobs are those of `slicepilot.controller.actuators`.

    ``paced``: whether egress can be shaped, by HTB then.
    """

    def lane(value: float) -> FloatArray:
        return np.full(1, value, np.float32)

    return NodeTraits(
        pacer=lane(PACERS.index("htb" if paced else "none")),
        cfs_period_s=lane(1e-3 * quota_period_ms),
        n3_buffer_packets=lane(n3_buffer_packets),
        pacer_ms=lane(0.0),
        pacer_packets=lane(QUEUE_PACKETS if paced else 0.0),
        physical_cores=lane(physical_cores()),
        request_mcpu=slices.column("cpu_request_mcpu"),
    )


class LiveBackend:
    """`Backend` of one lane over a running node.

    ``observe`` waits for the next tick and measures; a loop that wants to time the two apart calls `wait` and
    `measure`. The same knobs and figures as the simulator's: ``throttled_ratio`` comes from the groups' ``cpu.stat``
    here, all others from the source.

    Args:
        slices: order of all arrays.
        source: telemetry; owned, closed with the backend.
        actuator: knobs; owned, restored and closed with the backend.
        cgroups: the slices' groups, for ``cpu.stat``; none where a slice has none. None: the source has
            ``throttled_ratio`` as well.
        context: what is fixed for a run (`live_context`).
        period_s: control period, which the context has in single precision only.

    Attributes:
        tasks: what has to be called between ticks beside `check`, and how often, in seconds.
    """

    num_lanes = 1

    def __init__(
        self,
        slices: SliceSet,
        source: TelemetrySource,
        actuator: Actuator,
        cgroups: Sequence[Path | None] | None,
        context: Context,
        period_s: float,
    ) -> None:
        self.slices, self.context = slices, context
        self.ticks = AbsoluteTicks(period_s)
        self._source, self._actuator = source, actuator
        self.tasks = source.tasks
        self._throttling = None if cgroups is None else ThrottleMeter(cgroups, period_s)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """No copies, by ``copy`` or pickle: both would move the same knobs, and descriptors cannot be copied."""
        raise TypeError(
            f"{type(self).__name__}: cannot be copied or pickled: it holds a running node's knobs and measurements; "
            "make a second environment or backend, or use the simulator"
        )

    @property
    def receipt(self) -> Receipt:
        return self._actuator.receipt

    @property
    def powerless(self) -> bool:
        """Whether no knob can be moved, by an actuator that would."""
        return self._actuator.powerless

    @property
    def not_moved(self) -> Mapping[tuple[str, KnobName], str]:
        """Why knobs, by slice and name, cannot be moved now."""
        return self._actuator.not_moved

    def reset(self, seed: int | None = None) -> Telemetry:
        """Remove all control, and measure a period with a fresh window; ``seed`` is for the loads."""
        self._begin(seed)
        self.apply(Knobs.none(len(self.slices)))
        return self._first()

    def start(self, seed: int | None = None) -> Telemetry:
        """As `reset`, but with the present knobs."""
        self._begin(seed)
        return self._first()

    def _begin(self, seed: int | None) -> None:
        """Start the loads, of a backend that has loads of its own."""

    def _first(self) -> Telemetry:
        self.ticks.restart()
        self.measure()
        return self.observe()

    def use(self, actuator: Actuator) -> Actuator:
        """Act through another actuator from now on; returns the previous actuator, still open."""
        before, self._actuator = self._actuator, actuator
        return before

    def apply(self, knobs: Knobs) -> Receipt:
        return self._actuator.apply(knobs)

    def deploy(self, request_mcpu: FloatArray | None) -> None:
        """Set the pods' CPU requests (S,) that an agent assumes (`Agent.request_mcpu`); None restores the originals."""
        self._actuator.deploy(request_mcpu)

    @contextlib.contextmanager
    def real_time(self) -> Iterator[None]:
        """Inside, this thread is scheduled as the controller's loop is."""
        with no_collections(), on_time():
            yield

    def observe(self) -> Telemetry:
        self.wait()
        return self.measure()

    def wait(self, prepare: Callable[[], None] | None = None) -> int:
        """Sleep until the next tick; returns how late it is, in ns.

        ``prepare`` is called just before it, so that the tick itself finds what it needs in the caches.
        """
        return self.ticks.wait(prepare)

    def warm_up(self) -> None:
        self._source.warm_up()
        self._actuator.rehearse()

    def measure(self) -> Telemetry:
        telemetry = self._source.measure()
        if self._throttling is not None:
            self._throttling.fill(telemetry, self._actuator.receipt.applied.cpu_limit_mcpu)
        return telemetry

    def delay_counts(self) -> npt.NDArray[np.uint32]:
        return self._source.delay_counts()

    def check(self) -> list[str]:
        """Report what cannot be measured or moved any more, and why; take up what has come back. Between ticks."""
        if self._throttling is not None:
            self._throttling.heal()
        return [*self._source.check(), *self._actuator.refresh()]

    def counts(self) -> dict[str, int]:
        """Counts of the source of measurements, by the metric's name without prefix and ``_total``."""
        return dict(self._source.counts)

    def remarks(self) -> list[str]:
        """Remarks on measurements that are used nevertheless."""
        return list(self._source.remarks)

    def close(self) -> None:
        """Restore the knobs, then release everything; more than once does nothing."""
        try:
            self._actuator.close()
        finally:
            if self._throttling is not None:
                self._throttling.close()
            self._source.close()
