"""``slicepilot train --offline``: make a policy from recorded episodes alone."""

from __future__ import annotations

import math
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicepilot.cli.dataset.estimate import figure_of, hardware_for, print_item, shown_names
from slicepilot.cli.dataset.missing import print_missing
from slicepilot.cli.dataset.paths import print_left_out
from slicepilot.cli.schemas.training import TrainedOffline
from slicepilot.cli.shared.output import console, figures_table, print_json, progress_bar
from slicepilot.configs import ConfigError, FailureError
from slicepilot.data.episodes.missing import MissingOfSetting, missing_of
from slicepilot.data.recorded import find

from .runs import folder_for, training_bar, with_budget

if TYPE_CHECKING:
    from slicepilot.agents.learned.bundle import PolicyBundle
    from slicepilot.data.episodes.episodes import EpisodeSet
    from slicepilot.training.offline.choice import Choice
    from slicepilot.training.offline.config import OfflineConfig
    from slicepilot.training.offline.train import OfflineProgress, OfflineResult
    from slicepilot.training.ope.comparison import Improvement
    from slicepilot.training.runs.checkpoint import Checkpoint
    from slicepilot.training.runs.labels import RunLabels
    from slicepilot.training.runs.record import RunRecord

SHOWN = ("critic_loss", "actor_loss", "value", "action_error")


def run_offline(
    config: str | None,
    dataset: str | None,
    seed: int | None,
    updates: int | None,
    minutes: float | None,
    resume: Path | None,
    checkpoint: Checkpoint | None,
    out: Path | None,
    estimate: bool,
    force: bool,
    mlflow: bool,
    labels: RunLabels,
    as_json: bool,
) -> None:
    """Train as the command line says; ``checkpoint`` is that of the run to ``resume``.

    The policy is judged before its bundle is written: by the estimate of its reward, or a choice by its own bounds.

    Raises:
        ConfigError: bad input; no estimate without ``force``.
        FailureError: the data cannot say what the policy earns, or they say that it earns less than the best behaviour,
            or that no setting is better than no control; there is no bundle. Not with ``force``.
    """
    from slicepilot.training.offline.config import OfflineConfig
    from slicepilot.training.offline.train import train_offline

    given = OfflineConfig.from_yaml(config) if config is not None else None
    if checkpoint is not None:
        given = given or OfflineConfig.resumed(checkpoint.config, None)
    if given is None:
        raise ConfigError("config = None: give -c with a name or a file, or --resume with a run's folder")
    settings = with_budget(given.override(dataset=dataset, seed=seed), updates=updates, minutes=minutes)
    if checkpoint is not None:
        settings = OfflineConfig.resumed(checkpoint.config, settings)
    settings = settings if mlflow else settings.override(tracking="none")
    if not estimate and not force and settings.algorithm != "choice":
        raise ConfigError("estimate = False: nothing else judges the policy; give --force as well")
    name = Path(config).stem if config is not None else settings.algorithm
    folder = folder_for(out, resume, f"{name}-seed{settings.seed}")
    print_left_out(find(settings.dataset))
    improvement: Improvement | str | None = None
    objection: str | None = None
    with ExitStack() as bar:
        show = bar.enter_context(training_bar(settings.algorithm))

        def report(now: OfflineProgress) -> None:
            figures = [f"{key.replace('_', ' ')} {now.figures[key]:.3f}" for key in SHOWN if key in now.figures]
            show(now.fraction, "  ".join([f"{now.updates:,} updates", *figures]))

        def accept(made: OfflineResult, record: RunRecord) -> bool:
            nonlocal improvement, objection
            bar.close()
            if made.choice is not None:
                objection = None if made.choice.controls else "no setting is clearly better than no control"
            elif estimate:
                improvement = _improvement(settings, made.bundle)
                objection = _objection(improvement)
                _note(record, improvement)
            return force or objection is None

        result = train_offline(settings, folder, name, checkpoint, report, accept, labels)
    missing = missing_of(_dataset(settings))
    _print(settings, result, missing, improvement, as_json)
    if result.bundle.origin is None:
        cure = "record more runs of each setting" if result.choice else "record exploring agents, or use -c choice"
        raise FailureError(f"no bundle was written: {objection}; {cure} (--force writes it all the same)")


