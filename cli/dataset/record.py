"""``slicepilot dataset record``: record agents in the simulator or on real UPFs, as data to learn from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slicepilot.cli.schemas.episodes import Recorded
from slicepilot.cli.shared.agents_option import load_learned, names_of
from slicepilot.cli.shared.output import console, figures_table, print_json, progress_bar
from slicepilot.cli.shared.registry import BUNDLE_HELP
from slicepilot.configs import ConfigError
from slicepilot.configs.backends import SIMULATOR, check_name

from .paths import check_episodes_out, with_provenance, write_any_episodes, writing_to
from .record_live import AS_FOUND, play_scenario, watch_node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicepilot.agents.base import Agent
    from slicepilot.data.episodes.episodes import EpisodeSet
    from slicepilot.env.reward import RewardWeights
    from slicepilot.env.simulator.hardware import Hardware
    from slicepilot.env.simulator.scenario import Scenario
    from slicepilot.env.slices import SliceSet

SCENARIO = "testbed-contention"
REFRESH_PERIODS = 100
MAX_TIMES = 1000


def record(
    out: Annotated[Path, typer.Option(help="Output: NAME.parquet, or a new folder NAME-vN for a Minari dataset.")],
    agents: Annotated[
        list[str] | None,
        typer.Option(help="Names of agents, separated by commas; NAME:3 gets three times the episodes."),
    ] = None,
    bundle: Annotated[list[Path] | None, typer.Option(help=f"{BUNDLE_HELP} May be repeated.")] = None,
    scenario: Annotated[
        str | None, typer.Option(help="Scenario: a shipped name or a YAML file (default: testbed-contention).")
    ] = None,
    backend: Annotated[
        str, typer.Option(help="Backend: simulator, or testbed (real UPFs in real time).")
    ] = "simulator",
    name: Annotated[str | None, typer.Option(help="Name of a running testbed to use.")] = None,
    node: Annotated[
        str | None,
        typer.Option(help="Node configuration with existing UPFs: a name or a YAML file of `node discover`."),
    ] = None,
    mode: Annotated[
        str, typer.Option(help="Mode on a node: shadow moves no knobs; live lets agents move them, under the guard.")
    ] = "shadow",
    run: Annotated[
        str | None,
        typer.Option(help="Run configuration for a node: a shipped name or a YAML file (default: default)."),
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, max=10_000, help="Number of episodes of each agent.")] = 2,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="Duration of each episode (default: the scenario's, or 60 on a node).")
    ] = None,
    period_ms: Annotated[
        float | None, typer.Option(min=2, max=30_000, help="Control period (default: the scenario's, or 10 on a node).")
    ] = None,
    reward: Annotated[str, typer.Option(help="Reward weights: a shipped name or a YAML file.")] = "default",
    seed: Annotated[int, typer.Option(min=0, help="Random seed for loads, noise and random agents.")] = 0,
    requests: Annotated[
        bool,
        typer.Option("--published-requests", help="Deploy pods with the CPU requests of the published settings."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Record episodes: observations, actions, rewards, and action probabilities where they are known.

    Agents are named as in `slicepilot evaluate`; the agent as-found keeps the original settings, and the prefix
    exploring- adds noise. On a node, the real traffic is used. In shadow, as-found acts: the knobs are those that
    the operator set. With --mode live, agents move them, with guard and supervisor.

    Example: [bold]slicepilot dataset record --agents random,exploring-no-control --episodes 4 --out
    log.parquet[/bold]
    """
    from slicepilot.env.reward import RewardWeights

    check_episodes_out(out)
    check_name(backend)
    _check_node(node, mode, run, backend, scenario, name, requests)
    if name is not None and backend == SIMULATOR:
        raise ConfigError("name: needs a --backend of real UPFs")
    weights, named = RewardWeights.from_yaml(reward), names_of(agents or [])
    period_s = None if period_ms is None else 1e-3 * period_ms

    def make(slices: SliceSet, hardware: Hardware) -> list[Agent]:
        return _make_agents(slices, hardware, named, bundle or [], weights, requests)

    if node is not None:
        if mode == "shadow" and not named and not bundle:
            named = (AS_FOUND,)
        recorded = watch_node(node, mode, run or "default", named, make, episodes, seconds, period_s, seed, weights)
    else:
        played = _scenario(scenario, seconds, period_s)
        made = make(played.slice_set(), played.hardware_spec())
        recorded = (
            _simulate(played, made, episodes, seed, weights)
            if backend == SIMULATOR
            else play_scenario(backend, played, made, episodes, seed, weights, name)
        )
    with writing_to(out.parent):
        write_any_episodes(with_provenance(recorded), out)
    document = _document(recorded, out)
    if as_json:
        print_json(document, Recorded)
    else:
        _print(document)


