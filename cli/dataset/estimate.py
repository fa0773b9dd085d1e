"""``slicepilot dataset estimate``: what policies would have earned that have not acted, from episodes of others."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slicepilot.cli.schemas.episodes import Estimates
from slicepilot.cli.shared.agents_option import load_learned, names_of
from slicepilot.cli.shared.output import console, figures_table, print_json, progress_bar
from slicepilot.configs import ConfigError

from .missing import print_missing

if TYPE_CHECKING:
    from slicepilot.agents.base import Agent
    from slicepilot.data.episodes.episodes import EpisodeSet
    from slicepilot.data.intervals import Interval
    from slicepilot.env.simulator.hardware import Hardware
    from slicepilot.training.ope.comparison import Comparison
    from slicepilot.training.ope.estimate import Estimate

NO_MODEL = "none"
WORDS = {"model-based": "the model", "fitted Q": "fitted Q evaluation", "importance": "importance sampling"}
"""What sentences call estimators."""
LONGEST = 24  # characters of a policy's name in tables


def estimate(
    data: Annotated[str, typer.Argument(help="Recorded episodes: a shipped name, a file or a folder.")],
    bundle: Annotated[list[Path] | None, typer.Option(help="Bundle of a learned policy; may be repeated.")] = None,
    agents: Annotated[
        list[str] | None, typer.Option(help="Agents to estimate: names, separated by commas, as for `evaluate`.")
    ] = None,
    truth: Annotated[
        Path | None, typer.Option(help="True rewards, to score the estimators: episodes, or JSON {NAME: REWARD}.")
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(help="Hardware of the model, or none (default: the data's)."),
    ] = None,
    reward: Annotated[
        str | None, typer.Option(help="Reward weights (default: the recorded ones): a name or a YAML file.")
    ] = None,
    updates: Annotated[int, typer.Option(min=1, help="Optimiser steps of each critic of fitted Q evaluation.")] = 1500,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Estimate the reward per control period of policies from recorded data, with intervals and coverage.

    Estimators: a model (the policies run in the simulator under the recorded loads), fitted Q evaluation, and
    importance sampling where action probabilities are known. An estimator without an estimate says why. With
    --truth, the errors of the estimators are shown.

    Example: slicepilot dataset estimate testbed-contention --agents reactive-sla,static-weights-9-nice
    """
    from slicepilot.data.episodes.missing import missing_of
    from slicepilot.training.ope.comparison import compare
    from slicepilot.training.ope.fitted_q import FittedQConfig
    from slicepilot.training.ope.logged import Node

    with progress_bar() as progress:
        task = progress.add_task("reading", total=1.0)
        whole = _episodes(data, reward)
        episodes, missing = whole.unbroken(), [one.to_json() for one in missing_of(whole)]
        node = hardware_for(hardware, episodes)
        policies, stripped = _policies(Node.of(episodes), names_of(agents or []), bundle or [], node)
        known = read_truth(truth, episodes, reward) if truth is not None else {}
        if truth is not None and not any(policy.name in known for policy in policies):
            raise ConfigError(
                f"truth = {str(truth)!r}: has {', '.join(known) or 'nobody'}; accepted: at least one of the policies"
            )
        found = compare(
            episodes,
            policies,
            node,
            known,
            FittedQConfig(updates=updates, seed=seed),
            lambda what, share: progress.update(task, completed=share, description=what),
        )
    if as_json:
        print_json({**found.to_json(), "on_declared_pods": stripped, "missing": missing}, Estimates)
        return
    print_missing(missing)
    print_comparison(found, Path(data).name)
    if others := [name for name in episodes.behaviours if name not in found.behaviours]:
        few = shown_names(others)
        _say(f"left out, as recorded on pods with other CPU requests than the slices declare: {few}")
    if stripped:
        _say(f"on pods as the slices declare them, not with CPU requests of their own: {', '.join(stripped)}")


def _episodes(data: str, reward: str | None) -> EpisodeSet:
    from slicepilot.data.recorded import find
    from slicepilot.training.offline.data import with_reward

    from .convert import read_any_episodes

    return with_reward(read_any_episodes(find(data), reward or "default"), reward)


def hardware_for(name: str | None, episodes: EpisodeSet) -> Hardware | None:
    """The node that a model is to play on: as named, else the study's for its episodes and the testbed for others."""
    from slicepilot.env.simulator.hardware import Hardware

    if name is None:
        of_study = any(episode.info.get("backend") == "study" for episode in episodes)
        name = "andrade" if of_study else "testbed"
    return None if name == NO_MODEL else Hardware.from_yaml(name)


def _policies(
    node: Any, names: Sequence[str], bundles: Sequence[Path], hardware: Hardware | None
) -> tuple[list[Agent], list[str]]:
    """Who is asked about, and the names of those whose own CPU requests do not count; raises ConfigError for nobody."""
    from slicepilot.agents.heuristics.registry import make
    from slicepilot.training.recording.recording import on_declared_pods

    made: list[Agent] = [*(make(name, node.slices, hardware, node.weights) for name in names), *load_learned(bundles)]
    if not made:
        raise ConfigError("agents = none: accepted: names, for instance reactive-sla, or a --bundle")
    stripped = [agent.name for agent in made if agent.request_mcpu is not None]
    return [on_declared_pods(agent) for agent in made], stripped


