"""``slicepilot dataset record``, ``estimate`` and ``analyse``."""

from typing import Annotated, Any, Literal, NotRequired

from slicepilot.configs.documents import Document, Example, configured

from .datasets import MissingOfSetting
from .shared import AgentName, Ends, SliceName


class RecordedBehaviour(Document):
    """Who acted, and what it earned."""

    name: AgentName
    """Its name."""
    episodes: int
    """How many of it."""
    steps: int
    """Control periods in them."""
    return_mean: float
    """Sum of an episode's rewards: mean over episodes."""
    return_min: float
    """The least."""
    return_max: float
    """The greatest."""
    reward_mean: float
    """Mean reward of a control period."""
    missed_ticks: int | None
    """Control periods in which nothing was decided; null for those of the simulator."""


class Recorded(Document):
    """Episodes that were recorded."""

    out: Annotated[str, Example("log.parquet")]
    """File or folder."""
    bytes: Annotated[int, Example(1048576)]
    """Its size."""
    episodes: int
    """How many."""
    steps: int
    """Control periods in them."""
    period_s: Annotated[float, Example(0.01)]
    """Control period."""
    behaviours: list[RecordedBehaviour]


EstimatorName = Annotated[Literal["model-based", "fitted Q", "importance"], Example("model-based", "estimator")]


class Estimated(Document):
    """A mean reward of a control period."""

    value: float
    """The mean."""
    ci95: Ends | None
    """Ends of its 95% interval; null where there are too few episodes to tell."""


class EstimatorAnswer(Document):
    """`value` and `ci95`, or `refused`."""

    value: NotRequired[float]
    """Mean reward of a control period."""
    ci95: NotRequired[Ends | None]
    """Ends of its 95% interval; null where there are too few episodes to tell."""
    refused: NotRequired[Annotated[str, Example(...)]]
    """Why there is no figure, in its place and in a sentence."""
    diagnostics: dict[Annotated[str, Example("held_out_error", "figure")], Any]
    """How it came about; these differ from estimator to estimator."""


class KnobSupport(Document):
    """A share for each knob."""

    cpu_limit: float
    """CPU limit."""
    nice: float
    """CPU priority."""
    egress: float
    """Egress rate."""


class Coverage(Document):
    """Can the data say anything about a policy?"""

    supported: bool
    """Whether they can."""
    verdict: str
    """The same in words, with what is missing."""
    support: dict[SliceName, KnobSupport]
    """Share of states in which a knob is near a logged one of similar states."""
    histogram: dict[SliceName, KnobSupport]
    """Share of a knob's values near which anything was logged, in whatever state."""
    joint_distance: float
    """Median distance to the nearest logged setting of all knobs, on an axis of -1 to 1."""
    states: float | None
    """Share of the policy's own states that are like logged ones; null without a model."""


class EstimatedPolicy(Document):
    """A policy that has not acted, or not here."""

    name: AgentName
    """Its name."""
    estimates: dict[EstimatorName, EstimatorAnswer]
    """What it would have earned, by estimator."""
    coverage: Coverage
    truth: Estimated | None
    """What it really earned, as `--truth` says; else null."""


class RankCorrelation(Document):
    """Spearman's, of estimates and truth."""

    value: float
    """The figure, -1 to 1."""
    ci95: Ends
    """Ends of its 95% interval."""


class EstimatorScore(Document):
    """`answered` alone where it answered for none whose truth is known."""

    answered: int
    """Policies for which it had a figure."""
    error: NotRequired[float]
    """Root mean square of estimate less truth."""
    bias: NotRequired[float]
    """Mean of estimate less truth."""
    covered: NotRequired[float | None]
    """Share of the truths that lie inside the 95% interval; null where there is none."""
    spearman: NotRequired[RankCorrelation | None]
    """Whether it ranks them right; null for few of them."""


class Estimates(Document):
    """What policies would have earned, from episodes of others."""

    unit: Annotated[str, Example("reward per control period")]
    """Of all figures."""
    behaviours: dict[AgentName, Estimated]
    """What those earned who acted."""
    policies: list[EstimatedPolicy]
    """Those that were asked about."""
    scores: NotRequired[dict[EstimatorName, EstimatorScore]]
    """With `--truth`: how the estimators did."""
    on_declared_pods: list[AgentName]
    """Policies that would deploy pods with CPU requests of their own, and are played without."""
    missing: list[MissingOfSetting]
    """What was not measured, by who acted; empty where everything was."""