def _check_node(
    node: str | None,
    mode: str,
    run: str | None,
    backend: str,
    scenario: str | None,
    name: str | None,
    requests: bool,
) -> None:
    """Raises ConfigError for options that exclude each other."""
    if node is None:
        if mode != "shadow":
            raise ConfigError(f"mode = {mode!r}: needs --node; elsewhere agents always act")
        if run is not None:
            raise ConfigError(f"run = {run!r}: needs --node; elsewhere no controller runs")
        return
    others = {"backend": backend != SIMULATOR, "scenario": scenario, "name": name, "published-requests": requests}
    for option, given in others.items():
        if given:
            raise ConfigError(f"--{option}: accepted without --node, whose UPFs and traffic are what there is")


def _scenario(name: str | None, seconds: float | None, period_s: float | None) -> Scenario:
    from slicepilot.env.simulator.scenario import Scenario

    played = Scenario.from_yaml(name or SCENARIO)
    return replace(
        played, duration_s=seconds or played.duration_s, control_period_s=period_s or played.control_period_s
    )


def _make_agents(
    slices: SliceSet,
    node: Hardware,
    names: Sequence[str],
    bundles: Sequence[Path],
    weights: RewardWeights,
    requests: bool,
) -> list[Agent]:
    """The agents to record, under distinct names; raises ConfigError for an unknown name, or no agent."""
    from slicepilot.agents.heuristics.registry import make
    from slicepilot.training.recording.recording import on_declared_pods

    counted = [_times(name) for name in names]
    made: list[Agent] = [*(make(name, slices, node, weights) for name, _ in counted), *load_learned(bundles)]
    if not made:
        raise ConfigError("agents: none given; expected names, for instance random, or a --bundle")
    if twice := [agent.name for agent in made if sum(agent.name == other.name for other in made) > 1]:
        raise ConfigError(f"agents: {twice[0]!r} is named twice; name each once, NAME:N for N times the episodes")
    times, agents = dict(counted), made if requests else [on_declared_pods(agent) for agent in made]
    return [agent for agent in agents for _ in range(times.get(agent.name, 1))]


def _times(text: str) -> tuple[str, int]:
    """``random:3`` as a name and how often it counts; raises ConfigError."""
    name, colon, times = text.partition(":")
    if colon and not (times.isascii() and times.isdigit() and 1 <= int(times[:9]) <= MAX_TIMES):
        raise ConfigError(f"agents = {text!r}: expected NAME, or NAME:1 to NAME:{MAX_TIMES}")
    return name, int(times or 1)


def _simulate(played: Scenario, made: Sequence[Agent], episodes: int, seed: int, weights: RewardWeights) -> EpisodeSet:
    from slicepilot.training.recording.recording import record_simulated

    with progress_bar() as progress:
        task = progress.add_task("recording", total=len(set(made)) * played.num_steps)
        periods = 0

        def on_period(who: str) -> None:
            nonlocal periods
            periods += 1
            if periods % REFRESH_PERIODS == 0:
                progress.update(task, completed=periods, description=who)

        return record_simulated(made, played, episodes, seed, weights, on_period)


def _document(recorded: EpisodeSet, out: Path) -> dict[str, Any]:
    behaviours = []
    for name in recorded.behaviours:
        own = recorded.of(name)
        returns = [float(episode.rewards.sum()) for episode in own]
        missed = [episode.decisions["missed_ticks"] for episode in own if "missed_ticks" in episode.decisions]
        behaviours.append(
            {
                "name": name,
                "episodes": len(own),
                "steps": own.num_steps,
                "return_mean": sum(returns) / len(returns),
                "return_min": min(returns),
                "return_max": max(returns),
                "reward_mean": sum(returns) / own.num_steps,
                "missed_ticks": int(sum(ticks.sum() for ticks in missed)) if missed else None,
            }
        )
    files = [out] if out.is_file() else [file for file in out.rglob("*") if file.is_file()]
    return {
        "out": str(out),
        "bytes": sum(file.stat().st_size for file in files),
        "episodes": len(recorded),
        "steps": recorded.num_steps,
        "period_s": recorded.facts["period_s"],
        "behaviours": behaviours,
    }


def _print(document: dict[str, Any]) -> None:
    live = document["behaviours"][0]["missed_ticks"] is not None
    headings = ("episodes", "steps", "return\nmean", "reward\na step", *(("missed\nticks",) if live else ()))
    period_ms = 1e3 * document["period_s"]
    table = figures_table(f"{document['steps']:,} steps of {period_ms:g} ms", ("behaviour", *headings))
    for row in document["behaviours"]:
        figures = [f"{row['episodes']}", f"{row['steps']:,}", f"{row['return_mean']:.1f}", f"{row['reward_mean']:.3f}"]
        table.add_row(row["name"], *figures, *([f"{row['missed_ticks']}"] if live else []))
    console.print(table)
    console.print(f"{document['out']}, {1e-6 * document['bytes']:.2f} MB", soft_wrap=True, highlight=False)
