"""The segments of a node, repeated in the simulator: the arrivals that were measured, under the knobs that held."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slicepilot.env.knobs import Knobs
from slicepilot.env.simulator.backend import SimulatorBackend, SimulatorRun
from slicepilot.env.simulator.exogenous import NodeEvents, Traffic
from slicepilot.env.simulator.hardware import Hardware, HardwareArrays
from slicepilot.env.simulator.kernels import DEFAULT_PACKET_BYTES
from slicepilot.env.slices import Promises, SliceSet
from slicepilot.training.calibration.fitting import Observed

from .segments import SETTLE_S, Segment


class SegmentRuns:
    """`slicepilot.env.simulator.backend.RunSource` of measured segments, a segment in each lane."""

    def __init__(self, segments: Sequence[Segment], slices: SliceSet, hardware: Hardware, period_s: float) -> None:
        self.slices, self._hardware, self._period_s = slices, hardware, period_s
        self.offered_mbps = np.stack([item.offered_mbps for item in segments], axis=-1)
        lengths = [
            np.divide(item.bytes, item.arrived, out=np.full(len(slices), DEFAULT_PACKET_BYTES), where=item.arrived > 0)
            for item in segments
        ]
        self._packet_bytes = np.stack(lengths, axis=-1).astype(np.float32)

    def draw(self, lanes: int, rng: np.random.Generator) -> SimulatorRun:
        """All segments; ``lanes`` is their number."""
        del rng
        steps, count, known = self.offered_mbps.shape
        assert lanes == known
        ones = np.ones((1, lanes), np.float32)
        return SimulatorRun(
            traffic=Traffic.measured(self.offered_mbps, self._packet_bytes, self._period_s),
            events=NodeEvents.none(count, lanes),
            hardware=HardwareArrays(self._hardware, lanes),
            period_s=np.full(lanes, self._period_s, np.float32),
            promises=Promises.of(self.slices, lanes),
            threads=self.slices.column("upf_threads") * ones,
            request_mcpu=np.asarray(self.slices.column("cpu_request_mcpu") * ones, np.float32),
            num_steps=steps - 1,
        )


def simulate(segments: Sequence[Segment], slices: SliceSet, hardware: Hardware, period_s: float, seed: int) -> Observed:
    """The simulator's results for the segments."""
    backend = SimulatorBackend(SegmentRuns(segments, slices, hardware, period_s), len(segments))
    backend.reset(seed)
    series = []
    for knobs in np.stack([item.knobs for item in segments], axis=-1)[1:]:
        backend.apply(Knobs(np.ascontiguousarray(knobs)))
        seen = backend.observe()
        series.append(np.stack((seen.offered_mbps, seen.carried_mbps, seen.delay_p99_us)))  # of views, a copy
    return Observed.of(np.asarray(series)[round(SETTLE_S / period_s) :])


def observed(segments: Sequence[Segment], period_s: float) -> Observed:
    """The measured values, in the same form."""
    rows = [np.stack([item.offered_mbps, item.carried_mbps, item.delay_p99_us], axis=1) for item in segments]
    return Observed.of(np.stack(rows, axis=-1)[1:][round(SETTLE_S / period_s) :])
