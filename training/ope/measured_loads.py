"""Runs of the simulator with the arrivals that logged episodes measured, an episode in each lane."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from slicepilot.data.episodes.episodes import Episode as Logged
from slicepilot.env.arrays import FloatArray
from slicepilot.env.encoding import FEATURES, NONE_ABOVE
from slicepilot.env.simulator.backend import SimulatorRun
from slicepilot.env.simulator.exogenous import NodeEvents, Traffic
from slicepilot.env.simulator.hardware import Hardware, HardwareArrays
from slicepilot.env.simulator.kernels import DEFAULT_PACKET_BYTES
from slicepilot.env.simulator.scenario import NEVER_S
from slicepilot.env.telemetry import SLICE_FIELDS

from .estimate import Array
from .logged import ACTIVE, Node, arrivals

EGRESS = FEATURES.index("egress")
OFFERED, CARRIED, CPU_USE = (SLICE_FIELDS.index(name) for name in ("offered_mbps", "carried_mbps", "cpu_use_mcpu"))
PACKET_BYTES = 64, 9000
MIN_VOLUME = 100 * 10.0
"""Mbit/s times periods: a hundred periods of 10 Mbit/s, for instance."""
DRAINED_S = 0.3
BITS_TO_MBPS = 125_000.0


class MeasuredLoads:
    """`slicepilot.env.simulator.backend.RunSource` of measured rates, one per control period.

    A slice that is absent throughout an episode is absent in its run; where it comes and goes it offers nothing
    meanwhile. Episodes shorter than the longest end with their last rates.

    Episodes need telemetry. The hardware is as identified, but CPUs and uplink are the node's.
    """

    def __init__(self, episodes: Sequence[Logged], node: Node, hardware: Hardware) -> None:
        cpus = node.logical_cpus
        uplink = node.uplink_mbps if np.isfinite(node.uplink_mbps) else hardware.uplink_mbps
        cores = min(hardware.physical_cores, cpus)
        self.hardware = dataclasses.replace(hardware, logical_cpus=cpus, physical_cores=cores, uplink_mbps=uplink)
        self.slices, self._node = node.slices, node
        length = max(len(episode) + 1 for episode in episodes)
        measured = [_telemetry(episode) for episode in episodes]
        self._packet_bytes = packet_bytes(episodes, node, self.hardware)
        rates = [np.pad(item[:, OFFERED], ((0, length - len(item)), (0, 0)), mode="edge") for item in measured]
        self._offered_mbps = np.stack(rates, axis=-1)  # (T + 1, S, L)
        self._absent = np.stack([(arrivals(e)[..., ACTIVE] < 0.5).all(axis=0) for e in episodes], axis=-1)

    def draw(self, lanes: int, rng: np.random.Generator) -> SimulatorRun:
        """All runs; ``lanes`` is their number. They differ by their loads and by the noise."""
        del rng
        steps, count, known = self._offered_mbps.shape
        assert lanes == known
        events = NodeEvents.none(count, lanes)
        events.absent_from_s[self._absent] = 0.0
        events.absent_to_s[self._absent] = NEVER_S
        context = self._node.context(lanes, steps - 1)
        return SimulatorRun(
            traffic=Traffic.measured(self._offered_mbps, self._packet_bytes, self._node.period_s),
            events=events,
            hardware=HardwareArrays(self.hardware, lanes),
            period_s=context.period_s,
            promises=context.promises,
            threads=context.threads,
            request_mcpu=np.repeat(self.slices.column("cpu_request_mcpu"), lanes, axis=1),
            num_steps=context.num_steps,
        )


def packet_bytes(episodes: Sequence[Logged], node: Node, hardware: Hardware) -> FloatArray:
    """Mean lengths (S, E) of packets that explain the CPU time that telemetry shows.

    Telemetry does not say how long packets are, but what a packet costs was identified. Only periods count in which no
    egress rate has held for `DRAINED_S`: what a shaper keeps or drops has cost CPU time and is carried later or never.
    A slice of which an episode has too few of them has the mean length of all episodes, by all periods if need be.
    """
    drained = max(1, round(DRAINED_S / node.period_s))
    free = np.stack([_carried_and_used(episode, _free(episode, drained)) for episode in episodes], axis=-1)  # (2, S, E)
    everywhere = free.sum(axis=-1)
    all_periods = np.sum(
        [_carried_and_used(e, np.ones_like(e.observations[..., EGRESS], np.bool_)) for e in episodes], axis=0
    )
    usual = np.where(everywhere[0] > MIN_VOLUME, _length(everywhere, hardware), _length(all_periods, hardware))
    return np.where(free[0] > MIN_VOLUME, _length(free, hardware), usual[:, None]).astype(np.float32)


def _free(episode: Logged, drained: int) -> npt.NDArray[np.bool_]:
    """Where no egress rate has held for so many periods, (T + 1, S)."""
    shaped = np.cumsum(episode.observations[..., EGRESS] <= NONE_ABOVE, axis=0)
    before = np.concatenate([np.zeros_like(shaped[:drained]), shaped[:-drained]])[: len(shaped)]
    return np.asarray(shaped == before)


def _carried_and_used(episode: Logged, periods: npt.NDArray[np.bool_]) -> Array:
    """Sums (2, S) over some periods (T + 1, S), of those in which both were measured."""
    rates = _telemetry(episode)[:, [CARRIED, CPU_USE]]
    both = periods & np.isfinite(rates).all(axis=1)
    return np.asarray(np.where(both[:, None], rates, 0.0).sum(axis=0, dtype=np.float64))


def _length(sums: Array, hardware: Hardware) -> Array:
    """Bytes by rates in Mbit/s and CPU time in mCPU, (2, ...)."""
    carried, packets_per_s = sums[0], 1e3 * sums[1] / hardware.upf_cost_us
    known = (carried > 0) & (packets_per_s > 0)
    default = np.full(known.shape, float(DEFAULT_PACKET_BYTES))
    length = np.divide(BITS_TO_MBPS * carried, packets_per_s, out=default, where=known)
    return np.clip(length, *PACKET_BYTES)


def _telemetry(episode: Logged) -> FloatArray:
    assert episode.telemetry is not None
    return episode.telemetry
