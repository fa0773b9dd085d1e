"""``slicepilot run``, ``promote`` and ``restore``; a running controller's own are in `controller.contracts.answers`."""

from typing import Annotated, Literal, NotRequired

from slicepilot.configs.documents import Document, Example
from slicepilot.controller.contracts.answers import InCharge, ModeLabel

from .shared import AgentName, BundlePath, Quantiles, ReasonName, RunId, ScenarioName, Sha256, SliceName, Time


class RunSlice(Document):
    """A slice over the run."""

    slice: SliceName
    """Its name."""
    offered_mbps: float
    """Mean rate that reached N3."""
    carried_mbps: float
    """Mean rate that left at N6."""
    delay_p99_us: float
    """99th percentile of the ticks' 99th percentiles."""
    late_ticks_pct: float
    """Ticks whose 99th percentile was above its delay bound."""


class RunLoop(Document):
    """What the loop did; the times are there if there was a tick."""

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
    interventions: dict[ReasonName, int]
    """Ticks of the guard by reason: of the node, or else of slices, added up."""
    last_error: str | None
    """The newest failure of agent or knobs."""
    scheduling: Annotated[str, Example("SCHED_FIFO")]
    """Scheduling class of the loop's thread, and why it is not a better one."""
    observe_us: NotRequired[Quantiles]
    """Reading the measurements."""
    infer_us: NotRequired[Quantiles]
    """The decision."""
    guard_us: NotRequired[Quantiles]
    """The guard's check of it."""
    apply_us: NotRequired[Quantiles]
    """Setting the knobs."""
    total_us: NotRequired[Quantiles]
    """From observe to apply."""
    record_us: NotRequired[Quantiles]
    """Writing the tick down, after it."""
    wakeup_us: NotRequired[Quantiles]
    """How late ticks began."""


class RunEpisodes(Document):
    """What `--record` has left."""

    parquet: list[Annotated[str, Example("episodes/sp-20260131T102030Z.parquet")]]
    """Files."""
    minari: list[Annotated[str, Example("episodes/sp-20260131T102030Z-v0")]]
    """The same as Minari datasets; empty where Minari is not installed."""
    episodes: int
    """How many."""
    steps: int
    """Control periods in them."""


class RunReport(Document):
    """A controller's run, once it has ended."""

    agent: AgentName
    """Who decided: an agent's name, or the folder of a bundle."""
    mode: ModeLabel
    """In which it started."""
    scenario: ScenarioName | None
    """The loads that were played; null for what traffic there was."""
    period_s: Annotated[float, Example(0.01)]
    """Control period."""
    slices: list[RunSlice]
    """In order; empty for an endless run."""
    in_charge: InCharge | None
    """Null without a tick."""
    guard_rules: dict[ReasonName, float]
    """Shares of the ticks in which the guard was in charge, by its reason; a tick may have several."""
    loop: RunLoop
    episodes: NotRequired[RunEpisodes]
    """With `--record`."""


class Finding(Document):
    """A criterion."""

    criterion: Annotated[str, Example("shadow.min_ticks")]
    """Its name."""
    sign: Literal[">=", "<="]
    """On which side of `required` the figure has to be."""
    required: Annotated[float, Example(10000.0)]
    """The limit, in the criterion's unit."""
    measured: Annotated[float, Example(360000.0)] | None
    """The figure; null where there was nothing to measure, which meets nothing."""
    ok: bool
    """Whether it is met."""
    why: Annotated[str, Example("")]
    """The culprits, where there are some."""


class Recording(Document):
    """What a verdict rests on."""

    ticks: int
    """Ticks of the bundle in shadow."""
    runs: dict[RunId, int]
    """The same by run."""
    first: Time | None
    """The first of them; null without any."""
    last: Time | None
    """The last of them."""
    in_charge: InCharge | None
    """In shadow, of what the policy would have been; null without a tick."""
    in_charge_acting: InCharge | None
    """In canary and live; null where the bundle was not recorded there."""
    missing_ticks: int
    """Ticks that the controller has sealed since the first that is there, and that are gone or changed."""
    other_ticks: int
    """Ticks in the folder that do not count: another bundle's, or not in shadow."""
    unsealed_ticks: int
    """Ticks in the folder that do not count: the controller has not sealed them as they are."""


class Verdict(Document):
    """A bundle's shadow recording, held against the criteria."""

    bundle: BundlePath
    """Its folder."""
    digest: Sha256
    """SHA-256 of its contents."""
    promoted: bool
    """Whether all criteria are met."""
    signed: bool
    """Whether it was signed then."""
    reasons: list[Annotated[str, Example("shadow.min_ticks: 800; required: >= 10000")]]
    """The criteria that are not met."""
    findings: list[Finding]
    recording: Recording
    left_out: dict[Annotated[str, Example("20260131T102030Z.parquet", "file")], str]
    """Files that were left out, in part or altogether, and why: damaged, forged, told twice."""


class Restored(Document):
    """What has become of the knobs of one controller: a line for each, which begins with the slice."""

    name: Annotated[str, Example("sp")]
    """Of the controller."""
    restored: list[Annotated[str, Example("slice1: cpu limit")]]
    """Put back."""
    gone: list[Annotated[str, Example("slice2: no such cgroup")]]
    """Group, namespace or device that is not there any more."""
    released: list[Annotated[str, Example("slice3: nice")]]
    """Left to somebody else."""
    failed: list[Annotated[str, Example("slice4: egress: permission denied")]]
    """Could not be put back, and why."""
    notes: list[Annotated[str, Example("/var/lib/slicepilot/sp/journal.json: missing")]]
    """What else was found: a copy of the journal that was missing or changed, a group under another name."""
    took_s: Annotated[float, Example(0.012)]
    """For all of it."""
