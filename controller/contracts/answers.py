"""Status of a running controller, and its answer to an order, as JSON that other programs read.

The status is ``/status.json`` of the publisher, and what `slicepilot top` and `slicepilot control status` print.
"""

from typing import Literal, NotRequired

from slicepilot.configs.documents import Document

ModeLabel = Literal["shadow", "canary", "live"]
KnobName = Literal["cpu_limit_mcpu", "nice", "egress_mbps"]
Severity = Literal["info", "warning", "severe"]
Confined = str  # what confines a process; ``NOT CONFINED`` and why; or ``off``


class LoadedBundle(Document):
    """The learned policy that decides."""

    path: str
    digest: str
    promoted: bool
    """Whether it was promoted with these contents."""


class Run(Document):
    """Facts of a run; null until the controller has reported them."""

    run_id: str | None
    """Different at each start of a controller."""
    name: str | None
    """Name of the node."""
    version: str | None
    """Version of slicepilot."""
    backend: str | None
    agent: str | None
    bundle: LoadedBundle | None
    """Null for an agent by name."""
    period_s: float | None
    budget_s: float | None
    """Time limit of a decision; a later decision is not applied."""
    logical_cpus: float | None
    uplink_mbps: float | None
    """Rate of the shared uplink."""
    pid: int | None
    started_ns: int | None
    scheduling: str | None
    nice_scope: Literal["process", "group"] | None
    """Whether nice ranks processes inside a cgroup or whole cgroups."""
    hardware: str | None
    """The identified node that estimates are made with."""


class Ticks(Document):
    """Counts of control periods."""

    written: int
    """Recorded since the start."""
    missed: int
    last_minute: int
    late_last_minute: int
    """Those that exceeded their budget, so that the knobs were held."""
    lost: int
    """Overwritten before the publisher had read them."""


class InCharge(Document):
    """Shares of the ticks by what was in charge; their sum is 1."""

    policy: float
    """The policy's decisions were applied, at most delayed or rounded."""
    guard: float
    """The guard held the knobs or replaced a decision."""
    safe: float
    """The safe setting was in force."""
    nobody: float
    """No knob could be moved: none acts, the kernel refuses them all, or others have set them."""


class StageTimes(Document):
    """Quantiles over the last minute."""

    p50_us: float | None
    p99_us: float | None
    p999_us: float | None


class Loop(Document):
    """Times of the stages of a tick."""

    wakeup: StageTimes
    observe: StageTimes
    infer: StageTimes
    guard: StageTimes
    apply: StageTimes
    total: StageTimes


class GivenReason(Document):
    """Why the guard changed a decision."""

    reason: str
    severity: Severity
    text: str
    """Its meaning."""
    ticks: int
    """Ticks with this reason in the last five seconds."""


class NodeFigures(Document):
    """The node: means over the last one to two seconds."""

    cpu_idle_ratio: float | None
    """Share of CPU time that was idle."""
    uplink_use_ratio: float | None
    reasons: list[GivenReason]
    """Most severe first."""


class Setting(Document):
    """A slice's knobs; null: no limit."""

    cpu_limit_mcpu: float | None
    nice: float | None
    egress_mbps: float | None


class SliceKnobs(Document):
    """The knobs at the newest tick; null before the first."""

    wanted: Setting | None
    """By the policy; null where it failed."""
    allowed: Setting | None
    """By the guard."""
    applied: Setting | None
    """In the kernel; in shadow set by others."""


class SliceHistory(Document):
    """A value per second of the last minute, oldest first."""

    offered_mbps: list[float | None]
    carried_mbps: list[float | None]
    delay_p50_us: list[float | None]
    delay_p99_us: list[float | None]
    loss_ratio: list[float | None]
    delay_worst_us: list[float | None]


class SliceStatus(Document):
    """A slice: means over the last one to two seconds, null where nothing was measured."""

    name: str
    valid: bool
    """Whether it was measured at the newest tick."""
    acting: bool
    """Whether decisions for it are applied in this mode."""
    level: Literal["normal", "safe", "latched"]
    """Whether it has its safe setting, and whether until an operator resumes."""
    committed_mbps: float | None
    """Promised rate."""
    delay_bound_us: float | None
    """Promised delay."""
    offered_mbps: float | None
    carried_mbps: float | None
    delay_p50_us: float | None
    delay_p99_us: float | None
    loss_ratio: float | None
    cpu_use_mcpu: float | None
    throttled_ratio: float | None
    runqueue_delay_us: float | None
    delay_worst_us: float | None
    knobs: SliceKnobs
    fixed: list[str]
    """Knobs that are never moved here."""
    reasons: list[GivenReason]
    """Most severe first."""
    history: NotRequired[SliceHistory]


class Totals(Document):
    """Counts since the start."""

    ticks: int
    missed_ticks: int
    late_ticks: int
    unusable: int
    """Decisions that the agent failed to make."""
    failed_applies: int
    """Ticks at which a knob could not be set."""
    foreign_changes: int
    """Changes of knobs by others."""


