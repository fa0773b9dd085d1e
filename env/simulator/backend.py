"""The simulator as a backend: L independent nodes that advance together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from slicepilot.configs import ConfigError
from slicepilot.env.arrays import FloatArray, IntArray
from slicepilot.env.backend import Context, Receipt
from slicepilot.env.knobs import NUM_KNOBS, Knobs
from slicepilot.env.slices import Promises, SliceSet
from slicepilot.env.telemetry import Telemetry

from .engine import Engine
from .exogenous import Exogenous, NodeEvents, TiledSource, Traffic, tile
from .generators import LaneGenerators
from .hardware import Hardware, HardwareArrays
from .quota_writes import QuotaWrites
from .scenario import Scenario


@dataclass
class SimulatorRun:
    """One run of L lanes before it starts: all that is drawn at a reset."""

    traffic: Traffic
    events: NodeEvents
    hardware: HardwareArrays
    period_s: FloatArray
    promises: Promises
    threads: FloatArray
    request_mcpu: FloatArray
    num_steps: int


class RunSource(Protocol):
    """Where a simulator's runs come from: a named scenario, or random mixtures for training."""

    @property
    def slices(self) -> SliceSet: ...

    def draw(self, lanes: int, rng: Any) -> SimulatorRun:
        """Draw one run for each lane from a NumPy generator; `ScenarioRuns` takes `LaneGenerators` as well."""
        ...


class ScenarioRuns:
    """The same scenario in every lane; lanes differ by noise and by on/off phases.

    Args:
        scenario: what happens.
        hardware: the node, else the scenario's.
        control_period_s: else the scenario's.
        request_mcpu: Kubernetes CPU requests (S,) of the pods, else the slice specs'.
        slices: else the scenario's.
    """

    def __init__(
        self,
        scenario: Scenario,
        hardware: Hardware | None = None,
        control_period_s: float | None = None,
        request_mcpu: FloatArray | None = None,
        slices: SliceSet | None = None,
    ) -> None:
        self.scenario, self.slices = scenario, slices or scenario.slice_set()
        self.hardware = hardware or scenario.hardware_spec()
        self.control_period_s = control_period_s or scenario.control_period_s
        self.request_mcpu = request_mcpu

    def draw(self, lanes: int, rng: np.random.Generator | LaneGenerators) -> SimulatorRun:
        """One run per lane."""
        slices, ones = self.slices, np.ones((1, lanes), np.float32)
        classes = self.scenario.uplink_rows(slices, self.hardware.uplink_mbps)
        request = slices.column("cpu_request_mcpu") if self.request_mcpu is None else self.request_mcpu[:, None]
        return SimulatorRun(
            traffic=Traffic.of(self.scenario, slices, lanes, rng),
            events=NodeEvents.of(self.scenario, slices, lanes),
            hardware=HardwareArrays(self.hardware, lanes, None if classes is None else classes * ones[None]),
            period_s=np.full(lanes, self.control_period_s, np.float32),
            promises=Promises.of(slices, lanes),
            threads=slices.column("upf_threads") * ones,
            request_mcpu=np.asarray(request * ones, np.float32),
            num_steps=max(1, round(self.scenario.duration_s / self.control_period_s)),
        )


def repeated_slices(episodes: ScenarioRuns, num_slices: int) -> ScenarioRuns:
    """The same node and loads with the slices repeated in order, or cut; CPUs and uplink grow or shrink along."""
    base = episodes.slices
    slices = base.repeated(num_slices)
    loads = {name: episodes.scenario.loads.get(base.names[i % len(base)], ()) for i, name in enumerate(slices.names)}
    share = num_slices / len(base)
    hardware = replace(
        episodes.hardware,
        logical_cpus=episodes.hardware.logical_cpus * share,
        physical_cores=episodes.hardware.physical_cores * share,
        uplink_mbps=episodes.hardware.uplink_mbps * share,
    )
    scenario = replace(episodes.scenario, loads=loads)
    return ScenarioRuns(scenario, hardware, slices=slices)


