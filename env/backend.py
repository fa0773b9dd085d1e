"""The contract between the environment or the control loop and whatever carries the traffic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from .arrays import BoolArray, FloatArray, IntArray
from .knobs import Knobs
from .telemetry import Telemetry

if TYPE_CHECKING:  # without pydantic, which many of those do without that have names from here
    from .slices import Promises, SliceSet

PACERS = ("none", "edt", "tbf", "htb")
"""Kinds of egress pacers: none that could be moved, earliest departure times (Cilium), token buckets of Linux' tc."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The result of a request to set knobs: ``applied`` are the values that hold now, ``error`` says what failed."""

    applied: Knobs
    error: str | None = None

    def same_as(self, other: Receipt) -> bool:
        """Whether both say the same, as `Knobs.same_as`."""
        return self.error == other.error and self.applied.same_as(other.applied)


@dataclass(frozen=True, slots=True)
class NodeTraits:
    """How a node's egress is paced, where its packets wait and what its CPUs are, for L lanes, (L,) each.

    Attributes:
        pacer: index into `PACERS`.
        cfs_period_s: of CPU limits.
        n3_buffer_packets: what a UPF's N3 socket holds.
        pacer_ms: how long a token bucket's queue can get at its own rate; 0 for kinds not bounded in time.
        pacer_packets: what an HTB class's queue holds; 0 for kinds not bounded in packets.
        physical_cores: of which SMT makes the logical CPUs.
        request_mcpu: CPU requests (S, L) of the pods, from which the weight of nice 0 follows; 0: no request.
        uplink_classes: bool (L,), whether the shared uplink has a class for each slice, so that no slice waits in
            another slice's queue; None: in no lane.
    """

    pacer: FloatArray
    cfs_period_s: FloatArray
    n3_buffer_packets: FloatArray
    pacer_ms: FloatArray
    pacer_packets: FloatArray
    physical_cores: FloatArray
    request_mcpu: FloatArray
    uplink_classes: BoolArray | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """What is fixed for one run of L lanes and known to the controller.

    ``period_s``, ``logical_cpus``, ``uplink_mbps``: (L,); ``threads``: CPUs that each UPF can use at once, (S, L). On a
    live node CPUs and threads can change: these arrays are then updated in place between ticks, so read them at every
    decision and keep no copy.
    ``traits``: how the node queues and paces; None where that is not known.
    ``moves``: knobs that can be moved, bool (3, S, L); None: all can. Requests to move the others have no effect.
    ``sharing``: groups of slices whose UPF is one process: the process gets the sum of the CPU time requested for them.
    ``oldest_s``: how old measurements are at times, when all is well; 0 where they end with the period.
    """

    period_s: FloatArray
    logical_cpus: FloatArray
    uplink_mbps: FloatArray
    promises: Promises
    threads: FloatArray
    num_steps: int
    traits: NodeTraits | None = None
    moves: BoolArray | None = None
    sharing: tuple[tuple[int, ...], ...] = ()
    oldest_s: float = 0.0

    @classmethod
    def alike(
        cls,
        slices: SliceSet,
        period_s: float,
        logical_cpus: float,
        uplink_mbps: float | None,
        num_steps: int,
        lanes: int = 1,
    ) -> Context:
        """Of runs in lanes that are alike; an uplink whose rate is None has no end."""
        from .slices import Promises

        uplink = np.inf if uplink_mbps is None else uplink_mbps
        period, cpus, link = (np.full(lanes, value, np.float32) for value in (period_s, logical_cpus, uplink))
        threads = np.repeat(slices.column("upf_threads"), lanes, axis=1)
        return cls(period, cpus, link, Promises.of(slices, lanes), threads, num_steps)


@runtime_checkable
class SaysWhatHolds(Protocol):
    """A backend that can say at any time which knobs hold."""

    @property
    def receipt(self) -> Receipt: ...


@runtime_checkable
class StartsLanesApart(Protocol):
    """A backend whose ``reset`` takes a list with the seed of each lane, and which can then start some lanes anew.

    ``own_generators``: whether it can now; ``restart`` takes the numbers of the lanes and their seeds, None for their
    generators to go on, and returns the telemetry of all lanes, in which these are at their first measurement.
    """

    @property
    def own_generators(self) -> bool: ...

    def restart(self, lanes: IntArray, seed: Sequence[int | None] | None = None) -> Telemetry: ...


class Backend(Protocol):
    """Simulator, testbed, Kubernetes or replay behind one interface.

    ``reset`` starts a run and returns the first measurement, taken without control, or on a live node under its
    original settings. ``apply`` sets knobs for the periods to come. ``observe`` returns the measurement of the next
    control period, which a simulator computes and a live backend waits for. ``context`` is valid after ``reset``.
    """

    slices: SliceSet
    num_lanes: int

    @property
    def context(self) -> Context: ...

    def reset(self, seed: int | None = None) -> Telemetry: ...

    def apply(self, knobs: Knobs) -> Receipt: ...

    def observe(self) -> Telemetry: ...

    def close(self) -> None: ...


def held_at_reset(backend: Backend) -> Knobs:
    """Which knobs hold after `Backend.reset`: what the backend says, or else none."""
    if isinstance(backend, SaysWhatHolds):
        return backend.receipt.applied
    return Knobs.none(*backend.context.threads.shape)
