"""``slicepilot doctor``, and ``slicepilot testbed``: what a machine can run, and the user plane on it."""

from typing import Annotated

from slicepilot.configs.documents import Document, Example

from .shared import ScenarioName, SliceName


class Check(Document):
    """Something that was looked at."""

    name: Annotated[str, Example("numba")]
    """What was looked at."""
    ok: bool
    """Whether it is as it should be."""
    found: Annotated[str, Example("0.65.0")]
    """What was found."""
    needed_for: Annotated[str, Example("simulate")]
    """Which commands it matters to."""
    hint: Annotated[str, Example("pip install 'slicepilot[train]'")]
    """How to mend it; may be empty where nothing is missing."""


class TestbedSlice(Document):
    """A UPF with its sessions."""

    name: SliceName
    """The slice's name."""
    netns: Annotated[str, Example("sp-upf-slice1")]
    """Its network namespace."""
    pid: Annotated[int, Example(4242)]
    """Process id of the UPF."""
    alive: bool
    """Whether it runs."""
    sessions: int
    """PDU sessions."""
    cgroup: Annotated[str, Example("/sys/fs/cgroup/sp/slice1")]
    """Its CPU cgroup."""


class TestbedUp(Document):
    """A testbed that was brought up."""

    name: Annotated[str, Example("sp")]
    """Prefix of everything it has made."""
    up_s: float
    """Time that took."""
    slices: list[TestbedSlice]


class TestbedStatus(Document):
    """A testbed that is up."""

    name: Annotated[str, Example("sp")]
    """Prefix of everything it has made."""
    slices: list[TestbedSlice]


class DiscoveredUpf(Document):
    """A process that is a UPF, or may be one."""

    slice: SliceName
    """What to call its slice."""
    pid: Annotated[int, Example(4242)]
    """Process id."""
    process: Annotated[str, Example("open5gs-upfd")]
    """Its program."""
    netns: Annotated[str, Example("upf-embb")]
    """Its network namespace: the name that `ip netns` has for it, or the path of its file."""
    cgroup: Annotated[str | None, Example("/sys/fs/cgroup/system.slice/open5gs-upfd.service")]
    """Its CPU cgroup; null where it is in the root group."""
    n3: Annotated[str | None, Example("n3")]
    """Interface with GTP-U; null where that could not be told, as for the next three."""
    n6: Annotated[str | None, Example("n6")]
    """Interface towards the data network."""
    n4: Annotated[str | None, Example("n4")]
    """Interface with PFCP."""
    tun: Annotated[str | None, Example("ogstun")]
    """Its TUN device."""
    confidence: Annotated[str, Example("sure")]
    """`sure`, or `unclear`: not taken without being asked for."""
    why: list[str]
    """What speaks for it, and what is not clear."""


class TrialRatio(Document):
    """A figure while a knob was moved over the same while it was not."""

    value: float
    """Of the means."""
    low: float
    """Lower end of its 99% interval."""
    high: float
    """Upper end."""


class KnobTrial(Document):
    """A knob that was moved back and forth."""

    moved_to: float
    """Where, in its unit."""
    carried_ratio: TrialRatio
    delay_p99_ratio: TrialRatio


class KnobAuthority(Document):
    """Whether a knob acts on a slice's packets."""

    authority: bool
    """Whether it does; the others are not moved."""
    why: Annotated[str, Example("its process uses 101.9 us of CPU time a packet")]
    """What that is known from."""
    tried: KnobTrial | None
    """What moving it did, with `--try`; null without, and where there was too little traffic."""


class SliceKnobAuthority(Document):
    """All knobs of a slice."""

    cpu_limit: KnobAuthority
    nice: KnobAuthority
    egress: KnobAuthority


class SliceTraffic(Document):
    """What passed while a slice was watched; null where nothing did."""

    offered_mbps: float
    """Rate that reached N3."""
    carried_mbps: float
    """Rate that left at the last point."""
    match_ratio: float | None
    """Share of the packets there that were recognised."""
    delay_p50_us: float | None
    """Median delay."""
    delay_p99_us: float | None
    """99th percentile of the delay."""
    cpu_use_mcpu: float | None
    """CPU time that its cgroup used; null without one."""
    cpu_us_per_packet: float | None
    """The same by packet that left; null for too few packets."""


