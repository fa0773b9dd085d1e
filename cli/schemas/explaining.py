"""``slicepilot explain`` and ``slicepilot probe``."""

from typing import Annotated, Literal, NotRequired

from typing_extensions import TypedDict

from slicepilot.configs.documents import Document, Example, Text
from slicepilot.controller.contracts.answers import KnobName, ModeLabel, Severity

from .shared import AgentName, ReasonName, RunId, Sha256, SliceName, Time, TimeNs

Level = Literal["normal", "hold", "safe", "latched"]
Flag = Annotated[Literal["late", "unusable", "apply_error", "held", "paused"], Example("late", "flag")]
SettingValue = float | Literal["nan"] | None
"""A knob: null is no limit, "nan" a value that was no number."""


class Reason(Document):
    """Why the guard let something other than the decision through."""

    reason: ReasonName
    """Its name."""
    severity: Severity
    """How grave it is."""
    meaning: Annotated[str, Example("moved as far as one step may go")]
    """What it means."""


class SeenNode(Document):
    """The node, as it was measured."""

    cpu_idle_ratio: float
    """Share of CPU time that nobody used."""
    uplink_use_ratio: float
    """Share of the uplink that is used."""
    age_s: Annotated[float, Example(0.0002)]
    """Time since the measurement ended."""
    reasons: list[Reason]
    """What the guard did for the whole node."""


class SliceFigures(Document):
    """A slice, as it was measured."""

    offered_mbps: float
    """Rate that reached N3."""
    carried_mbps: float
    """Rate that left at N6."""
    delay_p50_us: float
    """Median delay from N3 to N6."""
    delay_p99_us: float
    """99th percentile of the delay."""
    loss_ratio: float
    """Share of what was offered that was not carried."""
    cpu_use_mcpu: float
    """CPU time that its cgroup used."""
    throttled_ratio: float
    """Share of quota periods in which its CPU limit ran out."""
    runqueue_delay_us: float
    """Wait for a CPU."""


class KnobDecision(Document):
    """A knob from decision to kernel; null is no limit, `"nan"` a value that was no number."""

    wanted: SettingValue
    """By the policy."""
    allowed: SettingValue
    """By the guard."""
    applied: SettingValue
    """What holds; in shadow what others have set."""


class SliceKnobs(Document):
    """What was wished, let through and set."""

    cpu_limit_mcpu: KnobDecision
    """CPU limit."""
    nice: KnobDecision
    """CPU priority, -20 (first) to 19."""
    egress_mbps: KnobDecision
    """Egress rate."""


class TickSlice(Document):
    """A slice at the tick."""

    slice: SliceName
    """Its name."""
    valid: bool
    """Whether it was measured; if not, its figures are zero."""
    seen: SliceFigures
    knobs: SliceKnobs
    reasons: list[Reason]
    """What the guard did for it."""


class KnobChange(Document):
    """A knob that changed at the tick."""

    slice: SliceName
    """Which slice's."""
    knob: KnobName
    """Which knob."""
    decision: Literal["allowed", "applied"]
    """Whether what the guard let through changed, or what holds."""
    before: SettingValue
    """At the tick before."""
    after: SettingValue
    """At this one."""


class TickStages(Document):
    """How long the parts of the tick took."""

    wakeup: float
    """How late it began."""
    observe: float
    """Reading the measurements."""
    infer: float
    """The decision."""
    guard: float
    """The guard's check of it."""
    apply: float
    """Setting the knobs."""
    ready: float
    """What has to fit the budget: observe, infer and guard."""
    total: float
    """All but `wakeup`."""


class ExplainedTick(Document):
    """What the controller saw, wanted, was allowed and did at one tick, and why."""

    run_id: RunId
    """Of the run."""
    agent: AgentName
    """Who decided."""
    bundle: Sha256 | None
    """Digest of its bundle; null for an agent by name."""
    time: Time
    """When, in UTC."""
    time_ns: TimeNs
    """The same, since 1970."""
    sequence: int
    """Number of the tick, from 1."""
    mode: ModeLabel
    """What became of decisions."""
    level: Level
    """How far the guard trusted what it saw and was told."""
    flags: list[Flag]
    """What else there is to say of the tick."""
    missed_ticks: int | None
    """Ticks that had gone by since the one before; null where that is not recorded."""
    node: SeenNode
    slices: list[TickSlice]
    """In order."""
    changes: list[KnobChange] | None
    """Knobs that were let through, or held, at this tick and not at the one before; null where that is not recorded."""
    stages_us: TickStages
    budget_us: Annotated[float, Example(2000.0)]
    """Time for a decision; one that comes later is not applied."""


class ReasonCount(Reason):
    """Why the guard let something other than the decisions through, and how often."""

    node: int
    """Ticks in which the node had it."""
    slices: dict[SliceName, int]
    """Ticks in which slices had it."""


class MeanFigures(Document):
    """A slice's figures, as means over the ticks at which it was measured; null without any."""

    offered_mbps: float | None
    """Rate that reached N3."""
    carried_mbps: float | None
    """Rate that left at N6."""
    delay_p50_us: float | None
    """Median delay from N3 to N6."""
    delay_p99_us: float | None
    """99th percentile of the delay."""
    loss_ratio: float | None
    """Share of what was offered that was not carried."""
    cpu_use_mcpu: float | None
    """CPU time that its cgroup used."""
    throttled_ratio: float | None
    """Share of quota periods in which its CPU limit ran out."""
    runqueue_delay_us: float | None
    """Wait for a CPU."""


class Moves(Document):
    """How often a knob changed."""

    wanted: int
    """By the policy."""
    allowed: int
    """By the guard."""
    applied: int
    """In the kernel."""


