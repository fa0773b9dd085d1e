"""``slicepilot train``: in the simulator, from episodes alone, and fine-tuning."""

from typing import Annotated, Literal, NotRequired

from typing_extensions import TypedDict

from slicepilot.configs.documents import Document, Example, Text

from .datasets import MissingOfSetting
from .episodes import Coverage, Estimated, EstimatorAnswer, EstimatorName
from .shared import AgentName, BundlePath, Difference, Ends, ReasonName, RunId

Seed = Annotated[int, Example(0)]
OnnxError = Annotated[float, Example(2.4e-7)]


class Trained(Document):
    """A policy that was trained in the simulator."""

    bundle: BundlePath
    """Its folder."""
    run_id: RunId | None
    """Of the run in MLflow; null where nothing is tracked."""
    algorithm: Annotated[str, Example("ppo")]
    """What trained it."""
    seed: Seed
    """Of network, exploration and environments."""
    source: Annotated[str, Example("mixture default")]
    """What it was trained on."""
    steps: Annotated[int, Example(5000000)]
    """Control periods."""
    train_s: float
    """Time that took."""
    env_steps_per_s: float
    """Control periods per second."""
    reward_per_step: float
    """Mean reward of a control period, at the end."""
    return_mean: float | None
    """Mean return of the last episodes; null where none has ended."""
    onnx_max_abs_error: OnnxError
    """By how much ONNX and PyTorch differ at most."""


class WorthDifference(Document):
    """What an estimator says of the policy, less what the best behaviour earned."""

    value: float
    """The difference."""
    ci95: Ends | None
    """Ends of its 95% interval; null where there are too few episodes to tell."""
    verdict: Literal["better", "worse", "cannot be told apart"]
    """What that says."""


class PolicyWorth(Document):
    """What the trained policy is estimated to be worth beside the best of those who acted; or `problem` alone."""

    problem: NotRequired[Annotated[str, Example(...)]]
    """Why there is no estimate."""
    unit: NotRequired[Annotated[str, Example("reward per control period")]]
    """Of all figures."""
    best: NotRequired[AgentName]
    """Who earned most in the dataset, chosen in hindsight."""
    best_reward: NotRequired[Estimated]
    """What that is."""
    left_out: NotRequired[list[AgentName]]
    """Who is not compared, because fewer slices were there or pods had other CPU requests."""
    estimates: NotRequired[dict[EstimatorName, EstimatorAnswer]]
    """What the policy would earn, by estimator."""
    differences: NotRequired[dict[EstimatorName, WorthDifference]]
    """Of those that have a figure."""
    verdict: NotRequired[Literal["better", "worse", "cannot be told apart"]]
    """What all of them say; that it cannot be told where they disagree, or there is none."""
    coverage: NotRequired[Coverage]
    """Whether the data can say anything about the policy."""


class SweepTrial(Document):
    """One training run of a sweep."""

    trial: Annotated[str, Example("003")]
    """Its name, and its folder below `trials`."""
    values: dict[Annotated[str, Example("seed", "axis")], bool | int | float | str | None]
    """What sets it apart: its value on every axis that has more than one."""
    status: Literal["finished", "stopped", "failed", "unfinished"]
    """`stopped`: early, because others were ahead."""
    metric: float | None
    """What trials are compared by, at the last report; null before the first."""
    progress_pct: Annotated[float, Example(100.0)]
    """How much of its budget it has used."""
    steps: Annotated[int, Example(5000000)]
    """Control periods."""
    train_s: float
    """Time that took."""
    reward_per_step: float | None
    """Mean reward of a control period, at the last report."""
    starts: Annotated[int, Example(1)]
    """Workers that have worked on it: more than one where some have died or were interrupted."""
    bundle: BundlePath | None
    """Its policy's folder; null unless it has finished."""
    run_id: RunId | None
    """Of the run in MLflow; null where nothing is tracked."""
    error: str | None
    """Why it has failed."""


class Tuned(Document):
    """A sweep: training runs that differ in seeds, algorithms or weights."""

    sweep: Annotated[str, Example("ppo-weights")]
    """Its name."""
    folder: Annotated[str, Example("runs/ppo-weights")]
    """Where it is."""
    run_id: RunId | None
    """Of the run in MLflow that all trials are under; null where nothing is tracked."""
    metric: Annotated[str, Example("sla")]
    """What trials are compared by: higher is better."""
    best: Annotated[str, Example("003")] | None
    """The finished trial with the highest metric; null where none has finished."""
    bundle: BundlePath | None
    """Of the best one."""
    elapsed_s: float
    """Time that this command took over the trials."""
    trials: list[SweepTrial]
    """All of them, in the order of their names."""


class TrainedOffline(Document):
    """A policy that was made of recorded episodes alone."""

    bundle: BundlePath
    """Its folder."""
    run_id: RunId | None
    """Of the run in MLflow; null where nothing is tracked."""
    algorithm: Annotated[str, Example("iql")]
    """What trained it."""
    seed: Seed
    """Of networks and batches."""
    source: Annotated[str, Example("testbed-contention")]
    """The dataset."""
    behaviours: list[AgentName]
    """Who had acted in it."""
    dataset_steps: Annotated[int, Example(60000)]
    """Control periods in it."""
    updates: Annotated[int, Example(20000)]
    """Updates of the networks."""
    train_s: float
    """Time that took."""
    updates_per_s: float
    """Updates per second."""
    device: Annotated[str, Example("cpu")]
    """Where they were made."""
    onnx_max_abs_error: OnnxError
    """By how much ONNX and PyTorch differ at most."""
    missing: list[MissingOfSetting]
    """What was not measured in the dataset, by who acted; empty where everything was."""
    worth: PolicyWorth | None
    """What the policy is estimated to be worth; null with `--no-estimate`."""


class Guarded(Document):
    """What the guard did."""

    guard_touched_ratio: float
    """Share of ticks at which it let something other than the decision through."""
    guard_reasons: dict[ReasonName, int]
    """Ticks by reason."""


class _Reward(Document):
    reward_per_step: float
    """Mean reward of a control period."""


_Return = TypedDict("_Return", {"return": Annotated[float, Text("Sum of rewards over a run, mean over its runs.")]})


class Round(_Reward, _Return, Guarded):
    """A round: some runs, then updates."""


class FineTuned(Document):
    """A policy that went on learning where it acts, under the guard. Returns are sums over a run's periods."""

    bundle: BundlePath
    """Its folder."""
    run_id: RunId | None
    """Of the run in MLflow; null where nothing is tracked."""
    kept: Literal["fine-tuned", "offline"]
    """Which policy the bundle holds: the better one."""
    offline_return: float
    """Mean return of the policy before, on runs that neither has seen."""
    finetuned_return: float
    """The same of the policy after."""
    difference: Difference
    """After less before, run by run."""
    judged_runs: Annotated[int, Example(30)]
    """How many runs that were."""
    backend: Literal["simulator", "testbed"]
    """Where it acted."""
    steps: int
    """Control periods."""
    updates: int
    """Updates of the networks."""
    train_s: float
    """Time that took."""
    onnx_max_abs_error: OnnxError
    """By how much ONNX and PyTorch differ at most."""
    rounds: list[Round]
    judged: dict[Annotated[Literal["offline", "fine-tuned"], Example("offline", "policy")], Guarded]
    """Of either policy, in the runs that judge them."""