def _objection(improvement: Improvement | str) -> str | None:
    """Why a policy is not to be used; None where nothing speaks against it."""
    if isinstance(improvement, str):
        return f"the data cannot say what the policy earns: {improvement}"
    if not improvement.policy.coverage.supported:
        return improvement.policy.coverage.verdict
    if improvement.difference is None:
        return f"the data cannot say what the policy earns: {improvement.policy.estimate.refused}"
    return f"the policy is estimated to be worse than {improvement.best}" if improvement.verdict == "worse" else None


def _note(record: RunRecord, improvement: Improvement | str) -> None:
    """Enter the estimate into the run's record."""
    if isinstance(improvement, str):
        record.summary({}, estimate_problem=improvement)
        return
    estimate, own, best = improvement.policy.estimate, improvement.difference, improvement.best_reward
    figures: dict[str, float | None] = {
        "estimate/reward": estimate.value,
        "estimate/low": estimate.low,
        "estimate/high": estimate.high,
        "estimate/best_behaviour": best.value,
        "estimate/difference": own.value if own else None,
        "estimate/difference_low": own.low if own else None,
        "estimate/difference_high": own.high if own else None,
        "estimate/covered": float(improvement.policy.coverage.supported),
    }
    record.summary(figures, estimate_best=improvement.best, estimate_verdict=improvement.verdict)


def _dataset(settings: OfflineConfig) -> EpisodeSet:
    """The episodes, before they are cut where nothing was measured."""
    from slicepilot.training.offline.data import read_dataset, select, with_reward

    return with_reward(select(read_dataset(settings.dataset), settings.behaviours), settings.reward)


def _improvement(settings: OfflineConfig, bundle: PolicyBundle) -> Improvement | str:
    """The policy's estimate against the best behaviour, or why there is none."""
    from slicepilot.agents.learned.agent import LearnedAgent
    from slicepilot.training.ope.comparison import improvement_over_best

    episodes = _dataset(settings).unbroken()
    with progress_bar() as progress:
        task = progress.add_task("estimating its reward", total=1.0)
        try:
            return improvement_over_best(
                LearnedAgent(bundle),
                episodes,
                hardware_for(None, episodes),
                on_step=lambda step, share: progress.update(task, completed=share, description=step),
            )
        except ConfigError as error:
            return str(error)


def _print(
    settings: OfflineConfig,
    result: OfflineResult,
    missing: list[MissingOfSetting],
    improvement: Improvement | str | None,
    as_json: bool,
) -> None:
    assert result.bundle.agreement is not None
    error = result.bundle.agreement.max_abs_error
    if as_json:
        figures = {
            "bundle": None if result.bundle.origin is None else str(result.bundle.origin),
            "run_id": result.run_id,
            "algorithm": settings.algorithm,
            "seed": settings.seed,
            "source": settings.source,
            "behaviours": list(result.behaviours),
            "dataset_steps": result.steps,
            "updates": result.updates,
            "train_s": round(result.elapsed_s, 3),
            "updates_per_s": round(result.updates_per_s, 1),
            "device": result.device,
            "onnx_max_abs_error": error,
            "missing": missing,
            "estimate": {"problem": improvement}
            if isinstance(improvement, str)
            else improvement and improvement.to_json(),
            "settings": [] if result.choice is None else _settings(result.choice),
        }
        print_json(figures, TrainedOffline)
        return
    text = f"trained {settings.algorithm} on {settings.source}: "
    text += f"{result.steps:,} steps of {len(result.behaviours)} policies"
    if result.choice is None:
        text += f", {result.updates:,} updates in {result.elapsed_s:.1f} s ({result.updates_per_s:,.0f} per second)"
    console.print(text, soft_wrap=True)
    if result.bundle.origin is not None:
        console.print(f"bundle {result.bundle.origin}: ONNX and training agree to {error:.1e}", soft_wrap=True)
    print_missing(missing)
    if result.choice is not None:
        _print_choice(result.choice)
    if isinstance(improvement, str):
        print_item(f"its reward cannot be estimated: {improvement}")
    elif improvement is not None:
        _print_improvement(improvement, missing)


