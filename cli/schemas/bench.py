"""``slicepilot bench``: what things cost on a machine."""

from typing import Annotated

from slicepilot.configs.documents import Document, Example

from .shared import AgentName, Ends, Mean, Median, Quantiles, ScenarioName


class SimulatorSpeed(Document):
    """Medians over the repetitions."""

    vector_env_steps_per_s: float
    """Control periods of all environments of a vector."""
    single_env_steps_per_s: float
    """Control periods of one environment by itself."""
    num_envs: Annotated[int, Example(1000)]
    """Environments in the vector."""
    num_slices: Annotated[int, Example(5)]
    """Slices of each."""


class LoopCost(Document):
    """The loop for some seconds."""

    observe_us: Quantiles
    """Reading the measurements."""
    infer_us: Quantiles
    """The decision."""
    guard_us: Quantiles
    """The guard's check of it."""
    apply_us: Quantiles
    """Setting the knobs."""
    total_us: Quantiles
    """From observe to apply."""
    record_us: Quantiles
    """Writing the tick down, after it."""
    wakeup_us: Quantiles
    """How late ticks began."""
    ticks: int
    """Ticks that ran."""
    late_ticks: int
    """Ticks that ran out of budget."""
    missed_ticks: int
    """Ticks that had gone by before they could run."""


class LoopBench(Document):
    """What one control period costs."""

    slices: Annotated[int, Example(5)]
    """How many."""
    period_ms: Annotated[float, Example(5.0)]
    """Control period."""
    scheduling: Annotated[str, Example("SCHED_FIFO")]
    """Scheduling class of the loop's thread, and why it is not a better one."""
    idle: LoopCost
    """On a machine with nothing else to do."""
    back_to_back: LoopCost
    """Without a rest between ticks."""
    contended: LoopCost
    """With all CPUs saturated."""


class PointCost(Document):
    """CPU time of a packet at each point, that of counting it included."""

    n3: float
    """At N3, ns."""
    tun: float
    """At the TUN device, ns."""
    n6: float
    """At N6, ns."""


class SaturatedRates(Document):
    """Packets that a saturated UPF forwards in a second of CPU time."""

    without: float
    """Unmeasured."""
    loop: float
    """Measured as by the control loop."""
    all: float
    """Every packet measured, at all points and by flow."""


class ProbeBench(Document):
    """What measuring every packet costs."""

    packets_per_s: float
    """Packets while costs are taken."""
    ns_per_packet: PointCost
    ns_statistics: float
    """What the counting takes of that, ns."""
    match_ratio: float
    """Share of the timed packets that were found again at N6."""
    saturated_packets_per_cpu_s: SaturatedRates
    """Lower quartiles of cost over rounds, as rates."""
    throughput_loss_pct: float
    """Throughput that a saturated UPF loses by being measured as by the control loop."""
    throughput_loss_pct_range: Annotated[Ends, Example([0.4, 1.9])]
    """Quartiles of that over rounds, %."""
    throughput_loss_all_pct: float
    """The same with every packet measured."""
    throughput_loss_all_pct_range: Annotated[Ends, Example([2.1, 4.0])]
    """Quartiles of that over rounds, %."""
    saturated_share_through: float
    """Share of what was offered that the saturated UPF let through."""


class RoundTrips(Document):
    """Round trips of PFCP Session Modifications."""

    p50_us: float
    """Median."""
    p99_us: float
    """99th percentile."""
    max_us: float
    """The longest."""


class RatePlayed(Document):
    """A constant rate; medians over the repetitions."""

    offered_mbps: float
    """Rate that was sent."""
    carried_mbps: float
    """Rate that came through."""
    upf_cpus: float
    """CPUs that the UPF used."""
    loss_pct: float
    """Packets that did not come through."""
    max_loss_pct: float
    """The most in a run."""
    reordered: int
    """Packets that a later one had overtaken, over all runs."""
    packets: int
    """Packets that were sent, over all runs."""
    skipped: int
    """Packets that the generator left out because it was late, over all runs."""


class UpfBench(Document):
    """What the reference UPF can do, without work per packet."""

    capacity_mbps: float
    """The most that came through."""
    pfcp_modification: RoundTrips
    """As the SMF sees them."""
    buffer_kb: Annotated[int, Example(4096)]
    """Receive buffer of the N3 socket."""
    gigabit: RatePlayed
    """At 1000 Mbit/s."""
    below_capacity: RatePlayed
    """At 90% of the capacity."""


class AgentReaction(Document):
    """An agent's reaction; the parts of the time are medians, null where no decision fell into it."""

    agent: AgentName
    """Its name."""
    bursts: int
    """How many it saw."""
    left: int
    """Those that threw the slice out of its bound."""
    not_back: int
    """Those after which it did not come back."""
    reaction_ms: Median
    """From the first packet of a burst until the slice is back inside; 0 where it stayed inside."""
    window_ms: float | None
    """Until the first measurement that can show the burst."""
    decision_ms: float | None
    """Until the knobs have changed."""
    drain_ms: float | None
    """Until what had waited then has gone."""
    rest_ms: float | None
    """The rest: quota periods, the neighbours' queues."""


class ReactionBench(Document):
    """How long a burst of its neighbours keeps the priority slice outside its bound."""

    scenario: ScenarioName
    """The loads."""
    period_ms: Annotated[float, Example(5.0)]
    """Control period."""
    bound_ms: Annotated[float, Example(5.0)]
    """Delay bound, of the p99 in windows of 10 ms."""
    agents: list[AgentReaction]


