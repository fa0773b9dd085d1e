"""``slicepilot explain`` and ``slicepilot probe``."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from slicepilot.configs.documents import Document
from slicepilot.controller.contracts.answers import KnobName, ModeLabel, Severity

Level = Literal["normal", "hold", "safe", "latched"]
Flag = Literal["late", "unusable", "apply_error", "held", "paused"]
Setting = float | Literal["nan"] | None
Decision = Literal["wanted", "allowed", "applied"]
Stage = Literal["wakeup", "observe", "infer", "guard", "apply", "ready", "total"]
DelayQuantiles = dict[Literal["p50", "p90", "p99", "p999"], float | None]


class Reason(Document):
    """Why the guard changed a decision."""

    reason: str
    severity: Severity
    meaning: str


class SeenNode(Document):
    """The node as it was measured."""

    cpu_idle_ratio: float
    """Share of CPU time that was idle."""
    uplink_use_ratio: float
    age_s: float
    """Time since the measurement ended."""
    reasons: list[Reason]


class TickSlice(Document):
    """A slice at the tick."""

    slice: str
    valid: bool
    """Whether it was measured; if not, its figures are zero."""
    seen: dict[str, float | None]
    """By field of the telemetry: rates, delays, loss, CPU use; null where only that was not measured."""
    knobs: dict[KnobName, dict[Decision, Setting]]
    """What the policy wanted, the guard allowed and the kernel has; null: no limit; `"nan"`: not a number."""
    reasons: list[Reason]


class KnobChange(Document):
    """A knob that changed at the tick."""

    slice: str
    knob: KnobName
    decision: Literal["allowed", "applied"]
    before: Setting
    after: Setting


class _Run(Document):
    run_id: str
    agent: str
    bundle: str | None
    budget_us: float


class ExplainedTick(_Run):
    """What the controller measured, wanted, allowed and applied at a tick, and why."""

    time: str
    """In UTC."""
    time_ns: int
    sequence: int
    """Number of the tick, from 1."""
    mode: ModeLabel
    level: Level
    flags: list[Flag]
    missed_ticks: int | None
    node: SeenNode
    slices: list[TickSlice]
    changes: list[KnobChange] | None
    """Null where the tick before is not recorded."""
    stages_us: dict[Stage, float]


class ReasonCount(Reason):
    """Why the guard changed decisions, and at how many ticks."""

    node: int
    """Ticks in which the node had the reason."""
    slices: dict[str, int]
    """Ticks by slice."""


class WindowSlice(Document):
    """A slice over the window."""

    slice: str
    valid_ticks: int
    """Ticks at which it was measured."""
    mean: dict[str, float | None]
    """By field of the telemetry."""
    delay_p99_us_worst_percent: float | None
    """99th percentile of the ticks' 99th percentiles."""
    changes: dict[KnobName, dict[Decision, int]]
    """Changes of each knob."""


_Span = TypedDict("_Span", {"from": str, "to": str})


class ExplainedWindow(_Run, _Span):
    """The ticks of a run in a window."""

    ticks: int
    """Recorded ticks."""
    lost_ticks: int
    """Ticks that are missing in the records."""
    missed_ticks: int
    modes: dict[ModeLabel, int]
    """Ticks by mode."""
    levels: dict[Level, int]
    flags: dict[Flag, int]
    reasons: list[ReasonCount]
    slices: list[WindowSlice]
    stages_us: dict[Stage, dict[Literal["p50", "p99", "max"], float]]


class N3Counts(Document):
    """Packets from the radio side."""

    packets: int
    """GTP-U packets with user data."""
    bytes: int
    """Bytes of the inner packets."""
    unproven: int
    """Packets of senders of which no packet has left the UPF yet; not in `packets`."""
    crowded: int
    """Packets for whose sender or flow the tables had no room."""
    malformed: int
    other: int
    mbps: float


class ExitCounts(Document):
    """Packets that left."""

    packets: int
    bytes: int
    mbps: float
    matched: int
    """Timed packets that were recognised."""
    missed: int
    """Timed packets that were not recognised."""
    match_ratio: float | None
    delay_us: DelayQuantiles
    """From N3 to this point."""


class FlowCounts(Document):
    """A flow: a tunnel, and a QoS flow in it."""

    teid: int
    qfi: int | None
    """Null without a PDU Session Container."""
    packets: int
    bytes: int
    carried_bytes: int
    delay_us: dict[Literal["tun", "n6"], DelayQuantiles]


class Transactions(Document):
    """PFCP messages of a type."""

    requests: int
    answers: int
    retransmissions: int
    orphans: int
    """Answers without a request."""
    latency_us: DelayQuantiles


class ProbedSlice(Document):
    """A UPF since the start."""

    slice: str
    """Its namespace, process or container."""
    n3: N3Counts
    tun: NotRequired[ExitCounts]
    n6: NotRequired[ExitCounts]
    loss_ratio: float
    cpu_mcpu: NotRequired[float]
    runqueue_delay_us: NotRequired[DelayQuantiles]
    flows: list[FlowCounts]
    pfcp: NotRequired[dict[str, Transactions]]
    """By type of message."""


class Probed(Document):
    """Everything that was measured since the start."""

    seconds: float
    slices: list[ProbedSlice]
    other_traffic: dict[Literal["packets", "bytes"], int]
    """Packets at N6 that belong to no slice."""