def _print_improvement(improvement: Improvement, missing: list[MissingOfSetting]) -> None:
    """A table of estimates against the best policy in the data, and the conclusion in a sentence."""
    best = improvement.best_reward
    half = (best.high - best.low) / 2
    earned = f"{best.value:.2f} ±{half:.2f}" if math.isfinite(half) else f"{best.value:.2f} ±?"
    table = figures_table(
        "estimated reward per control period, 95% intervals",
        ("policy", "less the best in the data", "verdict"),
    )
    estimate, own = improvement.policy.estimate, improvement.difference
    if own is not None:
        reach = f"±{(own.high - own.low) / 2:.2f}" if math.isfinite(own.high) else "±?"
        table.add_row(figure_of(estimate), f"{own.value:+.2f} {reach}", improvement.verdict)
        console.print(table)
    print_item(f"best policy in the data, chosen in hindsight: {improvement.best}, {earned}")
    if improvement.left_out:
        few = shown_names(improvement.left_out)
        print_item(f"not compared, because they had fewer slices or pods with other CPU requests: {few}")
    for row in missing:
        if row["behaviour"] == improvement.best and row["unmeasured"] and row["reward_at_worst"] is not None:
            share = 100 * row["unmeasured"] / row["readings"]
            print_item(
                f"{share:.1f}% of {improvement.best} was not measured: its reward may be as low as "
                f"{row['reward_at_worst']:.2f}"
            )
    if own is None:
        print_item(f"there is no estimate: {estimate.refused}")
    if not improvement.policy.coverage.supported:
        print_item(improvement.policy.coverage.verdict)
    conclusions = {
        "better": f"estimated to be better than {improvement.best}: try it in shadow before it acts",
        "worse": f"estimated to be worse than {improvement.best}",
        "cannot be told apart": f"not distinguishable from {improvement.best} by these data",
    }
    print_item(f"the policy is {conclusions[improvement.verdict]}")


def _settings(choice: Choice) -> list[dict[str, Any]]:
    from slicepilot.training.evaluation.comparison import finite

    return [
        {
            "active_slices": option.active_slices,
            "behaviours": list(option.setting.names),
            "chosen": option.chosen,
            "runs": option.runs,
            "reward": finite(option.reward),
            "above_low": None if option.above_low is None else finite(option.above_low),
        }
        for option in choice.options
    ]


def _print_choice(choice: Choice) -> None:
    """What each setting earned, and which is chosen for each number of active slices."""
    from slicepilot.training.offline.choice import LEAST_RUNS

    columns = ("slices", "setting", "runs", "reward", "above no control", "")
    table = figures_table("reward per control period; differences are at least as shown, at 95% together", columns)
    for option in choice.options:
        first, *rest = ["no control"] if option.setting is choice.control else option.setting.names
        name = f"{first} and {len(rest)} alike" if rest else first
        above = "-" if option.above_low is None else f"{option.above_low:+.3f}"
        figures = (str(option.active_slices), name, str(option.runs), f"{option.reward:.3f}", above)
        table.add_row(*figures, "chosen" if option.chosen else "")
    console.print(table)
    print_item("slices: how many of them are active")
    print_item(f"-: no control itself, or fewer than {LEAST_RUNS} runs of the setting or of no control")
    print_item("what was not measured of a setting counts as broken; pods' CPU requests become nice levels")
    if choice.left_out:
        print_item(f"left out, because the knobs moved: {shown_names(choice.left_out)}")