class ReaderCost(Document):
    """What one reader takes: medians over the repetitions."""

    seconds: float
    """From the start of its process to its end."""
    work_s: float
    """Without its imports."""
    cpu_s: float
    """CPU time."""
    peak_mib: float
    """Most memory at once."""


class TurnRatio(Document):
    """The other reader's figure over ours, turn by turn."""

    median: float
    """Median."""
    low: float
    """The least."""
    high: float
    """The greatest."""


class Met(Document):
    """Whether what is aimed at was met."""

    seconds: bool
    """Time."""
    peak_mib: bool
    """Memory."""
    time_ratio: bool
    """Time against the other reader's."""
    memory_ratio: bool
    """Memory against the other reader's."""


class SliceSummary(Document):
    """Delays of a slice."""

    count: int
    """Packets."""
    mean_us: float
    """Mean."""
    p50: float
    """Median, µs."""
    p90: float
    """90th percentile, µs."""
    p95: float
    """95th percentile, µs."""
    p99: float
    """99th percentile, µs."""
    p999: float
    """99.9th percentile, µs."""


class ReadersBench(Document):
    """What it takes to summarise a forwarding file, and what it takes pandas."""

    bytes: Annotated[int, Example(96000000)]
    """Size of the file."""
    cpus: Annotated[int, Example(2)]
    """CPUs that either may use."""
    repetitions: Annotated[int, Example(5)]
    """Turns."""
    slicepilot: ReaderCost
    """Ours."""
    pandas: ReaderCost
    """The other."""
    time_ratio: TurnRatio
    """Of `seconds`."""
    work_time_ratio: TurnRatio
    """Of `work_s`."""
    cpu_ratio: TurnRatio
    """Of `cpu_s`."""
    memory_ratio: TurnRatio
    """Of `peak_mib`."""
    rows: Annotated[int, Example(2000000)]
    """Rows of the file."""
    counts_equal: bool
    """Whether both found as many packets of each slice."""
    largest_quantile_error: float
    """By how much a quantile differs at most, as a ratio."""
    met: Met
    slices: dict[Annotated[str, Example("URLLC", "slice")], SliceSummary]
    """What was found."""


class ScrapeTimes(Document):
    """The loop's time of a tick: medians over turns of its 99th percentile."""

    quiet: float
    """While nobody reads."""
    scraped: float
    """While many read."""


class TurnRatios(Document):
    """A ratio, turn by turn."""

    median: float
    """Median."""
    ci95: Ends
    """Ends of its 95% interval."""
    turns: list[float]
    """Each turn's."""


class ScrapeBench(Document):
    """Does reading the metrics disturb the loop?"""

    concurrent: Annotated[int, Example(200)]
    """Scrapes at once."""
    answered: Annotated[int, Example(12000)]
    """Scrapes that were answered in full."""
    p99_us: ScrapeTimes
    scraped_over_quiet: TurnRatios
    """The second over the first."""


class ShadowCpu(Document):
    """CPU time of the controller's processes, of one core."""

    loop: Mean
    """The loop's."""
    publisher: Mean
    """The publisher's."""
    total: Mean
    """Both."""


class ShadowRatios(Document):
    """Figures beside a controller in shadow over those without, turn by turn."""

    priority_carried: Mean
    """Packets of the priority slice that came through."""
    others_carried: Mean
    """Those of the others."""
    priority_delay_p99: Mean
    """99th percentile of the priority slice's delay."""


class ShadowBench(Document):
    """What a controller in shadow costs the node that it watches."""

    shadow_s: float
    """Time in shadow under load."""
    writes: int
    """Writes to knobs meanwhile, as the kernel counts them; 0."""
    live_writes: int
    """Those of some seconds of acting, for comparison."""
    cpu_pct: ShadowCpu
    shadow_over_none: ShadowRatios


FaultName = Annotated[str, Example("kill_controller", "fault")]


class SoakFailure(Document):
    """A fault that was not survived."""

    at_s: float
    """When."""
    fault: FaultName
    """Which."""
    failure: str
    """What was wrong."""


class Growth(Document):
    """What a process gains an hour; null where there are too few samples."""

    resident_kb: float | None
    """Memory."""
    descriptors: float | None
    """Open files."""
    threads: float | None
    """Threads."""


class ProcessGrowth(Document):
    """What the controller's processes gain an hour."""

    loop: Growth
    """The loop."""
    publisher: Growth
    """The publisher."""
    supervisor: Growth
    """The supervisor."""


class SoakBench(Document):
    """A live controller under random loads and random faults."""

    seconds: float
    """How long."""
    faults: dict[FaultName, int]
    """Faults, by name."""
    failures: list[SoakFailure]
    crashes: list[Annotated[str, Example("exit status 1")]]
    """Ends of a controller that no fault asked for."""
    ticks: int
    """Ticks that ran."""
    missed_ticks: int
    """Ticks that had gone by before they could run."""
    late_ticks: int
    """Ticks that ran out of budget."""
    restores: int
    """How often what had been found was put back."""
    restored_after_kill_ms: list[float]
    """How long that took after SIGKILL, ascending."""
    growth_per_hour: ProcessGrowth
    samples: int
    """Samples of that."""