class SentPackets(Document):
    """What became of packets sent through a slice in one direction."""

    result: Annotated[str, Example("lost")]
    """`arrives already`: traffic does, and nothing was sent. `arrived`. `lost`. `nothing to send`: no session, or no
    place to send from, is known."""
    sent: int
    """How many: one, and twenty where that does not arrive."""
    arrived: int
    """How many of the last ones did."""
    why: Annotated[
        str, Example("10.213.0.1 to UE 10.61.1.2: of 20, 20 reached N6 (n6), 0 reached the TUN device (tun)")
    ]
    """Their way, and where they were seen last; what has to be said where nothing could be sent."""


class SentBothWays(Document):
    """The same of both directions."""

    uplink: SentPackets
    downlink: SentPackets


class LearnedSessions(Document):
    """What was learned of a slice from PFCP on N4 while it was looked on."""

    sessions: int
    """Its sessions at the end."""
    tunnels: int
    """The UPF's ends of their tunnels."""
    qfis: list[Annotated[int, Example(9)]]
    """Of their QoS flows."""


class CheckedSlice(Document):
    """A slice of a node whose UPFs somebody else runs."""

    slice: SliceName
    """Its name."""
    process: Annotated[str, Example("open5gs-upfd (4242)")]
    """Its UPF's process."""
    measured: bool
    """Whether packets have passed at both ends."""
    traffic: SliceTraffic
    learned: LearnedSessions | None
    """Null where the slice does not learn from sessions."""
    knobs: SliceKnobAuthority
    sent: SentBothWays | None
    """With `--send`; null without."""
    notes: list[str]
    """What somebody should know before control starts."""


class Flow(Document):
    """A flow from the generator to the sink."""

    flow: Annotated[str, Example("slice1-0")]
    """Its name."""
    kind: Annotated[str, Example("video")]
    """Of load."""
    offered_mbps: float
    """Rate that was sent."""
    sent_packets: int
    """Packets that were sent."""
    received_packets: int
    """Packets that arrived."""
    reordered_packets: int
    """Those of them that a later one had overtaken."""
    delay_p50_us: float | None
    """Median delay; null where nothing arrived."""
    delay_p99_us: float | None
    """99th percentile of the delay."""


class LoadPlayed(Document):
    """What became of a scenario's loads, without control."""

    scenario: ScenarioName
    """Its name."""
    seconds: float
    """How long they were played."""
    flows: list[Flow]


class IdentifiedErrors(Document):
    """How far off the fitted simulator is."""

    throughput_mean_pct: float
    """Mean error of a slice's throughput."""
    throughput_median_pct: float
    """Median of that error."""
    throughput_p90_pct: float
    """Its 90th percentile."""
    throughput_within_10_pct: float
    """Share of the errors of at most 10%."""
    delay_p99_median_factor: float
    """By which factor a slice's p99 delay is off: median."""
    delay_p99_p90_factor: float
    """90th percentile of that factor."""
    delay_p99_within_1_5_pct: float
    """Share of the factors of at most 1.5."""
    delay_p99_within_2_pct: float
    """Share of the factors of at most 2."""


class IdentifiedSlice(Document):
    """What a slice's UPF did while it was watched."""

    slice: Annotated[str, Example("embb")]
    """Its name."""
    cost_us: float | None
    """CPU time of a packet, waking up included; null for too few packets, or without a cgroup of its own."""
    cpus_at_once: float
    """CPUs that it used in a control period: 99th percentile. Its threads are at least as many."""


class IdentifiedNode(Document):
    """A node's hardware, as far as its traffic tells."""

    hardware: Annotated[str, Example("hardware.yaml")]
    """The file that was written."""
    upf_cost_us: float
    """CPU time of a packet, in a thread that does not sleep."""
    slices: list[IdentifiedSlice]
    known: list[str]
    """Parameters that configuration, machine and actuators say."""
    measured: list[str]
    """Those that traffic told directly."""
    fitted: list[str]
    """Those that the simulator was fitted by."""
    assumed: list[str]
    """The others, as in the file that the node's configuration names."""
    unseen: IdentifiedErrors
    """How far off the simulator is on segments that it was not fitted on."""


class Identified(Document):
    """The simulator's hardware, fitted to this machine."""

    hardware: Annotated[str, Example("testbed-hardware.yaml")]
    """The file that was written."""
    fitted: IdentifiedErrors
    """On the loads that it was fitted on."""
    unseen: IdentifiedErrors
    """On others."""
    repeated: IdentifiedErrors
    """The machine against itself: the others played once more, with other phases of their loads."""
