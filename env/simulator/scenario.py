"""What happens to the slices: loads, arrivals, departures and node events, from YAML or drawn at random."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, ConfigDict, Field

from slicepilot.configs import ConfigError, load, locate
from slicepilot.configs.loader import beside
from slicepilot.data.reference import application_mix
from slicepilot.data.traces.captures import Chosen
from slicepilot.data.traces.reading import read_trace
from slicepilot.data.traces.trace import PacketTrace, Replay
from slicepilot.env.arrays import FloatArray
from slicepilot.env.slices import SliceSet

from .hardware import UPLINK_PRIORITIES, Hardware, Positive

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
VIDEO_FRAME_HZ = 60.0
NEVER_S = 1e9

LoadKind = Literal["video", "cbr", "poisson", "onoff", "apps", "tcp", "trace"]
NonNegative = Annotated[float, Field(ge=0)]


def _check_knots(knots: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    if any(b[0] <= a[0] for a, b in itertools.pairwise(knots)):
        raise ValueError("times must increase")
    return knots


Profile = Annotated[tuple[tuple[NonNegative, NonNegative], ...], AfterValidator(_check_knots)]


@dataclass(frozen=True)
class Ramp:
    """Flows join: one more every ``every_s`` until ``max_flows`` (the Andrade study: every 240 s, up to 5)."""

    __pydantic_config__ = _STRICT
    every_s: Positive
    max_flows: Annotated[int, Field(ge=1)]


def _check_network(source: str) -> str:
    ip_network(source)
    return source


@dataclass(frozen=True)
class TraceFile:
    """Where a load of kind ``trace`` comes from.

    Attributes:
        file: CSV with the columns time, slice and Mbit/s, or a capture (pcap, pcapng); relative to the scenario file.
        slice: name in the CSV; empty: the slice's own.
        source: subnet of the (inner) source addresses of packets of a capture; empty: any.
        teid: of packets of a capture; None: any.
        scale: factor on the rates.
        speed: how many seconds of the trace are played in a second. Rates of CSV stay, packets come closer.
        loop: begin again at its end; else nothing is sent after it.
    """

    __pydantic_config__ = _STRICT
    file: Annotated[str, Field(min_length=1)]
    slice: str = ""
    source: Annotated[str, AfterValidator(lambda text: _check_network(text) if text else text)] = ""
    teid: Annotated[int, Field(ge=0, lt=1 << 32)] | None = None
    scale: Annotated[float, Field(ge=1e-6, le=1e6)] = 1.0
    speed: Annotated[float, Field(ge=1e-6, le=1e6)] = 1.0
    loop: bool = False

    def read(self, start_s: float = 0.0, end_s: float = NEVER_S) -> Replay:
        """The trace as it is played from ``start_s`` to ``end_s``; raises ConfigError as `read_trace`."""
        chosen = Chosen(ip_network(self.source) if self.source else None, self.teid)
        trace = read_trace(Path(self.file), self.slice, chosen).faster(self.speed)
        return Replay(trace, start_s, end_s, self.scale, self.loop)


NOT_OF_TRACES = ("rate_mbps", "flows", "ramp", "on_s", "off_s", "profile", "answer_bytes", "pause_s")


@dataclass(frozen=True)
class Load:
    """One source of traffic of one slice.

    Kinds: ``video`` (isochronous, 60 frames/s sent as bursts), ``cbr``, ``poisson``, ``onoff`` (``on_s`` at the rate,
    ``off_s`` silent, random phase and +-20% cycle length per run), ``apps`` (``flows`` users, each one of the nine
    replayed applications of Moreira et al., rate from that table), ``tcp`` (elastic: takes what it gets up to the
    rate), ``trace`` (rates in bins, or packets, of a file that ``trace`` names). With ``answer_bytes`` a ``tcp`` user
    asks a server for so many octets again and again, ``pause_s`` apart; what the user sends, requests and
    acknowledgements of ``packet_bytes``, is the load. A testbed runs only such TCP.

    ``rate_mbps`` is per flow; ``profile`` multiplies it along piecewise-linear (time_s, factor) knots.
    """

    __pydantic_config__ = _STRICT
    kind: LoadKind
    rate_mbps: NonNegative = 0.0
    flows: Annotated[int, Field(ge=1)] = 1
    packet_bytes: Annotated[float, Field(ge=40, le=9000)] = 1470.0
    ramp: Ramp | None = None
    on_s: Positive = 1.0
    off_s: NonNegative = 0.0
    start_s: NonNegative = 0.0
    end_s: Positive = NEVER_S
    profile: Profile = ()
    answer_bytes: Annotated[int, Field(ge=0, le=1 << 40)] = 0
    pause_s: NonNegative = 0.0
    trace: TraceFile | None = None

    def __post_init__(self) -> None:
        if (self.kind == "trace") != (self.trace is not None):
            raise ValueError("kind 'trace' and the field trace belong together: trace: {file: day.csv}")
        default = Load.__dataclass_fields__
        if self.trace and (given := [n for n in NOT_OF_TRACES if getattr(self, n) != default[n].default]):
            raise ValueError(f"{given[0]}: not of kind 'trace', whose rates are in its file; expected trace.scale")

    def replay(self) -> Replay | None:
        """What a load of kind ``trace`` plays; None of other kinds. Raises ConfigError as `TraceFile.read`."""
        return self.trace.read(self.start_s, self.end_s) if self.trace else None

    @property
    def mean_rate_mbps(self) -> float:
        """Rate of one flow while it sends."""
        if (replay := self.replay()) is not None:
            return replay.scale * replay.trace.mean_mbps
        return application_mix().mean_mbps if self.kind == "apps" else self.rate_mbps

    @property
    def mean_packet_bytes(self) -> float:
        """Mean packet size; for ``apps`` that of the replayed mix, for packets of a capture theirs."""
        if (replay := self.replay()) is not None and isinstance(replay.trace, PacketTrace):
            return replay.trace.mean_packet_bytes
        return application_mix().mean_packet_bytes if self.kind == "apps" else self.packet_bytes

    @property
    def burst_s(self) -> float:
        """Time over which a source's packets bunch: a frame interval for video, a few packets else."""
        if self.kind == "video":
            return 1.0 / VIDEO_FRAME_HZ
        even = self.kind == "cbr" or (self.trace is not None and not isinstance(self.trace.read().trace, PacketTrace))
        packets = 1.0 if even else 4.0
        return packets * self.mean_packet_bytes * 8e-6 / max(self.mean_rate_mbps * self.flows, 0.1)

    @property
    def rate_cv(self) -> float:
        """Coefficient of variation of the aggregate rate over seconds: heavy-tailed users average out as 1/sqrt(n)."""
        return 0.8 / self.flows**0.5 if self.kind == "apps" else 0.0


