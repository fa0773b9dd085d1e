"""``slicepilot bench``."""

from typing import Literal

from slicepilot.configs.documents import Document

from .shared import Ends, Quantiles


class SimulatorSpeed(Document):
    """Medians over the repetitions."""

    vector_env_steps_per_s: float
    """Control periods per second of all environments of a vector."""
    single_env_steps_per_s: float
    num_envs: int
    num_slices: int


class LoopCost(Document):
    """Times of the loop in a situation."""

    observe_us: Quantiles
    infer_us: Quantiles
    guard_us: Quantiles
    apply_us: Quantiles
    total_us: Quantiles
    record_us: Quantiles
    wakeup_us: Quantiles
    ticks: int
    late_ticks: int
    missed_ticks: int


class LoopBench(Document):
    """Times of a control period."""

    slices: int
    period_ms: float
    scheduling: str
    idle: LoopCost
    """On an otherwise idle machine."""
    back_to_back: LoopCost
    """Without a pause between ticks."""
    contended: LoopCost
    """With all CPUs saturated."""


class ProbeBench(Document):
    """Cost of measuring every packet."""

    packets_per_s: float
    ns_per_packet: dict[Literal["n3", "tun", "n6"], float]
    """CPU time per packet at each point, including its counting."""
    ns_statistics: float
    """The share of the counting in that."""
    match_ratio: float
    """Share of the timed packets that were recognised at N6."""
    saturated_packets_per_cpu_s: dict[Literal["without", "loop", "all"], float]
    """Packets per second of CPU time of a saturated UPF: unmeasured, measured as in the loop, measured by flow."""
    throughput_loss_pct: float
    """Throughput that a saturated UPF loses when it is measured as in the loop."""
    throughput_loss_pct_range: Ends
    """Quartiles over rounds."""
    throughput_loss_all_pct: float
    """The same, measured by flow."""
    throughput_loss_all_pct_range: Ends
    saturated_share_through: float
    """Share of the offered packets that the saturated UPF carried."""


class SoakFailure(Document):
    """A fault that the controller did not survive."""

    at_s: float
    fault: str
    failure: str


class SoakBench(Document):
    """A live controller under random loads and injected faults."""

    seconds: float
    faults: dict[str, int]
    failures: list[SoakFailure]
    crashes: list[str]
    """Ends of a controller that no fault caused."""
    ticks: int
    missed_ticks: int
    late_ticks: int
    restores: int
    """How often the original settings were restored."""
    restored_after_kill_ms: list[float]
    growth: dict[
        Literal["loop", "publisher", "supervisor"], dict[Literal["resident_kb", "descriptors", "threads"], float]
    ]
    """Memory, open files and threads that a process gained after its first 30 s."""
    samples: int