class SimulatorBackend:
    """`Backend` over the fluid engine. Deterministic by seed: the same seed and actions give the same telemetry.

    A reset without a seed continues the generator of the previous run. The first measurement, taken without control,
    is period 0; a run has ``context.num_steps`` further periods.

    Lanes share a generator, unless `reset` gets a seed for each lane: then a lane plays, bit for bit, what a backend of
    one lane plays with that seed, and can be started anew while the others go on (`restart`).

    Args:
        episodes: where runs come from.
        num_lanes: nodes that advance together, L.
        copies: so many lanes each meet the same node, promises, arrivals and noise, so that what differs between them
            is what their agents did: lane l is a copy of lane l mod (L / copies). Divides L.
    """

    def __init__(self, episodes: RunSource, num_lanes: int = 1, copies: int = 1) -> None:
        if copies < 1 or num_lanes % copies:
            raise ValueError(f"copies = {copies}; expected a divisor of num_lanes = {num_lanes}")
        self.episodes, self.slices, self.num_lanes, self.copies = episodes, episodes.slices, num_lanes, copies
        self.engine = Engine(len(self.slices), num_lanes)
        self._rng: np.random.Generator | LaneGenerators = np.random.default_rng()
        self._context: Context | None = None

    @property
    def context(self) -> Context:
        """Fixed facts of the current run; raises RuntimeError before the first reset."""
        if self._context is None:
            raise RuntimeError("the simulator has not been reset yet: call reset() first")
        return self._context

    def reset(self, seed: int | Sequence[int | None] | None = None) -> Telemetry:
        """Draw and start a run.

        Args:
            seed: of all lanes, or a list with the seed of each; None goes on with the lane's generator.

        Raises:
            ConfigError: a list of another length, or where runs do not come from a scenario or lanes are copies.
        """
        if isinstance(seed, Sequence):
            self._seed_lanes(range(self.num_lanes), seed)
        elif seed is not None:
            self._rng = np.random.default_rng(seed)
        self._load()
        return self.engine.advance()

    @property
    def own_generators(self) -> bool:
        """Whether each lane has a generator of its own, so that `restart` can be called."""
        return isinstance(self._rng, LaneGenerators)

    def restart(self, lanes: IntArray, seed: Sequence[int | None] | None = None) -> Telemetry:
        """Start a run in the lanes of these numbers while the others go on, and measure its first period.

        Args:
            lanes: in ascending order, at least one.
            seed: of each of them; None goes on with the lane's generator.

        Raises:
            ConfigError: lanes share a generator; a list of seeds of another length.
        """
        if not isinstance(self._rng, LaneGenerators):
            raise ConfigError("seed: lanes that start apart have a generator each: expected a seed for each lane")
        if seed is not None:
            self._seed_lanes(lanes, seed)
        part = SimulatorBackend(self.episodes, len(lanes))
        part._rng = self._rng.of(lanes)
        part._load().block_steps = 1 + self.engine.rows_left
        part.engine.advance()
        self.engine.adopt(part.engine, lanes)
        self._quota_writes.adopt(part._quota_writes, lanes)
        return self.engine.telemetry

    def _seed_lanes(self, lanes: Sequence[int] | IntArray, seed: Sequence[int | None]) -> None:
        if not isinstance(self.episodes, ScenarioRuns) or self.copies > 1:
            raise ConfigError(f"seed = a list of {len(seed)}: these lanes are drawn together: expected a number")
        if len(seed) != len(lanes):
            raise ConfigError(f"seed = a list of {len(seed)}: expected {len(lanes)} entries, one for each lane")
        if not isinstance(self._rng, LaneGenerators):
            self._rng = LaneGenerators([np.random.default_rng() for _ in range(self.num_lanes)])
        for lane, number in zip(lanes, seed, strict=True):
            if number is not None:
                self._rng.generators[lane] = np.random.default_rng(number)

    def _load(self) -> Exogenous:
        """Draw a run and put it into the engine; its arrivals and noise."""
        copies = self.copies
        episode = self.episodes.draw(self.num_lanes // copies, self._rng)
        exogenous = Exogenous(
            episode.traffic,
            episode.events,
            episode.hardware,
            episode.period_s,
            self._rng.spawn(1)[0],
            episode.num_steps + 1,
        )
        context = Context(
            period_s=episode.period_s,
            logical_cpus=episode.hardware.logical_cpus,
            uplink_mbps=episode.hardware.uplink_mbps,
            promises=episode.promises,
            threads=episode.threads,
            num_steps=episode.num_steps,
            traits=episode.hardware.traits(episode.request_mcpu),
        )
        self._context = context = tile(context, copies)
        hardware = tile(episode.hardware, copies)
        self._quota_writes = QuotaWrites(context.period_s, 1e-3 * hardware.cfs_period_ms, len(self.slices))
        self.engine.load(
            TiledSource(exogenous, copies) if copies > 1 else exogenous,
            hardware,
            context.period_s,
            context.threads,
            tile(episode.request_mcpu, copies),
        )
        return exogenous

    def apply(self, knobs: Knobs) -> Receipt:
        """Set the knobs; the simulator takes any values, but at short periods not every change at once (`QuotaWrites`).

        Raises:
            ValueError: an array that is not (3, S, L); the compiled step would read beyond their ends.
        """
        shape = (NUM_KNOBS, len(self.slices), self.num_lanes)
        if knobs.values.shape != shape:
            raise ValueError(f"knobs: shape {knobs.values.shape}; expected {shape}")
        applied = self._quota_writes.hold(knobs, self.engine.state)
        self.engine.apply(applied)
        return Receipt(applied)

    def observe(self) -> Telemetry:
        """Play the next control period."""
        return self.engine.advance()

    def close(self) -> None:
        """Nothing to release."""