@dataclass(frozen=True)
class UplinkClass:
    """A slice's class on the shared uplink, as of an HTB (tc-htb(8)).

    ``guarantee_mbps`` leaves before anything that is borrowed; what no guarantee needs is lent up to ``ceiling_mbps``
    (None: the uplink's rate), to the class of the lowest ``priority`` first, among equals in proportion to their
    guarantees.
    """

    __pydantic_config__ = _STRICT
    guarantee_mbps: Positive
    ceiling_mbps: Positive | None = None
    priority: Annotated[int, Field(ge=0, lt=UPLINK_PRIORITIES)] = 0


def classes_by_promise(slices: SliceSet) -> dict[str, UplinkClass]:
    """A class for each slice: its committed rate guaranteed, no ceiling, the more it weighs the sooner it borrows."""
    weights = sorted({spec.weight for spec in slices.slices}, reverse=True)
    priorities = {weight: min(rank, UPLINK_PRIORITIES - 1) for rank, weight in enumerate(weights)}
    return {spec.name: UplinkClass(spec.sla.committed_mbps, priority=priorities[spec.weight]) for spec in slices.slices}


@dataclass(frozen=True)
class EdgeApplication:
    """Other work on the node: threads that take all CPU time they get, in a cgroup of their own."""

    __pydantic_config__ = _STRICT
    threads: Annotated[int, Field(ge=1, le=256)]
    cpu_request_mcpu: NonNegative = 0.0


