"""Simulates measured arrivals under two series of knobs, side by side."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from slicepilot.data.intervals import weighted_quantile
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.knobs import Knobs
from slicepilot.env.promises import RATE_TOLERANCE, PromiseMeter
from slicepilot.env.simulator.backend import SimulatorBackend, SimulatorRun
from slicepilot.env.simulator.exogenous import NodeEvents, Traffic
from slicepilot.env.simulator.hardware import Hardware, HardwareArrays
from slicepilot.env.simulator.kernels import DEFAULT_PACKET_BYTES
from slicepilot.env.slices import Promises, SliceSet
from slicepilot.env.telemetry import SLICE_FIELDS, Telemetry

Array = npt.NDArray[np.float64]
RUNS = 2
OFFERED, CARRIED, DELAY, CPU_USE = (
    SLICE_FIELDS.index(name) for name in ("offered_mbps", "carried_mbps", "delay_p99_us", "cpu_use_mcpu")
)
PACKET_BYTES = 64, 9000
MIN_CARRIED_MBPS = 0.5


class MeasuredEpisodes:
    """Runs of a node with measured arrival rates, one per control period; ``threads``: CPUs that each UPF can use at
    once, (S,)."""

    def __init__(self, slices: SliceSet, hardware: Hardware, period_s: float, threads: FloatArray) -> None:
        self.slices, self.hardware, self.period_s, self._threads = slices, hardware, period_s, threads
        self.offered_mbps: FloatArray = np.zeros((1, len(slices)), np.float32)
        self.packet_bytes: FloatArray = np.full(len(slices), DEFAULT_PACKET_BYTES, np.float32)

    def draw(self, lanes: int, rng: np.random.Generator) -> SimulatorRun:
        """The same run in every lane, but for the noise."""
        del rng
        ticks, count = self.offered_mbps.shape
        offered = np.repeat(self.offered_mbps[..., None], lanes, axis=-1)
        ones = np.ones((1, lanes), np.float32)
        return SimulatorRun(
            traffic=Traffic.measured(offered, self.packet_bytes[:, None], self.period_s),
            events=NodeEvents.none(count, lanes),
            hardware=HardwareArrays(self.hardware, lanes),
            period_s=np.full(lanes, self.period_s, np.float32),
            promises=Promises.of(self.slices, lanes),
            threads=np.asarray(self._threads[:, None] * ones, np.float32),
            request_mcpu=self.slices.column("cpu_request_mcpu") * ones,
            num_steps=ticks,
        )


class Replay:
    """Simulates windows of a run and evaluates them; CPUs and uplink of the identified hardware are the run's."""

    def __init__(self, description: dict[str, Any], slices: SliceSet, hardware: Hardware) -> None:
        cpus = float(description["logical_cpus"])
        node = dataclasses.replace(
            hardware,
            logical_cpus=cpus,
            physical_cores=min(hardware.physical_cores, cpus),
            uplink_mbps=float(description["uplink_mbps"] or hardware.uplink_mbps),
        )
        threads = np.asarray(description["threads"], np.float32)
        self._episodes = MeasuredEpisodes(slices, node, description["period_s"], threads)
        self._backend = SimulatorBackend(self._episodes, RUNS, copies=RUNS)
        self._scope, self._slices, self._period_s = description["nice_scope"], slices, description["period_s"]

    def play(self, measured: FloatArray, knobs: FloatArray, seed: int) -> FloatArray:
        """Telemetry of both runs, (N, 8, S, 2), period by period as measured.

        Args:
            measured: telemetry of each period, (N, 8, S); the offered rate arrives in packets of a length that
                explains the used CPU time.
            knobs: set at the end of each period, (N, 3, S, 2).
            seed: of the noise, which both runs share.
        """
        self._episodes.offered_mbps = measured[:, OFFERED]
        self._episodes.packet_bytes = self._packet_bytes(measured)
        backend = self._backend
        series = [backend.reset(seed).slices.copy()]
        for values in np.ascontiguousarray(knobs[:-1]):
            backend.apply(Knobs(values, self._scope))
            series.append(backend.observe().slices.copy())
        return np.asarray(series)

    def _packet_bytes(self, measured: FloatArray) -> FloatArray:
        """Packet lengths by the identified cost of a packet, since telemetry does not have them."""
        carried, used = (measured[:, row].mean(axis=0, dtype=np.float64) for row in (CARRIED, CPU_USE))
        packets_per_s = 1e3 * used / self._episodes.hardware.upf_cost_us
        known = (carried > MIN_CARRIED_MBPS) & (packets_per_s > 0)
        length = np.divide(
            125_000 * carried, packets_per_s, out=np.full(len(known), float(DEFAULT_PACKET_BYTES)), where=known
        )
        return np.clip(length, *PACKET_BYTES).astype(np.float32)

    def figures(self, series: FloatArray, skip: int, fit: dict[str, float]) -> tuple[Array, Array, Array]:
        """Carried Mbit/s (S, R), p99 us (S, R), and broken promises in s (S, R + 4), of telemetry (N, 8, S, R), whose
        first two are the runs, without the first ``skip`` periods.

        The other four are those of the two runs by a pessimistic and an optimistic model, with the errors in ``fit``.
        """
        carried, delay = (series[skip:, row].astype(np.float64) for row in (CARRIED, DELAY))
        rate, factor = fit["throughput_median_pct"] / 100, fit["delay_p99_median_factor"]
        worse, better = (series[..., :RUNS].copy() for _ in range(2))
        # A slice without losses would not lose because the model divides CPUs slightly wrongly.
        loses = carried.mean(axis=0) < RATE_TOLERANCE * series[skip:, OFFERED].mean(axis=0, dtype=np.float64)
        for shifted, shift, stretch in ((worse, -rate, factor), (better, rate, 1 / factor)):
            shifted[:, CARRIED] *= np.where(loses[:, :RUNS], np.float32(1 + shift), np.float32(1))
            shifted[:, DELAY] *= np.float32(stretch)
        broken = self._broken_s(np.concatenate([series, worse, better], axis=-1), skip)
        return carried.mean(axis=0), weighted_quantile(delay, carried, 0.99), broken

    def _broken_s(self, series: FloatArray, skip: int) -> Array:
        lanes = series.shape[-1]
        context, ones = self._backend.context, np.ones(lanes, np.float32)
        meter = PromiseMeter(
            Context(
                period_s=self._period_s * ones,
                logical_cpus=context.logical_cpus[0] * ones,
                uplink_mbps=context.uplink_mbps[0] * ones,
                promises=Promises.of(self._slices, lanes),
                threads=context.threads[:, :1] * ones,
                num_steps=len(series),
            )
        )
        template = Telemetry.empty(len(self._slices), lanes)
        # The meter averages over seconds, so earlier rates count too.
        broken = [meter.broken(dataclasses.replace(template, slices=slices)) for slices in series][skip:]
        return self._period_s * np.sum(broken, axis=0, dtype=np.float64)