class ForeignChange(Document):
    """A knob that another program has changed."""

    slice: str
    knob: KnobName
    found: float | None
    """The other program's value."""
    ours: float | None
    """The value before."""
    policy: Literal["respect", "reassert"]
    """Whether their value is kept, or ours was set again."""
    text: str
    """Both values as the kernel shows them."""
    time_ns: int


class Trip(Document):
    """A slice that has its safe setting because one of its service floors was broken."""

    slice: str
    floor: Literal["rate", "delay"]
    offered_mbps: float
    """At the time of the trip, like the next two."""
    carried_mbps: float
    delay_p99_us: float
    floor_mbps: float
    """The rate that the rate floor required."""
    time_ns: int
    trips: int
    """Consecutive trips."""
    on_trial: bool
    """Whether the floor may turn out to be impossible to keep."""
    latched: bool
    """Whether it lasts until an operator resumes."""
    text: str
    """The trip in one line."""
    remedy: str | None
    """What ends it; null where it ends without an operator."""


class Paced(Document):
    """A slice that Cilium's bandwidth manager paces; its queue there is in none of the slice's figures."""

    slice: str
    endpoint: int
    """Cilium's number of its pod on this node."""
    found_mbps: float | None
    """The original rate, which is also the highest that is set."""
    waits_ms: float | None
    """Shortest wait of a packet that arrives now; null where the entry is gone."""


class Supervisor(Document):
    """The process that restores the knobs if the controller dies."""

    pid: int
    restarts: int
    alive: bool
    groups: str
    """Whether it has left its controller's cgroups: `left`, or `stays` and why."""
    confined: Confined
    """How the process is confined."""


class Publisher(Document):
    """The process that serves metrics and takes orders."""

    confined: Confined


class Reload(Document):
    """The result of the last reload."""

    time_ns: int
    ok: bool
    detail: str
    """What was loaded, or why it failed."""


class Event(Document):
    """Something that happened once."""

    time_ns: int
    text: str


class Notes(Document, total=False):
    """What the controller reports about once a second; empty before the first report."""

    mode: ModeLabel
    paused: bool
    ordered_safe: bool
    unmeasured: list[str]
    """What cannot be measured or moved, and new limits on a UPF; with reasons."""
    last_error: str | None
    counts: dict[str, int]
    """What the source of measurements has counted, by the metric's name."""
    remarks: list[str]
    """What does not keep measurements from being used: a Prometheus server's `infos`, programs behind the probe's."""
    totals: Totals
    reload: Reload | None
    signal: Event | None
    """The last signal that changed nothing."""
    restored: Event | None
    """What the last end of a mode that acts has put back."""
    canary: list[str]
    """Slices that the mode canary acts on."""
    trips: list[Trip]
    foreign: list[ForeignChange]
    paced: list[Paced]
    supervisor: Supervisor | None
    """Null in shadow."""
    publisher_restarts: int
    confined: Confined


class Change(Document):
    """A figure with the policy's knobs instead of the actual ones, estimated with the model."""

    held: float
    """With the actual knobs."""
    policy: float
    """With those that the guard would allow."""
    difference: float
    error: float
    """Possible error of the difference."""
    measured: float
    distinguishable: bool
    """Whether the difference is larger than its error."""


class SliceEstimate(Document):
    """A slice that was measured throughout."""

    slice: str
    offered_mbps: float
    carried_mbps: Change
    delay_p99_us: Change | None
    """Null where almost nothing was carried."""
    broken_s: Change
    """Time of the window in which its promise was broken."""


class EstimatedWindow(Document):
    """The estimated effect, in the last two seconds, of a policy that does not act everywhere."""

    run_id: str
    bundle: str | None
    mode: Literal["shadow", "canary"]
    start_ns: int
    end_ns: int
    window_s: float
    model: dict[str, float | str]
    """The identified hardware, and its known errors."""
    slices: list[SliceEstimate]


class Status(Document):
    """Status of a running controller; times of stages are those of the last minute."""

    run: Run
    mode: ModeLabel
    level: Literal["normal", "hold", "safe", "latched"]
    paused: bool
    """Whether an operator has paused the guard."""
    agent: str | None
    time_s: float | None
    """Time of the newest tick, since 1970."""
    uptime_s: float | None
    beat_age_s: float
    """Time since the controller's last heartbeat."""
    ticks: Ticks
    in_charge: InCharge | None
    """Over the last minute."""
    loop: Loop
    node: NodeFigures
    slices: list[SliceStatus]
    notes: Notes
    publisher: Publisher
    estimate: EstimatedWindow | None
    """The newest estimate in shadow or canary."""


class OrderAnswer(Document):
    """The state after an order. A refused order ends the command with exit code 1 or 2."""

    ok: Literal[True]
    mode: ModeLabel
    slices: list[str]
    """Slices whose decisions are applied; none in shadow."""
    paused: bool
    ordered_safe: bool
    """Whether the safe setting is ordered."""
