"""``slicepilot train``: in the simulator, from episodes alone, and fine-tuning."""

from typing import Annotated, Literal

from typing_extensions import TypedDict

from ...configs.documents import Document, Example, Text
from .shared import AgentName, BundlePath, Difference, ReasonName, RunId

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