class KnobMoves(Document):
    """How often a slice's knobs changed."""

    cpu_limit_mcpu: Moves
    """CPU limit."""
    nice: Moves
    """CPU priority."""
    egress_mbps: Moves
    """Egress rate."""


class WindowSlice(Document):
    """A slice over the window."""

    slice: SliceName
    """Its name."""
    valid_ticks: int
    """Ticks at which it was measured."""
    mean: MeanFigures
    delay_p99_us_worst_percent: float | None
    """99th percentile of the ticks' 99th percentiles, µs; null where it was never measured."""
    changes: KnobMoves


class StageQuantiles(Document):
    """Quantiles over the window."""

    p50: float
    """Median."""
    p99: float
    """99th percentile."""
    max: float
    """The longest."""


class WindowStages(Document):
    """How long the parts of a tick took."""

    wakeup: StageQuantiles
    """How late ticks began."""
    observe: StageQuantiles
    """Reading the measurements."""
    infer: StageQuantiles
    """The decision."""
    guard: StageQuantiles
    """The guard's check of it."""
    apply: StageQuantiles
    """Setting the knobs."""
    ready: StageQuantiles
    """What has to fit the budget: observe, infer and guard."""
    total: StageQuantiles
    """All but `wakeup`."""


class _Run(Document):
    run_id: RunId
    """Of the run."""
    agent: AgentName
    """Who decided."""
    bundle: Sha256 | None
    """Digest of its bundle; null for an agent by name."""


_Span = TypedDict(
    "_Span", {"from": Annotated[Time, Text("First tick, in UTC.")], "to": Annotated[Time, Text("Last tick, in UTC.")]}
)


class ExplainedWindow(_Run, _Span):
    """A run's ticks in a window: what they were, why the guard stepped in and how often, what changed, what it took."""

    ticks: int
    """Ticks recorded."""
    lost_ticks: int
    """Ticks that are missing between the first and the last one."""
    missed_ticks: int
    """Ticks that had gone by before they could run."""
    modes: dict[Annotated[ModeLabel, Example("live", "mode")], int]
    """Ticks by mode."""
    levels: dict[Annotated[Level, Example("normal", "level")], int]
    """Ticks by how far the guard trusted what it saw and was told."""
    flags: dict[Flag, int]
    """Ticks by flag."""
    reasons: list[ReasonCount]
    """What the guard did."""
    slices: list[WindowSlice]
    """In order."""
    stages_us: WindowStages
    budget_us: Annotated[float, Example(2000.0)]
    """Time for a decision."""


class N3Counts(Document):
    """What came from the radio side."""

    packets: int
    """GTP-U packets with user data."""
    bytes: int
    """Bytes of the inner packets."""
    unproven: int
    """Packets of senders none of whose packets has left the UPF: not in `packets`, and they steer nothing."""
    crowded: int
    """Packets for whose sender or flow there was no place in the tables: of more than there is room for."""
    malformed: int
    """Packets that could not be read."""
    other: int
    """Packets of another kind."""
    mbps: float
    """Rate of the inner packets."""


class DelayQuantiles(Document):
    """Quantiles of delays; null where nothing was timed."""

    p50: float | None
    """Median."""
    p90: float | None
    """90th percentile."""
    p99: float | None
    """99th percentile."""
    p999: float | None
    """99.9th percentile."""


class ExitCounts(Document):
    """What came out."""

    packets: int
    """Packets."""
    bytes: int
    """Bytes."""
    mbps: float
    """Rate."""
    matched: int
    """Timed packets that were found again."""
    missed: int
    """Timed packets that were not."""
    match_ratio: float | None
    """Share of the timed packets that were found again; null before the first."""
    delay_us: DelayQuantiles
    """From N3 to here."""


class FlowDelays(Document):
    """Delays of a flow from N3 to a point; left out where nothing was timed."""

    tun: NotRequired[DelayQuantiles]
    """To the TUN device."""
    n6: NotRequired[DelayQuantiles]
    """To N6."""


class FlowCounts(Document):
    """A flow: a tunnel, and a QoS flow in it."""

    teid: int
    """Tunnel endpoint identifier."""
    qfi: int | None
    """QoS flow identifier; null where no PDU Session Container came."""
    packets: int
    """Packets at N3."""
    bytes: int
    """Bytes at N3."""
    carried_bytes: int
    """Bytes that came out."""
    delay_us: FlowDelays


class Transactions(Document):
    """PFCP messages of one type."""

    requests: int
    """Requests."""
    answers: int
    """Their answers."""
    retransmissions: int
    """Requests that came again."""
    orphans: int
    """Answers without a request."""
    latency_us: DelayQuantiles
    """From a request to its answer."""


class ProbedSlice(Document):
    """A UPF since the start."""

    slice: Annotated[str, Example("sp-upf-embb")]
    """Its namespace, process or container."""
    n3: N3Counts
    """At N3."""
    tun: NotRequired[ExitCounts]
    """At the TUN device, where there is one."""
    n6: NotRequired[ExitCounts]
    """At N6, where there is one."""
    loss_ratio: float
    """Share of packets that did not come out at the last point."""
    cpu_mcpu: NotRequired[float]
    """CPU time that its cgroup used, where it has one."""
    runqueue_delay_us: NotRequired[DelayQuantiles]
    """Wait for a CPU, likewise."""
    flows: list[FlowCounts]
    pfcp: NotRequired[dict[Annotated[str, Example("modification", "type")], Transactions]]
    """PFCP by type of message, where it is measured."""


class OtherTraffic(Document):
    """Packets at N6 that are no slice's."""

    packets: int
    """Packets."""
    bytes: int
    """Bytes."""


class Probed(Document):
    """Everything that was measured since the start."""

    seconds: float
    """How long that was."""
    slices: list[ProbedSlice]
    other_traffic: OtherTraffic