@configured("allow")
class DelayGroup(Document):
    """A group, in the unit of its delays; a further field, with the name of the column `by`, says which."""

    n: int
    """Delays."""
    median: float
    """Median."""
    p90: float
    """90th percentile."""
    p95: float
    """95th percentile."""
    p99: float
    """99th percentile."""
    iqr: float
    """75th percentile less the 25th."""
    mad: float
    """Median of the distances from the median."""
    median_low: float
    """Lower end of the median's 95% interval."""
    median_high: float
    """Upper end."""
    p95_low: float
    """Lower end of the 95% interval of the 95th percentile."""
    p95_high: float
    """Upper end."""


@configured("allow")
class DelayComparison(Document):
    """A group against the baseline.

    Further fields with the unit in their names: `delta_median_UNIT` and `delta_p95_UNIT` are the differences, the same
    with `_low` and `_high` the ends of their 95% intervals.
    """

    comparison: Annotated[str, Example("load")]
    """The group."""
    p_perm_median: float
    """Of a permutation test on the difference of medians."""
    p_perm_p95: float
    """The same on that of 95th percentiles."""
    mann_whitney_p: float
    """Of Mann and Whitney's test that neither group tends to be larger."""
    cliffs_delta: float
    """How much more often the group's delay is the larger one than the smaller, -1 to 1."""
    magnitude: Literal["negligible", "small", "medium", "large"]
    """The same in a word."""
    p_perm_median_holm: float
    """`p_perm_median` after Holm's correction over all groups."""
    p_perm_p95_holm: float
    """`p_perm_p95` likewise."""
    mann_whitney_p_holm: float
    """`mann_whitney_p` likewise."""


TermName = Annotated[str, Example("cpu", "term")]


class RegressionTerm(Document):
    """What may explain delays."""

    column: Annotated[str, Example("cpu_limit_used_pct")]
    """The column that it is of."""
    level: str | None
    """Of words: which one; null for numbers."""
    reference: str | None
    """Of words: against which one; null for numbers."""
    scale: float
    """Of numbers: the standard deviation that `beta` is per."""


class Coefficient(Document):
    """Slope of a quantile along a term."""

    slope: float
    """Per unit of the column, or against the reference."""
    stderr: float | None
    """Its standard error; null where it cannot be told."""
    beta: float
    """Per standard deviation, or against the reference."""
    p: float | None
    """Of the test that it is zero; null where it cannot be told."""


class RegressionFit(Document):
    """One quantile."""

    quantile: Annotated[float, Example(0.5)]
    """Which."""
    n: int
    """Rows."""
    intercept: float
    """Where all terms are at their references or means."""
    coefficients: dict[TermName, Coefficient]
    """By term: how the quantile moves with it."""


class Regression(Document):
    """Quantile regression of delays."""

    terms: dict[TermName, RegressionTerm]
    fits: list[RegressionFit]
    dropped: dict[Annotated[str, Example("packets", "column")], Annotated[str, Example("does not vary")]]
    """What was left out, and why."""


class Analysed(Document):
    """Delays of groups against a baseline's."""

    sources: list[Annotated[str, Example("qf1_load")]]
    """Files and folders with delays."""
    value: Annotated[str, Example("latency_ns")]
    """Column of delays."""
    unit: Annotated[str, Example("ns")]
    """Its unit; empty where it says none."""
    by: Annotated[str, Example("condition")]
    """Column that makes the groups, or `file`."""
    baseline: Annotated[str, Example("baseline")]
    """The group that the others are held against."""
    rows: int
    """Rows with a delay and a group."""
    rows_without_delay: int
    """Rows without."""
    share_analysed: float
    """Share of the rows that was analysed; less than 1 for very many."""
    resamples: Annotated[int, Example(10000)]
    """Of tests and intervals."""
    seed: Annotated[int, Example(0)]
    """Of the resamples."""
    groups: list[DelayGroup]
    comparisons: list[DelayComparison]
    """All but the baseline."""
    regression: Regression | None
    """Null where there is nothing to explain delays by."""
    notes: list[Annotated[str, Example("the baseline is baseline; --baseline names another")]]
    """What was left out, sampled or assumed."""
    files: list[Annotated[str, Example("reports/delays/report.html")]]
    """What was written."""