def read_truth(path: Path, episodes: EpisodeSet, reward: str | None = None) -> dict[str, Interval]:
    """Mean rewards by name, of a JSON object or of episodes with the same reward and period.

    Raises:
        ConfigError: neither; other weights or another period than the data's.
    """
    from slicepilot.data.files import what_else
    from slicepilot.data.intervals import Interval
    from slicepilot.training.ope.comparison import rewards_of

    if path.suffix != ".json":
        run = _episodes(str(path), reward).unbroken()
        for fact in ("reward", "period_s"):
            if run.facts.get(fact) != episodes.facts.get(fact):
                raise ConfigError(
                    f"truth: {fact} = {run.facts.get(fact)}: accepted: {episodes.facts.get(fact)}, as in the data"
                )
        return rewards_of(run)
    if problem := what_else(path):
        raise ConfigError(f"truth = {str(path)!r}: {problem}; accepted: a regular file")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"truth = {str(path)!r}: {error.strerror}; accepted: a file") from error
    except ValueError as error:
        raise ConfigError(f"truth = {str(path)!r}: not JSON; accepted: an object {{NAME: REWARD}}") from error
    if not isinstance(document, dict) or not document or not all(_is_number(value) for value in document.values()):
        raise ConfigError(f"truth = {str(path)!r}: accepted: an object {{NAME: REWARD}} of mean rewards a period")
    return {name: Interval(float(value), float(value), float(value)) for name, value in document.items()}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < float("inf")


def print_comparison(found: Comparison, data: str) -> None:
    """Tables of 80 columns and what they do not say."""
    from slicepilot.training.ope.comparison import ESTIMATORS, FITTED_Q, IMPORTANCE, MODEL

    shown = [name for name in ESTIMATORS if any(name in policy.estimates for policy in found.policies)]
    titles = {MODEL: "model", FITTED_Q: "fitted Q", IMPORTANCE: "importance"}
    truth = ("truth",) if found.has_truth else ()
    table = figures_table(
        f"{data}: reward a control period, 95% intervals", ("policy", *(titles[name] for name in shown), "data", *truth)
    )
    for policy in found.policies:
        table.add_row(
            short(policy.name),
            *(figure_of(policy.estimates[name]) for name in shown),
            "yes" if policy.coverage.supported else "no",
            *((f"{policy.truth.value:.2f}" if policy.truth else "-",) if truth else ()),
        )
    console.print(table)
    for policy in found.policies:
        if not policy.coverage.supported:
            _say(f"{policy.name}: {policy.coverage.verdict}")
    if any(math.isinf(own.high) for policy in found.policies for own in policy.estimates.values()):
        _say("±?: of a single episode, or nearly so, nobody can say how much a figure depends on it")
    for name in shown:
        refused = {policy.name: policy.estimates[name].refused for policy in found.policies}
        for why in dict.fromkeys(filter(None, refused.values())):
            own = [policy for policy, reason in refused.items() if reason == why]
            of = "any policy" if len(own) == len(refused) > 1 else ", ".join(own)
            _say(f"{WORDS[name]} has no figure for {of}: {why}")
    best = max(found.behaviours.items(), key=lambda item: item[1].value)
    _say(f"best of those who acted: {best[0]}, {best[1].value:.2f}")
    if found.has_truth:
        _print_scores(found, shown)


def _print_scores(found: Comparison, shown: Sequence[str]) -> None:
    table = figures_table(
        "held against what was really earned",
        ("estimator", "policies", "error", "bias", "in 95%", "Spearman", "95% interval"),
    )
    for name in shown:
        score = found.score(name)
        rank = score.rank
        table.add_row(
            name,
            str(score.answered),
            *((f"{score.error:.2f}", f"{score.bias:+.2f}", _share(score.covered)) if score.answered else "---"),
            *((f"{rank.value:.2f}", f"{rank.low:.2f} to {rank.high:.2f}") if rank else ("-", "-")),
        )
    console.print(table)


def figure_of(estimate: Estimate) -> str:
    """A figure with half of its interval; - for none."""
    if not estimate.answered:
        return "-"
    half = (estimate.high - estimate.low) / 2
    return f"{estimate.value:.2f} ±{half:.2f}" if math.isfinite(half) else f"{estimate.value:.2f} ±?"


def _share(covered: float) -> str:
    return "-" if math.isnan(covered) else f"{100 * covered:.0f}%"


def shown_names(names: Sequence[str]) -> str:
    """The first four, and how many more there are."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def short(name: str) -> str:
    """A name that fits the table; of long ones the end tells them apart."""
    return name if len(name) <= LONGEST else f"…{name[1 - LONGEST :]}"


def _say(text: str) -> None:
    console.print(f"- {text}", highlight=False, markup=False)
