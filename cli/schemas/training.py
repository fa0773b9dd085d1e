"""``slicepilot train`` and ``slicepilot tune``."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from slicepilot.configs.documents import Document
from slicepilot.data.episodes.missing import MissingOfSetting
from slicepilot.data.intervals import Interval

from .episodes import Coverage, Estimated, EstimatorAnswer, EstimatorName

Comparison = Literal["better", "worse", "cannot be told apart"]


class Trained(Document):
    """A policy that was trained in the simulator."""

    bundle: str
    run_id: str | None
    algorithm: str
    seed: int
    source: str
    """The scenarios that it was trained on."""
    steps: int
    train_s: float
    env_steps_per_s: float
    reward_per_step: float
    """Mean reward per control period at the end."""
    return_mean: float | None
    """Mean return of the last episodes; null where none has ended."""
    onnx_max_abs_error: float


class RewardDifference(Estimated):
    """The policy's estimated reward minus that of the best behaviour in the dataset."""

    verdict: Comparison


class PolicyEstimate(Document):
    """The policy's estimated reward beside the best behaviour's; or `problem` alone."""

    problem: NotRequired[str]
    """Why there is no estimate."""
    unit: NotRequired[str]
    best: NotRequired[str]
    """The behaviour with the highest reward in the dataset."""
    best_reward: NotRequired[Estimated]
    left_out: NotRequired[list[str]]
    """Behaviours that are not compared: they had fewer slices, or pods with other CPU requests."""
    estimates: NotRequired[dict[EstimatorName, EstimatorAnswer]]
    differences: NotRequired[dict[EstimatorName, RewardDifference]]
    verdict: NotRequired[Comparison]
    """The verdict of all estimators together."""
    coverage: NotRequired[Coverage]


class SweepTrial(Document):
    """One training run of a sweep."""

    trial: str
    """Its name, and its folder below `trials`."""
    values: dict[str, bool | int | float | str | None]
    """Its value on every axis of the sweep."""
    status: Literal["finished", "stopped", "failed", "unfinished"]
    """`stopped`: early, because others were better."""
    metric: float | None
    """Its metric at the last report; null before the first."""
    progress_pct: float
    """Share of its budget that is used."""
    steps: int
    train_s: float
    reward_per_step: float | None
    starts: int
    """Number of workers that it has had so far."""
    bundle: str | None
    """Null unless it has finished."""
    run_id: str | None
    error: str | None


class Tuned(Document):
    """A sweep: training runs that differ in seed, algorithm or reward weights."""

    sweep: str
    folder: str
    run_id: str | None
    metric: str
    """What trials are compared by."""
    best: str | None
    """The finished trial with the best metric."""
    bundle: str | None
    elapsed_s: float
    trials: list[SweepTrial]


class LoggedSetting(Document):
    """A setting of the dataset, with a number of active slices."""

    active_slices: int
    behaviours: list[str]
    chosen: bool
    runs: int
    reward: float | None
    above_low: float | None
    """Lower bound of the difference from no control; null with few runs."""


class TrainedOffline(Document):
    """A policy that was trained on recorded episodes alone."""

    bundle: str | None
    """Null where none was written; the exit code is 1."""
    run_id: str | None
    algorithm: str
    seed: int
    source: str
    """The dataset."""
    behaviours: list[str]
    dataset_steps: int
    updates: int
    train_s: float
    updates_per_s: float
    device: str
    onnx_max_abs_error: float
    missing: list[MissingOfSetting]
    estimate: PolicyEstimate | None
    """Null with `--no-estimate` and for `choice`."""
    settings: list[LoggedSetting]
    """Of `choice`."""


class Guarded(Document):
    """What the guard changed."""

    guard_touched_ratio: float
    """Share of ticks at which it changed the decision."""
    guard_reasons: dict[str, int]
    """Ticks by reason."""


_Return = TypedDict("_Return", {"reward_per_step": float, "return": float})


class Round(Guarded, _Return):
    """A round of fine-tuning: some runs, then updates; the return is the mean over the runs."""


class FineTuned(Document):
    """A policy that was trained further where it acts, under the guard."""

    bundle: str
    run_id: str | None
    kept: Literal["fine-tuned", "offline"]
    """The better policy, which the bundle holds."""
    offline_return: float
    """Mean return before, on runs that neither policy was trained on."""
    finetuned_return: float
    difference: Interval
    judged_runs: int
    backend: Literal["simulator", "testbed"]
    steps: int
    updates: int
    train_s: float
    onnx_max_abs_error: float
    rounds: list[Round]
    judged: dict[Literal["offline", "fine-tuned"], Guarded]
    """The guard in the runs that compare the two policies."""
