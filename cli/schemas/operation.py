"""``slicepilot run``, ``restore`` and ``bundle export``.

Status and orders: `slicepilot.controller.contracts.answers`.
"""

from typing import Literal, NotRequired

from slicepilot.configs.documents import Document
from slicepilot.controller.contracts.answers import InCharge, ModeLabel

from .shared import Quantiles


class RunSlice(Document):
    """A slice over the run."""

    slice: str
    offered_mbps: float
    carried_mbps: float
    lost_pct: float
    """Of what was offered: not carried by the end, lost or still inside."""
    delay_p99_us: float
    """Of the packets that left."""
    late_ticks_pct: float
    """Ticks whose 99th percentile was above the slice's delay bound."""
    measured_pct: float
    """Ticks in which the slice was measured, of which all these figures are."""
    broken_s: float
    """How long its promise was broken."""
    broken_by_rate_s: float
    """Of that, how long by the rate alone."""


class RunLoop(Document):
    """The loop; times are left out without a tick."""

    ticks: int
    missed_ticks: int
    late_ticks: int
    unusable: int
    """Decisions that the agent failed to make."""
    failed_applies: int
    """Ticks at which a knob could not be set."""
    interventions: dict[str, int]
    """Interventions of the guard by reason."""
    last_error: str | None
    scheduling: str
    observe_us: NotRequired[Quantiles]
    infer_us: NotRequired[Quantiles]
    guard_us: NotRequired[Quantiles]
    apply_us: NotRequired[Quantiles]
    total_us: NotRequired[Quantiles]
    record_us: NotRequired[Quantiles]
    wakeup_us: NotRequired[Quantiles]


class RunEpisodes(Document):
    """The episodes that `--record` has written."""

    parquet: list[str]
    minari: list[str]
    """The same as Minari datasets, where Minari is installed."""
    episodes: int
    steps: int


class KnobNotMoved(Document):
    """A knob that could not be moved, for the whole run or a part of it."""

    slice: str
    knob: Literal["cpu_limit_mcpu", "nice", "egress_mbps"]
    why: str


class RunMode(Document):
    """A mode that was in force for a part of the run, or all of it."""

    mode: ModeLabel
    ticks: int
    in_charge: InCharge
    """In shadow: what it would have been."""
    guard_rules: dict[str, float]
    """Shares of its ticks in which the guard was in charge, by reason."""


class RunReport(Document):
    """A controller's run after its end."""

    agent: str
    mode: ModeLabel
    """The mode at the start."""
    scenario: str | None
    period_s: float
    slices: list[RunSlice]
    in_charge: InCharge | None
    """Of all ticks; null without a tick."""
    modes: list[RunMode]
    """In the order in which they began."""
    restored: str | None
    """What was put back at the end of the last mode that acts; null in shadow."""
    guard_rules: dict[str, float]
    """Shares of the ticks in which the guard was in charge, by reason."""
    not_moved: list[KnobNotMoved]
    """Knobs that were not the policy's, of slices that a mode has acted on; empty in shadow."""
    loop: RunLoop
    episodes: NotRequired[RunEpisodes]


class Restored(Document):
    """The knobs of a controller, a line for each."""

    name: str
    restored: list[str]
    gone: list[str]
    """Knobs whose cgroup, namespace or device no longer exists."""
    released: list[str]
    """Knobs that another program has changed since."""
    failed: list[str]
    notes: list[str]
    took_s: float


class ExportedBundle(Document):
    """The files that a bundle's policy was written to."""

    bundle: str
    sb3: str | None
    algorithm: str | None
    """Class of Stable-Baselines3 that loads it."""
    onnx: str | None
    coding: Literal["plain", "shares", "guided"]
    """`plain`: the environment's observations and actions."""
    columns: int
    actions: int
    """Figures that it observes of each slice, and columns of its action."""
