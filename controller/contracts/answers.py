"""What a running controller says: its status, and its answer to an order; JSON that other programs read.

The status is ``/status.json`` of the publisher, and what `slicepilot top` and `slicepilot control status` print.
"""

from typing import Annotated, Literal, NotRequired

from slicepilot.configs.documents import Document, Example

ModeLabel = Literal["shadow", "canary", "live"]
SliceName = Annotated[str, Example("slice1", "slice")]
Confined = Annotated[str, Example("seccomp")]
"""What a process is confined by; ``NOT CONFINED`` and why; or ``off``."""
AgentName = Annotated[str, Example("captain")]
TimeNs = Annotated[int, Example(1769854830123456000)]
NiceName = Literal["process", "group"]
KnobName = Literal["cpu_limit_mcpu", "nice", "egress_mbps"]
Severity = Literal["info", "warning", "severe"]


class LoadedBundle(Document):
    """The learned policy that decides."""

    path: Annotated[str, Example("/var/lib/slicepilot/bundle")]
    """Its folder."""
    digest: Annotated[str, Example("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")]
    """SHA-256 of its contents."""
    promoted: bool
    """Whether it was promoted with these contents."""


class Run(Document):
    """What is fixed for a run, or changes with a reload only; each null until the controller has described itself."""

    run_id: Annotated[str, Example("5f0c9a7e4b1d4c0f8a2b6d3e9f1c7a58")] | None
    """Another one for each start of a controller."""
    name: Annotated[str, Example("sp")] | None
    """Of the node."""
    version: Annotated[str, Example("0.1.0")] | None
    """Of slicepilot."""
    backend: Annotated[str, Example("testbed")] | None
    """What the loop measures and acts on."""
    agent: AgentName | None
    """Who decides."""
    bundle: LoadedBundle | None
    """Null for an agent by name."""
    period_s: Annotated[float, Example(0.01)] | None
    """Control period."""
    budget_s: Annotated[float, Example(0.002)] | None
    """Time for a decision; one that comes later is not applied."""
    logical_cpus: Annotated[float, Example(2.0)] | None
    """CPUs of the node."""
    uplink_mbps: Annotated[float, Example(1000.0)] | None
    """Rate of the shared uplink; null for no limit."""
    pid: Annotated[int, Example(4242)] | None
    """Process id of the loop."""
    started_ns: TimeNs | None
    """When it started, since 1970."""
    scheduling: Annotated[str, Example("SCHED_FIFO")] | None
    """Scheduling class of the loop's thread, and why it is not a better one."""
    nice_scope: NiceName | None
    """Whether nice ranks processes inside a cgroup or whole cgroups."""
    hardware: Annotated[str, Example("testbed")] | None
    """The identified node that estimates are made with; null where there is none."""


class Ticks(Document):
    """Control periods, counted."""

    written: int
    """Recorded since the start."""
    missed: int
    """Gone by before they could run, since the start."""
    last_minute: int
    """Of the last minute."""
    late_last_minute: int
    """Those of them that ran out of budget: their knobs held."""
    lost: int
    """Overwritten before the publisher had read them."""


class InCharge(Document):
    """Shares of the ticks by who was in charge; their sum is 1."""

    policy: Annotated[float, Example(0.962)]
    """Its decisions were let through, or delayed or rounded at most."""
    guard: Annotated[float, Example(0.031)]
    """It held the knobs, or put something else in place of what the policy wanted for a slice."""
    safe: Annotated[float, Example(0.007)]
    """The declared safe setting was in force."""


class StageTimes(Document):
    """Quantiles over the last minute; null where there was no tick."""

    p50_us: float | None
    """Median."""
    p99_us: float | None
    """99th percentile."""
    p999_us: float | None
    """99.9th percentile."""


class Loop(Document):
    """How long the parts of a tick take."""

    wakeup: StageTimes
    """How late ticks begin."""
    observe: StageTimes
    """Reading the measurements."""
    infer: StageTimes
    """The decision."""
    guard: StageTimes
    """The guard's check of it."""
    apply: StageTimes
    """Setting the knobs."""
    total: StageTimes
    """All but `wakeup`."""


class GivenReason(Document):
    """Why the guard let something other than the decision through."""

    reason: Annotated[str, Example("slew")]
    """Its name."""
    severity: Severity
    """How grave it is."""
    text: Annotated[str, Example("moved as far as one step may go")]
    """What it means."""
    ticks: int
    """Ticks of the last five seconds that had it."""


class NodeFigures(Document):
    """The node, as a mean over the last one to two seconds."""

    cpu_idle_ratio: float | None
    """Share of CPU time that nobody used."""
    uplink_use_ratio: float | None
    """Share of the uplink that is used."""
    reasons: list[GivenReason]
    """What the guard did for the whole node, the gravest first."""


