"""What happens to the slices: loads, arrivals, departures and node events, from YAML or drawn at random."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from slicepilot.configs import ConfigError, load, locate
from slicepilot.configs.loader import beside
from slicepilot.data.reference import application_mix
from slicepilot.env.slices import SliceSet

from .hardware import Hardware, Positive

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
VIDEO_FRAME_HZ = 60.0
NEVER_S = 1e9

LoadKind = Literal["video", "cbr", "poisson", "onoff", "apps", "tcp"]
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


@dataclass(frozen=True)
class Load:
    """One source of traffic of one slice.

    Kinds: ``video`` (isochronous, 60 frames/s sent as bursts), ``cbr``, ``poisson``, ``onoff`` (``on_s`` at the rate,
    ``off_s`` silent, random phase and +-20% cycle length per run), ``apps`` (``flows`` users, each one of the nine
    replayed applications of Moreira et al., rate from that table), ``tcp`` (elastic: takes what it gets up to the
    rate). With ``answer_bytes`` a ``tcp`` user asks a server for so many octets again and again, ``pause_s`` apart;
    what the user sends, requests and acknowledgements of ``packet_bytes``, is the load. A testbed runs only such TCP.

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

    @property
    def mean_rate_mbps(self) -> float:
        """Rate of one flow while it sends."""
        return application_mix().mean_mbps if self.kind == "apps" else self.rate_mbps

    @property
    def mean_packet_bytes(self) -> float:
        """Mean packet size; for ``apps`` that of the replayed mix."""
        return application_mix().mean_packet_bytes if self.kind == "apps" else self.packet_bytes

    @property
    def burst_s(self) -> float:
        """Time over which a source's packets bunch: a frame interval for video, a few packets else."""
        if self.kind == "video":
            return 1.0 / VIDEO_FRAME_HZ
        packets = 1.0 if self.kind == "cbr" else 4.0
        return packets * self.mean_packet_bytes * 8e-6 / max(self.mean_rate_mbps * self.flows, 0.1)

    @property
    def rate_cv(self) -> float:
        """Coefficient of variation of the aggregate rate over seconds: heavy-tailed users average out as 1/sqrt(n)."""
        return 0.8 / self.flows**0.5 if self.kind == "apps" else 0.0


@dataclass(frozen=True)
class EdgeApplication:
    """Other work on the node: threads that take all CPU time they get, in a cgroup of their own."""

    __pydantic_config__ = _STRICT
    threads: Annotated[int, Field(ge=1, le=256)]
    cpu_request_mcpu: NonNegative = 0.0


@dataclass(frozen=True)
class Scenario:
    """A named run: which slices, on what node, with which loads, for how long.

    ``loads`` maps slice names to their sources; a slice without one stays silent. ``absent`` maps a slice to the
    (from_s, to_s) spans in which it does not exist at all. ``uplink_profile`` and ``cpu_profile`` multiply the node's
    uplink rate and CPU capacity along piecewise-linear knots. ``edge`` is what else runs on the node.
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
        for section in ("loads", "absent"):
            for name in getattr(scenario, section):
                if name not in names:
                    raise ConfigError(
                        f"scenario {scenario.name}: {section}: unknown slice {name!r}; accepted: {', '.join(names)}"
                    )
        return scenario

    def slice_set(self) -> SliceSet:
        """The slices this scenario runs with."""
        return SliceSet.from_yaml(self.slices)

    def hardware_spec(self) -> Hardware:
        """The node it runs on, and what else runs there."""
        node, edge = Hardware.from_yaml(self.hardware), self.edge
        return replace(node, edge_threads=edge.threads, edge_request_mcpu=edge.cpu_request_mcpu) if edge else node

    @property
    def num_steps(self) -> int:
        """Control periods in the run."""
        return max(1, round(self.duration_s / self.control_period_s))
