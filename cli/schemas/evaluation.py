"""``slicepilot simulate`` and ``slicepilot evaluate``."""

from typing import Literal, NotRequired

from slicepilot.configs.documents import Document

from .shared import Ends

Statistics = dict[Literal["mean", "median", "std"], float]
Groups = dict[Literal["slice1", "others"], Statistics | None]


class StudyMoment(Document):
    """A group of slices at a time of the ramp, over slices and repetitions."""

    time_s: float
    """End of 30 s."""
    group: Literal["slice1", "others"]
    server_received_mbps: float
    """Per slice, in 10^6 bit/s."""
    latency_ms_p10: float
    latency_ms_p50: float
    latency_ms_p90: float
    upf_cpu_mcpu: float


class StudyExperiment(Document):
    """An experiment of the study, sampled as the study does: the last five minutes of all repetitions."""

    experiment: int
    throughput_mbps: Groups
    """Throughput per slice; `others` is null where an experiment has a single slice."""
    latency_ms: Groups
    """Round-trip time that the UEs measure."""
    series: NotRequired[list[StudyMoment]]
    """With `--series`."""


class PlayedSlice(Document):
    """A slice over the run: mean rates, quantiles over the control periods."""

    slice: str
    offered_mbps: float
    carried_mbps: float
    delay_p50_us: float
    delay_p99_us: float
    sla_violation_s: float


class Played(Document):
    """A scenario under an agent."""

    scenario: str
    agent: str
    seed: int
    slices: list[PlayedSlice]


Relation = Literal["dominates", "equal", "dominated", "neither"]


class Over(Document):
    """An agent beside another in a scenario."""

    relation: Relation
    """`dominates`: not worse in any of the three, and better in some."""
    broken: float
    """Ratio of broken seconds."""
    best_effort: float
    """What it carries more beyond promises, in points of what no control carries there; more is better."""
    cpu_wasted: float
    """Ratio of wasted CPU; with an edge application, the other's `edge_work` over its own."""


class JudgedAgent(Document):
    """Results of an agent in a scenario: means over its runs, null where a figure does not exist."""

    name: str
    slice1_loss_pct: float | None
    """Volume that the priority slice lost, compared with what it carries alone."""
    others_loss_pct: float | None
    """The same of the other slices together, compared with no control."""
    slice1_delay_p99_us: float | None
    sla_violation_s: float | None
    """Time with broken promises, weighted by slice."""
    cpu_held_core_s: float | None
    """CPU time that the limits reserved for slices."""
    cpu_wasted_core_s: float | None
    """Of it, what no slice used."""
    best_effort_loss_pct: float | None
    """Volume beyond promises that was lost, compared with no control."""
    edge_work: NotRequired[float | None]
    """Units of work of the scenario's edge application, if any."""
    episode_reward: float | None
    """Mean over runs of the sum of rewards: what `evaluate_policy` of Stable-Baselines3 reports."""
    return_iqm: float
    """Interquartile mean over runs of the mean reward per control period."""
    ci95: Ends
    over_rule: Over | None
    """Beside `queue-greedy`; null if that did not run, and for settings that run with fewer slices."""
    over_best_fixed: Over | None


class Evaluation(Document):
    """A scenario with all agents that ran in it on the same seeds."""

    scenario: str
    seeds: int
    """Number of episodes of each agent."""
    best_fixed: str | None
    """The fixed setting that is best in hindsight."""
    agents: list[JudgedAgent]


class AxisFigures(Document):
    """A figure of `Over` over all scenarios."""

    median: float
    ci95: Ends
    worst: float
    worst_scenario: str


class _OverRival(Document):
    best_effort: AxisFigures
    cpu_wasted: AxisFigures
    dominates: float
    equal: float
    dominated: float
    neither: float


class OverRule(_OverRival):
    """An agent beside `queue-greedy` over all scenarios, with the shares of scenarios of each relation."""

    broken: AxisFigures
    others_loss: dict[Literal["median"], float]
    """Ratio of `others_loss_pct`, in which less than 0.5% counts as 0.5%."""


class OverBestFixed(AxisFigures, _OverRival):
    """An agent beside each scenario's best fixed setting; median, interval and worst are of broken seconds."""

    wins: int
    """Scenarios with a ratio below 1."""


class Summary(Document):
    """An agent over all scenarios; null for a rival that did not run."""

    over_best_fixed: OverBestFixed | None
    over_rule: OverRule | None


class SeedFigures(Document):
    """A figure of `Over` of several bundles together."""

    median: float
    ci95: Ends | None
    """Over training seeds and scenarios."""
    medians: list[float]
    """Median of each bundle."""


class OverTrainingSeeds(Document):
    """Bundles that differ only in their training seed, together against a rival."""

    agents: list[str]
    rival: Literal["rule", "best_fixed"]
    broken: SeedFigures
    best_effort: SeedFigures
    cpu_wasted: SeedFigures
    dominates: list[float]
    """Share of scenarios, of each bundle."""
    dominated: list[float]


class Evaluations(Document):
    """All scenarios, individually and together; the optional fields are those of a suite."""

    scenarios: list[Evaluation]
    summary: dict[str, Summary]
    """By agent."""
    suite: NotRequired[str]
    seed: NotRequired[int]
    """Random seed of the suite."""
    over_training_seeds: NotRequired[list[OverTrainingSeeds]]


Outcome = Literal["agrees", "differs", "not compared"]


class ReproducedRow(Document):
    """A figure of the study's tables, or of an agent beside them; null where a source has none."""

    row: str
    text: str
    unit: str
    published: float | None
    simulated: float | None
    measured: float | None
    release: float | None
    interval: Ends | None
    """95%, of the figure that is compared: the first of simulated, measured, release that there is."""
    difference_pct: float | None
    """Difference of that figure from the published figure."""
    verdict: Outcome
    cause: str
    """Of a difference, where it is known."""


class ReproducedFinding(Document):
    """A general finding: whether it holds in print and in each source, null where figures are missing."""

    claim: str
    criterion: str
    published: bool | None
    simulated: bool | None
    measured: bool | None
    release: bool | None
    evidence: dict[str, str]
    cause: str


class ReproducedRank(Document):
    """How a source orders some rows of the study, beside how the study does."""

    order: str
    source: Literal["simulated", "measured", "release"]
    rows: int
    spearman: float
    """Rank correlation: 1 is the same order."""


class Reproduced(Document):
    """A published study and what comes out here."""

    study: str
    citation: str
    rows: list[ReproducedRow]
    verdicts: list[ReproducedFinding]
    ranks: list[ReproducedRank]
    remarks: list[str]


class ComparedRun(Document):
    """A run, a policy, or an agent of an evaluation."""

    name: str
    kind: Literal["run", "bundle", "agent"]
    folder: str
    digest: str | None
    facts: dict[str, str]
    """Time, user, source, code revision and so on."""
    parameters: dict[str, str]
    figures: dict[str, float]
    """Last values of its curves, estimates, and scores as `SCENARIO/FIGURE`."""


class Compared(Document):
    """Runs, policies and agents side by side."""

    compared: list[ComparedRun]
    differing: dict[str, dict[str, str | None]]
    """Parameters that are not the same everywhere, by the name of the run; null where a run has no such parameter."""