class Setting(Document):
    """A slice's knobs."""

    cpu_limit_mcpu: float | None
    """CPU limit; null: none."""
    nice: Annotated[float, Example(-5.0)] | None
    """CPU priority, -20 (first) to 19."""
    egress_mbps: float | None
    """Egress rate; null: none."""


class SliceKnobs(Document):
    """What was wished, let through and set, as of the newest tick; null before the first."""

    wanted: Setting | None
    """By the policy; null where it failed."""
    allowed: Setting | None
    """By the guard."""
    applied: Setting | None
    """What holds; in shadow what others have set."""


class SliceHistory(Document):
    """A figure for each whole second, oldest first; null where nothing was measured."""

    offered_mbps: list[float | None]
    """Rate that reached N3."""
    carried_mbps: list[float | None]
    """Rate that left at N6."""
    delay_p50_us: list[float | None]
    """Median delay of the second's packets."""
    delay_p99_us: list[float | None]
    """99th percentile of their delay."""
    loss_ratio: list[float | None]
    """Share of packets that did not leave."""
    delay_worst_us: list[float | None]
    """The highest 99th percentile of a tick."""


class SliceStatus(Document):
    """A slice: means over the last one to two seconds, null where nothing was measured."""

    name: SliceName
    """Its name."""
    valid: bool
    """Whether it was measured at the newest tick."""
    acting: bool
    """Whether decisions on it are applied in this mode."""
    level: Literal["normal", "safe", "latched"]
    """Whether it has its safe setting for a reason of its own, and whether until an operator resumes."""
    committed_mbps: float | None
    """Rate that it was promised; null: none."""
    delay_bound_us: float | None
    """Delay that it was promised; null: none."""
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
    delay_worst_us: float | None
    """The highest 99th percentile of a tick."""
    knobs: SliceKnobs
    fixed: list[Annotated[str, Example("cpu_limit_mcpu")]]
    """Knobs that are never moved here: nothing depends on them, or they are not ours."""
    reasons: list[GivenReason]
    """What the guard did for it, the gravest first."""
    history: NotRequired[SliceHistory]
    """The last minute; left out by `control status`."""


class Totals(Document):
    """Counts since the start."""

    ticks: int
    """Ticks that ran."""
    missed_ticks: int
    """Ticks that had gone by before they could run; the knobs held."""
    late_ticks: int
    """Ticks that ran out of budget; the knobs held."""
    unusable: int
    """Decisions that the agent failed to make."""
    failed_applies: int
    """Ticks at which a knob could not be set."""
    foreign_changes: int
    """Times that a knob was found set by somebody else."""


class ForeignChange(Document):
    """A knob that somebody else has set."""

    slice: SliceName
    """Which slice's."""
    knob: KnobName
    """Which knob."""
    found: float | None
    """What it was set to, in the knob's unit; null: no limit."""
    ours: float | None
    """What held before."""
    policy: Literal["respect", "reassert"]
    """Whether theirs holds, or ours was set again."""
    text: Annotated[str, Example("cpu.max 'max 10000' for '80000 10000'")]
    """Both as the kernel has them."""
    time_ns: TimeNs
    """When it was noticed, since 1970."""


class Trip(Document):
    """A slice that has its safe setting because a service floor of it was broken."""

    slice: SliceName
    """Which slice."""
    floor: Literal["rate", "delay"]
    """Which of its floors."""
    offered_mbps: Annotated[float, Example(48.0)]
    """Rate that reached N3 when it tripped."""
    carried_mbps: Annotated[float, Example(2.5)]
    """Rate that left at N6 then."""
    delay_p99_us: float
    """99th percentile of the delay then."""
    floor_mbps: Annotated[float, Example(22.5)]
    """What the rate floor asked for."""
    time_ns: TimeNs
    """When it tripped, since 1970."""
    trips: int
    """How many trips in a row count."""
    on_trial: bool
    """Whether it may turn out that nobody could keep the floor."""
    latched: bool
    """Whether it stays until an operator resumes."""
    text: Annotated[str, Example("latched since 09:20:30Z (3 in a row): carried 2.5 of 48 Mbit/s, floor 22.5")]
    """All that in a line."""
    remedy: Annotated[str, Example("slicepilot control resume")] | None
    """What ends it, and what to look at before; null where it ends by itself."""


class Paced(Document):
    """A slice that Cilium's bandwidth manager paces: what waits there is in none of the slice's figures."""

    slice: SliceName
    """The slice's name."""
    endpoint: Annotated[int, Example(1234)]
    """Cilium's number of its pod on this node."""
    found_mbps: Annotated[float | None, Example(50.0)]
    """The rate that was found, which is the highest that is set; null: none."""
    waits_ms: Annotated[float | None, Example(3.2)]
    """How long a packet that comes now waits at least, by what is ahead of it; null where the entry is gone."""


