"""``slicepilot node`` and ``testbed``."""

from typing import Literal

from slicepilot.configs.documents import Document

from .shared import Knob


class TestbedSlice(Document):
    """A UPF with its sessions."""

    name: str
    netns: str
    """Its network namespace."""
    pid: int
    alive: bool
    sessions: int
    """PDU sessions."""
    cgroup: str


class TestbedStatus(Document):
    """A testbed that is up."""

    name: str
    """The prefix of all its objects."""
    slices: list[TestbedSlice]


class TestbedUp(TestbedStatus):
    """A testbed that was started."""

    up_s: float
    """Time that the start took."""


class DiscoveredUpf(Document):
    """A process that is, or may be, a UPF; null for values that could not be determined."""

    slice: str
    """A proposed name of its slice."""
    pid: int
    process: str
    netns: str
    """Its network namespace: the name in `ip netns`, or a path."""
    cgroup: str | None
    """Null in the root group."""
    n3: str | None
    """Interface with GTP-U."""
    n6: str | None
    """Interface towards the data network."""
    n4: str | None
    """Interface with PFCP."""
    tun: str | None
    confidence: str
    """`sure`, or `unclear`: used only on request."""
    owner: str | None
    """Whose it is, where it is marked as another's (controller, testbed, pod): used only if it is named."""
    ue_pools: list[str]
    """Networks that are routed to its TUN devices."""
    why: list[str]
    """The evidence, and what is unclear."""


TrialRatio = dict[Literal["value", "low", "high"], float]


class KnobTrial(Document):
    """The effect of a knob that was moved back and forth: ratios with 99.5% intervals, moved to not moved."""

    moved_to: float
    carried_ratio: TrialRatio
    delay_p99_ratio: TrialRatio


class KnobAuthority(Document):
    """Whether a knob acts on a slice's packets."""

    authority: bool | None
    """Null: not known yet. Knobs without authority are not moved."""
    verdict: Literal["acts", "does not act", "not known yet"]
    why: str
    """Evidence and reason."""
    remedy: str
    """What to do; empty for nothing."""
    tried: KnobTrial | None
    """With `--try`, where there was enough traffic."""


class LearnedSessions(Document):
    """What was learned from PFCP on N4."""

    sessions: int
    tunnels: int
    qfis: list[int]


class CheckedSlice(Document):
    """A slice of a node with UPFs that others operate."""

    slice: str
    process: str
    measured: bool
    """Whether packets were seen at both ends."""
    traffic: dict[
        Literal[
            "offered_mbps",
            "carried_mbps",
            "match_ratio",
            "delay_p50_us",
            "delay_p99_us",
            "cpu_use_mcpu",
            "cpu_us_per_packet",
        ],
        float | None,
    ]
    """Null where no packet passed; `match_ratio` is the share of packets that were recognised."""
    learned: LearnedSessions | None
    """Null where the slice does not learn from sessions."""
    knobs: dict[Knob, KnobAuthority]
    notes: list[str]
    """What an operator should know before control starts."""


IdentifiedErrors = dict[
    Literal[
        "throughput_mean_pct",
        "throughput_median_pct",
        "throughput_p90_pct",
        "throughput_within_10_pct",
        "delay_p99_median_factor",
        "delay_p99_p90_factor",
        "delay_p99_within_1_5_pct",
        "delay_p99_within_2_pct",
    ],
    float,
]


class IdentifiedSlice(Document):
    """A slice's UPF under observation."""

    slice: str
    cost_us: float | None
    """CPU time per packet including wake-ups; null for too few packets, or without its own cgroup."""
    cpus_at_once: float
    """99th percentile of the CPUs that it used in a control period."""


class IdentifiedNode(Document):
    """Hardware parameters of a node, estimated from its traffic."""

    hardware: str
    """The file that was written."""
    upf_cost_us: float
    """CPU time per packet in a thread that does not sleep."""
    slices: list[IdentifiedSlice]
    known: list[str]
    """Parameters from configuration, machine and actuators."""
    measured: list[str]
    """Parameters that were measured directly."""
    fitted: list[str]
    """Parameters that were fitted in the simulator."""
    assumed: list[str]
    """Parameters from the file that the node's configuration names."""
    unseen: IdentifiedErrors
    """Errors of the simulator on segments that were held out."""


class Identified(Document):
    """Hardware parameters of the simulator, fitted to this machine."""

    hardware: str
    """The file that was written."""
    fitted: IdentifiedErrors
    """Errors on the loads that were used for the fit."""
    unseen: IdentifiedErrors
    """Errors on other loads."""
    repeated: IdentifiedErrors
    """Differences of the machine from itself, when the other loads are repeated with other phases."""


class Named(Document):
    """A name that commands take."""

    name: str
    description: str
    """Empty for configurations."""
