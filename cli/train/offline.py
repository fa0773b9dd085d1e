"""``slicepilot train --offline``: make a policy from recorded episodes alone."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicepilot.cli.dataset.estimate import figure_of, hardware_for, print_item, shown_names
from slicepilot.cli.dataset.missing import print_missing
from slicepilot.cli.schemas.training import TrainedOffline
from slicepilot.cli.shared.output import console, figures_table, print_json, progress_bar
from slicepilot.configs import ConfigError
from slicepilot.data.episodes.missing import missing_of

from .runs import folder_for, training_bar

if TYPE_CHECKING:
    from slicepilot.data.episodes.episodes import EpisodeSet
    from slicepilot.training.offline.config import OfflineConfig
    from slicepilot.training.offline.train import OfflineProgress, OfflineResult
    from slicepilot.training.ope.comparison import Improvement
    from slicepilot.training.runs.checkpoint import Checkpoint

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
    as_json: bool,
) -> None:
    """Train as the command line says; ``checkpoint`` is that of the run to ``resume``.

    Estimate the policy's reward in the end, if that is wanted. That the data cannot tell is no failure.
    """
    from slicepilot.training.offline.config import OfflineConfig
    from slicepilot.training.offline.train import resumed_config, train_offline

    given = OfflineConfig.from_yaml(config) if config is not None else None
    if checkpoint is not None:
        given = given or resumed_config(checkpoint, None)
    if given is None:
        raise ConfigError("config = None: give -c with a name or a file, or --resume with a run's folder")
    settings = _budget(given.override(dataset=dataset, seed=seed), updates, minutes)
    if checkpoint is not None:
        settings = resumed_config(checkpoint, settings)
    name = Path(config).stem if config is not None else settings.algorithm
    folder = folder_for(out, resume, f"{name}-seed{settings.seed}")
    with training_bar(settings.algorithm) as show:

        def report(now: OfflineProgress) -> None:
            figures = [f"{key.replace('_', ' ')} {now.figures[key]:.3f}" for key in SHOWN if key in now.figures]
            show(now.fraction, "  ".join([f"{now.updates:,} updates", *figures]))

        result = train_offline(settings, folder, name, checkpoint, report)
    missing = [setting.to_json() for setting in missing_of(_dataset(settings))]
    improvement = _improvement(settings, result) if estimate else None
    _print(settings, result, missing, improvement, as_json)


def _dataset(settings: OfflineConfig) -> EpisodeSet:
    """The episodes, before they are cut where nothing was measured."""
    from slicepilot.training.offline.data import read_dataset, select, with_reward

    return with_reward(select(read_dataset(settings.dataset), settings.behaviours), settings.reward)


def _improvement(settings: OfflineConfig, result: OfflineResult) -> Improvement | str:
    """The policy's estimate against the best behaviour, or why there is none."""
    from slicepilot.agents.learned.agent import LearnedAgent
    from slicepilot.training.ope.comparison import improvement_over_best

    episodes = _dataset(settings).unbroken()
    with progress_bar() as progress:
        task = progress.add_task("estimating its reward", total=1.0)
        try:
            return improvement_over_best(
                LearnedAgent(result.bundle),
                episodes,
                hardware_for(None, episodes),
                on_step=lambda step, share: progress.update(task, completed=share, description=step),
            )
        except ConfigError as error:
            return str(error)


def _budget(config: OfflineConfig, updates: int | None, minutes: float | None) -> OfflineConfig:
    """A budget on the command line replaces the config's, of either kind."""
    if updates is None and minutes is None:
        return config
    return dataclasses.replace(config, updates=None, minutes=None).override(updates=updates, minutes=minutes)


def _print(
    settings: OfflineConfig,
    result: OfflineResult,
    missing: list[dict[str, Any]],
    improvement: Improvement | str | None,
    as_json: bool,
) -> None:
    assert result.bundle.agreement is not None
    error = result.bundle.agreement.max_abs_error
    if as_json:
        figures = {
            "bundle": str(result.bundle.origin),
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
        }
        print_json(figures, TrainedOffline)
        return
    console.print(
        f"trained {settings.algorithm} on {settings.source}: {result.steps:,} steps of {len(result.behaviours)} "
        f"policies, {result.updates:,} updates in {result.elapsed_s:.1f} s ({result.updates_per_s:,.0f} per second)",
        soft_wrap=True,
    )
    console.print(f"bundle {result.bundle.origin}: ONNX and PyTorch agree to {error:.1e}", soft_wrap=True)
    print_missing(missing)
    if isinstance(improvement, str):
        print_item(f"its reward cannot be estimated: {improvement}")
    elif improvement is not None:
        _print_improvement(improvement, missing)


def _print_improvement(improvement: Improvement, missing: list[dict[str, Any]]) -> None:
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
        table.add_row(figure_of(estimate), f"{own.value:+.2f} {reach}", own.verdict)
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