class Supervisor(Document):
    """The process that puts the knobs back if the controller dies."""

    pid: Annotated[int, Example(4243)]
    """Its process id."""
    restarts: int
    """How often it was started again."""
    alive: bool
    """Whether it runs."""
    groups: Annotated[str, Example("stays (leave_groups: false)")]
    """Whether it has left its controller's cgroups: ``left``, or ``stays`` and why."""
    confined: Confined
    """How it is confined."""


class Publisher(Document):
    """The process that shows this and takes orders."""

    confined: Confined
    """How it is confined."""


class Reload(Document):
    """What became of the last reload."""

    time_ns: TimeNs
    """When, since 1970."""
    ok: bool
    """Whether it was taken up."""
    detail: str
    """What was loaded, or why not."""


class Notes(Document, total=False):
    """What the controller itself says, about once a second; empty before the first time."""

    mode: ModeLabel
    """What becomes of decisions."""
    paused: bool
    """Whether an operator has paused the guard."""
    ordered_safe: bool
    """Whether an operator has ordered the safe setting."""
    unmeasured: list[Annotated[str, Example("slice3: no interface n6")]]
    """What cannot be measured or moved, and what binds a UPF more than at the start; and why."""
    last_error: str | None
    """The newest failure of agent or knobs."""
    totals: Totals
    """What has happened since the start."""
    reload: Reload | None
    """Null before the first."""
    canary: list[SliceName]
    """Slices that the mode canary acts on."""
    trips: list[Trip]
    """Slices that have their safe setting because they were below a service floor."""
    foreign: list[ForeignChange]
    """Knobs that others have set, theirs or ours again since."""
    paced: list[Paced]
    """Slices whose egress rate is their pod's in Cilium's map, while it is moved."""
    supervisor: Supervisor | None
    """Null in shadow, where there is nothing to put back."""
    publisher_restarts: int
    """How often the publisher was started again."""
    confined: Confined
    """How the controller's own process is confined."""


class Change(Document):
    """What the policy's knobs would have made of a figure, by the model."""

    held: float
    """With the knobs as they held."""
    policy: float
    """With those that the guard let through."""
    difference: float
    """The second less the first."""
    error: float
    """How far off that may be."""
    measured: float
    """What was measured."""
    distinguishable: bool
    """Whether the difference is larger than its error."""


class SliceEstimate(Document):
    """A slice that was measured throughout."""

    slice: SliceName
    """Its name."""
    offered_mbps: float
    """Rate that reached N3."""
    carried_mbps: Change
    """Rate that left at N6."""
    delay_p99_us: Change | None
    """Mean of the 99th percentile of the delay; null where next to nothing was carried."""
    broken_s: Change
    """Time of the window in which its promise was broken."""


class EstimatedWindow(Document):
    """What a policy that does not act everywhere would have changed in the last two seconds; not a promise."""

    run_id: Annotated[str, Example("5f0c9a7e4b1d4c0f8a2b6d3e9f1c7a58")]
    """Of the run."""
    bundle: Annotated[str, Example("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")] | None
    """Digest of its bundle; null for an agent by name."""
    mode: Literal["shadow", "canary"]
    """What became of decisions meanwhile."""
    start_ns: TimeNs
    """First tick, since 1970."""
    end_ns: TimeNs
    """Last tick, since 1970."""
    window_s: float
    """How long it was."""
    model: dict[Annotated[str, Example("throughput_median_pct", "figure")], float | str]
    """The identified hardware, and its known errors."""
    slices: list[SliceEstimate]


class Status(Document):
    """What a running controller is doing.

    Rates and the like are means over the last one to two seconds, reasons those of the last five, the times of the loop
    those of the last minute. Null stands for what is not known, and for a knob without a limit.
    """

    run: Run
    mode: ModeLabel
    """What becomes of decisions."""
    level: Literal["normal", "hold", "safe", "latched"]
    """How far the guard trusts what it sees and is told."""
    paused: bool
    """Whether an operator has paused the guard."""
    agent: AgentName | None
    """Who decides."""
    time_s: Annotated[float, Example(1769854830.12)] | None
    """Time of the newest tick, since 1970; null before the first."""
    uptime_s: float | None
    """Since the start."""
    beat_age_s: Annotated[float, Example(0.004)]
    """Since the controller's last sign of life."""
    ticks: Ticks
    in_charge: InCharge | None
    """Of the last minute; null without a tick."""
    loop: Loop
    node: NodeFigures
    slices: list[SliceStatus]
    """In order."""
    notes: Notes
    publisher: Publisher
    estimate: EstimatedWindow | None
    """The newest estimate of a run in shadow or canary; null without one."""


class OrderAnswer(Document):
    """What has become of an order."""

    ok: Literal[True]
    """An order that is refused ends the command with exit code 1 or 2, and one line on standard error."""
    mode: ModeLabel
    """What becomes of decisions from now on."""
    slices: list[SliceName]
    """Those that are acted on; none in shadow."""
    paused: bool
    """Whether the guard is paused."""
    ordered_safe: bool
    """Whether the safe setting is ordered."""
