"""``slicepilot dataset record``, ``estimate`` and ``analyse``."""

from typing import Any, Literal, NotRequired

from slicepilot.configs.documents import Document, allow_more
from slicepilot.data.episodes.missing import MissingOfSetting

from .shared import Ends, Knob


class RecordedBehaviour(Document):
    """An agent that acted, and its rewards."""

    name: str
    episodes: int
    steps: int
    return_mean: float
    return_min: float
    return_max: float
    reward_mean: float
    """Mean reward per control period."""
    missed_ticks: int | None
    """Null in the simulator."""


class Recorded(Document):
    """Episodes that were recorded."""

    out: str
    bytes: int
    episodes: int
    steps: int
    period_s: float
    behaviours: list[RecordedBehaviour]


EstimatorName = Literal["model-based"]


class Estimated(Document):
    """A mean reward per control period."""

    value: float
    ci95: Ends | None
    """Null where there are too few episodes."""


class EstimatorAnswer(Document):
    """`value` and `ci95`, or `refused`."""

    value: NotRequired[float]
    ci95: NotRequired[Ends | None]
    refused: NotRequired[str]
    """Why there is no estimate."""
    diagnostics: dict[str, Any]
    """Figures of the estimator about itself."""


class Coverage(Document):
    """Whether the data can say anything about a policy."""

    supported: bool
    verdict: str
    support: dict[str, dict[Knob, float]]
    """By slice: share of states in which a knob is near a logged knob in similar states."""
    states: float
    """Share of the policy's own states that are like logged states."""


class EstimatedPolicy(Document):
    """A policy that did not act in the data."""

    name: str
    estimates: dict[EstimatorName, EstimatorAnswer]
    coverage: Coverage


class Estimates(Document):
    """The rewards that policies would have earned, estimated from episodes of others."""

    unit: str
    behaviours: dict[str, Estimated]
    policies: list[EstimatedPolicy]
    on_declared_pods: list[str]
    """Policies that would deploy pods with other CPU requests, and are estimated without."""
    missing: list[MissingOfSetting]


@allow_more
class DelayGroup(Document):
    """A group, in the unit of its delays; another field, named like the column `by`, names the group."""

    n: int
    median: float
    p90: float
    p95: float
    p99: float
    iqr: float
    """Interquartile range."""
    mad: float
    """Median absolute deviation."""
    median_low: float
    """Ends of 95% intervals: `_low`, `_high`."""
    median_high: float
    p95_low: float
    p95_high: float


@allow_more
class DelayComparison(Document):
    """A group against the baseline; also `delta_median_UNIT` and `delta_p95_UNIT`, with `_low` and `_high`."""

    comparison: str
    """The group."""
    p_perm_median: float
    """p of a permutation test on medians; `_holm`: after Holm's correction over all groups."""
    p_perm_p95: float
    mann_whitney_p: float
    cliffs_delta: float
    magnitude: Literal["negligible", "small", "medium", "large"]
    p_perm_median_holm: float
    p_perm_p95_holm: float
    mann_whitney_p_holm: float


class RegressionTerm(Document):
    """A term that may explain delays; `level` and `reference` for texts, null for numbers."""

    column: str
    level: str | None
    reference: str | None
    scale: float
    """The standard deviation that `beta` refers to."""


class Coefficient(Document):
    """Slope of a quantile along a term."""

    slope: float
    """Per unit of the column, or against the reference."""
    stderr: float | None
    beta: float
    """Per standard deviation, or against the reference."""
    p: float | None


class RegressionFit(Document):
    """The regression of a quantile."""

    quantile: float
    n: int
    intercept: float
    coefficients: dict[str, Coefficient]
    """By term."""


class Regression(Document):
    """Quantile regression of delays."""

    terms: dict[str, RegressionTerm]
    fits: list[RegressionFit]
    dropped: dict[str, str]
    """Columns that were left out, and why."""


class Analysed(Document):
    """Delays of groups, compared with a baseline group."""

    sources: list[str]
    value: str
    """Column that holds the delays."""
    unit: str
    by: str
    """Column that makes the groups, or `file`."""
    baseline: str
    rows: int
    rows_without_delay: int
    share_analysed: float
    """Share of the rows that was analysed; less than 1 for very many."""
    resamples: int
    seed: int
    groups: list[DelayGroup]
    comparisons: list[DelayComparison]
    regression: Regression | None
    notes: list[str]
    files: list[str]
    """Files that were written."""
