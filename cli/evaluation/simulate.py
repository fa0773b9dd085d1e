"""``slicepilot simulate``: replay published experiments, or run a scenario under an agent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slicepilot.cli.schemas.evaluation import Played, StudyExperiment
from slicepilot.cli.shared.agents_option import POLICY_HELP, load_learned, load_policies
from slicepilot.cli.shared.output import announce_compilation, console, figures_table, print_json, progress_bar
from slicepilot.cli.shared.registry import BUNDLE_HELP
from slicepilot.configs import ConfigError

if TYPE_CHECKING:
    from slicepilot.agents.base import Agent
    from slicepilot.env.simulator.scenario import Scenario

STUDIES = ("andrade",)
MAX_DIGITS = 4  # keeps a slip such as 1-99999999 from being counted out


def simulate(
    study: Annotated[str | None, typer.Option(help="Replay a published study (andrade).")] = None,
    experiments: Annotated[str, typer.Option(help="Experiments of the study, for instance 1,5,25 or 1-26.")] = "1-26",
    scenario: Annotated[
        str, typer.Option(help="Simulate this scenario: a shipped name or a YAML file.")
    ] = "andrade-ramp",
    agent: Annotated[
        str | None, typer.Option(help="Agent that controls the scenario (default: no-control).", show_default=False)
    ] = None,
    bundle: Annotated[Path | None, typer.Option(help=BUNDLE_HELP)] = None,
    policy: Annotated[str | None, typer.Option(help=f"{POLICY_HELP}, instead of an agent.")] = None,
    repetitions: Annotated[int, typer.Option(min=1, max=1000, help="Number of repetitions of each experiment.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Random seed for loads and noise.")] = 0,
    series: Annotated[
        bool, typer.Option("--series", help="With --study and --json: the ramp every 30 s as well.")
    ] = False,
    hardware: Annotated[str, typer.Option(help="Hardware of the study: a shipped name or a YAML file.")] = "andrade",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Simulate published experiments or a scenario.

    Example: [bold]slicepilot simulate --study andrade --experiments 1,5,25[/bold]
    """
    if series and not (study and as_json):
        raise ConfigError("series: needs --study and --json")
    if study is None:
        _play(scenario, agent, bundle, policy, seed, as_json)
        return
    if study not in STUDIES:
        raise ConfigError(f"study: unknown name {study!r}; expected {', '.join(STUDIES)}")
    from slicepilot.env.simulator.hardware import Hardware
    from slicepilot.env.simulator.study import find_settings, play_study, series_of, summarise

    numbers = parse_numbers(experiments)
    node = Hardware.from_yaml(hardware)
    if not as_json:
        announce_compilation()
    with progress_bar() as progress:
        task = progress.add_task("simulating", total=None)
        samples = play_study(
            find_settings(numbers),
            node,
            repetitions,
            seed,
            on_step=lambda done, total: progress.update(task, completed=done, total=total),
        )
    results = summarise(samples)
    if series:
        results = [result | {"series": series_of(samples, result["experiment"])} for result in results]
    if as_json:
        print_json(results, list[StudyExperiment])
    else:
        _print_study(results)


def parse_numbers(text: str) -> list[int]:
    """``1,5,20-22`` to [1, 5, 20, 21, 22], without repeats; raises `ConfigError` for anything else."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not _is_number(first) or (dash and not _is_number(last)) or int(first) > int(last or first):
            raise ConfigError(f"experiments = {text!r}: expected numbers and rising ranges such as 1,5,20-22")
        numbers += range(int(first), int(last or first) + 1)
    return list(dict.fromkeys(numbers))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS


def _print_study(results: list[dict[str, Any]]) -> None:
    from slicepilot.data.reference import calibration_rows

    published = {(row.experiment, row.metric, row.group): row for row in calibration_rows()}
    headings = ("exp", "slice1\nMbit/s mean", "others\nMbit/s mean", "slice1\nms median", "others\nms median")
    table = figures_table("Simulated (published) over the last five minutes", headings)
    for result in results:
        cells = [str(result["experiment"])]
        for metric, key, statistic in (
            ("throughput", "throughput_mbps", "mean"),
            ("latency", "latency_ms", "median"),
        ):
            for group in ("slice1", "others"):
                values = result[key][group]
                row = published.get((result["experiment"], metric, group))
                known = f" ({getattr(row, statistic):.0f})" if row else ""
                cells.append(f"{values[statistic]:.0f}{known}" if values else "-")
        table.add_row(*cells)
    console.print(table)


def _agent(scenario: Scenario, name: str | None, bundle: Path | None, policy: str | None) -> Agent:
    from slicepilot.agents.heuristics.registry import make

    given = {"agent": name, "bundle": bundle, "policy": policy}
    several = [option for option, value in given.items() if value is not None]
    if len(several) > 1:
        raise ConfigError(f"{', '.join(several)}: given together; expected at most one of them")
    if bundle is not None:
        return load_learned([bundle])[0]
    if policy is not None:
        return load_policies([policy])[0]
    return make(name or "no-control", scenario.slice_set(), scenario.hardware_spec())


def _play(
    scenario_name: str, agent_name: str | None, bundle: Path | None, policy: str | None, seed: int, as_json: bool
) -> None:
    import numpy as np

    from slicepilot.env.simulator.scenario import Scenario
    from slicepilot.training.evaluation.rollouts import simulate_rollout

    scenario = Scenario.from_yaml(scenario_name)
    agent = _agent(scenario, agent_name, bundle, policy)
    if not as_json:
        announce_compilation()
    with progress_bar() as progress:
        task = progress.add_task(f"{scenario.name} under {agent.name}", total=scenario.num_steps)
        rollout = simulate_rollout(agent, scenario, 1, seed, on_period=lambda: progress.advance(task))
    figures: list[dict[str, Any]] = [
        {
            "slice": name,
            "offered_mbps": float(rollout.row("offered_mbps")[:, s].mean()),
            "carried_mbps": float(rollout.row("carried_mbps")[:, s].mean()),
            "delay_p50_us": float(np.median(rollout.row("delay_p50_us")[:, s])),
            "delay_p99_us": float(np.quantile(rollout.row("delay_p99_us")[:, s], 0.99)),
            "sla_violation_s": float(rollout.violated[:, s].sum() * rollout.period_s),
        }
        for s, name in enumerate(rollout.slices.names)
    ]
    if as_json:
        print_json({"scenario": scenario.name, "agent": agent.name, "seed": seed, "slices": figures}, Played)
        return
    headings = ("slice", "offered\nMbit/s", "carried\nMbit/s", "p50\nms", "p99\nms", "promise\nbroken s")
    shown = figures_table(f"{scenario.name} under {agent.name}, {scenario.duration_s:.0f} s", headings)
    for f in figures:
        shown.add_row(
            f["slice"],
            f"{f['offered_mbps']:.1f}",
            f"{f['carried_mbps']:.1f}",
            f"{f['delay_p50_us'] / 1e3:.1f}",
            f"{f['delay_p99_us'] / 1e3:.1f}",
            f"{f['sla_violation_s']:.0f}",
        )
    console.print(shown)
