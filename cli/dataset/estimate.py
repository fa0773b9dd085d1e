"""``slicepilot dataset estimate``: rewards that policies would have earned, from episodes of other policies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slicepilot.cli.schemas.episodes import Estimates
from slicepilot.cli.shared.agents_option import load_learned, names_of
from slicepilot.cli.shared.output import console, figures_table, print_json, progress_bar
from slicepilot.cli.shared.registry import BUNDLE_HELP
from slicepilot.cli.shared.run_labels import RunName, Tags
from slicepilot.configs import ConfigError

from .missing import print_missing

if TYPE_CHECKING:
    from slicepilot.agents.base import Agent
    from slicepilot.data.episodes.episodes import EpisodeSet
    from slicepilot.env.simulator.hardware import Hardware
    from slicepilot.training.ope.comparison import Comparison
    from slicepilot.training.ope.estimate import Estimate

LONGEST = 24  # characters of a policy's name in tables


def estimate(
    data: Annotated[str, typer.Argument(help="Recorded episodes: a shipped name, a file or a folder.")],
    bundle: Annotated[list[Path] | None, typer.Option(help=f"{BUNDLE_HELP} May be repeated.")] = None,
    agents: Annotated[
        list[str] | None, typer.Option(help="Agents to estimate: names, separated by commas, as for `evaluate`.")
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(help="Hardware of the node: a name or a file (default: the data's)."),
    ] = None,
    reward: Annotated[
        str | None, typer.Option(help="Reward weights: a name or a YAML file (default: the recorded weights).")
    ] = None,
    mlflow: Annotated[bool, typer.Option("--mlflow", help="Log the estimates to MLflow.")] = False,
    run_name: RunName = None,
    tag: Tags = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Estimate the reward per control period of policies from recorded data, with intervals and coverage.

    The policies run in the simulator under the recorded loads; the model's error on the recorded policies corrects the
    estimates. Policies that the data do not cover are marked.

    Example: slicepilot dataset estimate testbed-contention --agents reactive-sla,static-weights-9-nice
    """
    from slicepilot.data.episodes.missing import missing_of
    from slicepilot.training.ope.comparison import compare
    from slicepilot.training.ope.logged import Node
    from slicepilot.training.runs.labels import RunLabels

    labels = RunLabels.of(run_name, tag or [])
    if mlflow:
        from slicepilot.training.runs.tracking import check_tracking

        check_tracking()
    with progress_bar() as progress:
        task = progress.add_task("reading", total=1.0)
        whole = _episodes(data, reward)
        episodes, missing = whole.unbroken(), missing_of(whole)
        node = hardware_for(hardware, episodes)
        policies, stripped = _policies(Node.of(episodes), names_of(agents or []), bundle or [], node)
        comparison = compare(
            episodes,
            policies,
            node,
            lambda step, share: progress.update(task, completed=share, description=step),
        )
    if mlflow:
        from slicepilot.training.ope.tracking import log_estimates

        log_estimates(comparison, data, episodes, labels)
    if as_json:
        print_json({**comparison.to_json(), "on_declared_pods": stripped, "missing": missing}, Estimates)
        return
    print_missing(missing)
    print_comparison(comparison, Path(data).name)
    if others := [name for name in episodes.behaviours if name not in comparison.behaviours]:
        print_item(
            f"left out, because recorded on pods with other CPU requests than the slices declare: {shown_names(others)}"
        )
    if stripped:
        print_item(f"estimated on pods as the slices declare them, without their own requests: {', '.join(stripped)}")


def _episodes(data: str, reward: str | None) -> EpisodeSet:
    from slicepilot.data.recorded import find
    from slicepilot.training.offline.data import with_reward

    from .convert import read_any_episodes

    return with_reward(read_any_episodes(find(data), reward or "default"), reward)


def hardware_for(name: str | None, episodes: EpisodeSet) -> Hardware:
    """Hardware of the model: the named hardware, else the study's for its episodes and the testbed's for others."""
    from slicepilot.env.simulator.hardware import Hardware
    from slicepilot.training.ope.logged import hardware_of

    return hardware_of(episodes) if name is None else Hardware.from_yaml(name)


def _policies(
    node: Any, names: Sequence[str], bundles: Sequence[Path], hardware: Hardware
) -> tuple[list[Agent], list[str]]:
    """The policies, and names of those whose own CPU requests are ignored; raises ConfigError if there are none."""
    from slicepilot.agents.heuristics.registry import make
    from slicepilot.training.recording.recording import on_declared_pods

    made: list[Agent] = [*(make(name, node.slices, hardware, node.weights) for name in names), *load_learned(bundles)]
    if not made:
        raise ConfigError("agents = none: expected names, for instance reactive-sla, or a --bundle")
    stripped = [agent.name for agent in made if agent.request_mcpu is not None]
    return [on_declared_pods(agent) for agent in made], stripped


def print_comparison(comparison: Comparison, data: str) -> None:
    """A table of 80 columns, and the warnings that go with it."""
    table = figures_table(f"{data}: reward per control period, 95% intervals", ("policy", "estimate", "covered"))
    for policy in comparison.policies:
        covered = "yes" if policy.coverage.supported else "no"
        table.add_row(short(policy.name), figure_of(policy.estimate), covered)
    console.print(table)
    for policy in comparison.policies:
        if not policy.coverage.supported:
            print_item(f"{policy.name}: {policy.coverage.verdict}")
    if any(math.isinf(policy.estimate.high) for policy in comparison.policies):
        print_item("±?: the data have a single episode, or nearly so: there is no interval")
    for reason in dict.fromkeys(policy.estimate.refused for policy in comparison.policies):
        if reason:  # the data's, and so the same for all policies
            print_item(f"there is no estimate: {reason}")
    best, reward = max(comparison.behaviours.items(), key=lambda item: item[1].value)
    print_item(f"best policy in the data: {best}, {reward.value:.2f}")


def figure_of(estimate: Estimate) -> str:
    """A figure with half of its interval; - for none."""
    if not estimate.answered:
        return "-"
    half = (estimate.high - estimate.low) / 2
    return f"{estimate.value:.2f} ±{half:.2f}" if math.isfinite(half) else f"{estimate.value:.2f} ±?"


def shown_names(names: Sequence[str]) -> str:
    """The first four names, and the number of the rest."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def short(name: str) -> str:
    """A name that fits the table: the end of a long name, by which names differ."""
    return name if len(name) <= LONGEST else f"…{name[1 - LONGEST :]}"


def print_item(text: str) -> None:
    """A line of a list."""
    console.print(f"- {text}", highlight=False, markup=False)