@dataclass(frozen=True)
class Scenario:
    """A named run: which slices, on what node, with which loads, for how long.

    ``loads`` maps slice names to their sources; a slice without sources sends nothing. ``absent`` maps a slice to the
    (from_s, to_s) spans in which it does not exist at all. ``uplink_profile`` and ``cpu_profile`` multiply the node's
    uplink rate and CPU capacity along piecewise-linear knots. ``edge`` is what else runs on the node.
    ``uplink_classes`` maps all slices to their classes on the uplink; if it is empty, all slices share a FIFO.
    """

    __pydantic_config__ = _STRICT
    name: str
    description: str
    slices: str
    hardware: str
    duration_s: Positive
    control_period_s: Annotated[float, Field(ge=0.002, le=30)]
    loads: dict[str, tuple[Load, ...]]
    absent: dict[str, tuple[NonNegative, NonNegative]] = field(default_factory=dict)
    uplink_profile: Profile = ()
    cpu_profile: Profile = ()
    edge: EdgeApplication | None = None
    uplink_classes: dict[str, UplinkClass] = field(default_factory=dict)

    @classmethod
    def from_yaml(cls, name_or_path: str) -> Scenario:
        """Load ``configs/scenarios/NAME.yaml`` or a user's file, whose paths are relative to its folder.

        Raises:
            ConfigError: bad value, unknown slice set, hardware or slice name.
        """
        file, scenario = locate("scenarios", name_or_path), load("scenarios", name_or_path, cls)
        scenario = replace(scenario, slices=beside(file, scenario.slices), hardware=beside(file, scenario.hardware))
        names = scenario.slice_set().names
        scenario.hardware_spec()
        for section in ("loads", "absent", "uplink_classes"):
            for name in getattr(scenario, section):
                if name not in names:
                    raise ConfigError(
                        f"scenario {scenario.name}: {section}: unknown slice {name!r}; expected {', '.join(names)}"
                    )
        if missing := [name for name in names if scenario.uplink_classes and name not in scenario.uplink_classes]:
            raise ConfigError(
                f"scenario {scenario.name}: uplink_classes: none for {', '.join(missing)}; expected a class for every "
                f"slice, or none at all"
            )
        loads = {name: tuple(_beside(file, name, load) for load in own) for name, own in scenario.loads.items()}
        return replace(scenario, loads=loads)

    def slice_set(self) -> SliceSet:
        """The slices this scenario runs with."""
        return SliceSet.from_yaml(self.slices)

    def hardware_spec(self) -> Hardware:
        """The node it runs on, and what else runs there."""
        node, edge = Hardware.from_yaml(self.hardware), self.edge
        return replace(node, edge_threads=edge.threads, edge_request_mcpu=edge.cpu_request_mcpu) if edge else node

    def uplink_rows(self, slices: SliceSet, uplink_mbps: float) -> FloatArray | None:
        """The classes of these slices on the uplink, float32 (3, S, 1), rows as `UPLINK_CLASS`; None for a FIFO."""
        if not self.uplink_classes:
            return None
        classes = [self.uplink_classes[name] for name in slices.names]
        rows = [[c.guarantee_mbps, c.ceiling_mbps or uplink_mbps, float(c.priority)] for c in classes]
        return np.asarray(rows, np.float32).T[:, :, None]

    @property
    def num_steps(self) -> int:
        """Control periods in the run."""
        return max(1, round(self.duration_s / self.control_period_s))


def _beside(file: Path, name: str, load: Load) -> Load:
    """A load with the path of its trace relative to the scenario file; reads that, so that faults show at once."""
    if load.trace is None:
        return load
    trace = replace(load.trace, file=str(file.parent / load.trace.file), slice=load.trace.slice or name)
    trace.read()
    return replace(load, trace=trace)
