"""``slicepilot evaluate``: run agents on the same seeds and compare them."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from slicepilot.cli.schemas import evaluation as schema
from slicepilot.cli.shared.agents_option import POLICY_HELP, load_learned, load_policies, names_of
from slicepilot.cli.shared.default_paths import own
from slicepilot.cli.shared.output import (
    announce_compilation,
    console,
    figures_table,
    print_json,
    progress_bar,
    progress_lines,
)
from slicepilot.cli.shared.registry import BUNDLE_HELP
from slicepilot.cli.shared.run_labels import RunName, Tags
from slicepilot.cli.shared.streams import STDOUT, require_single, write_out
from slicepilot.configs import ConfigError
from slicepilot.configs.backends import SIMULATOR

if TYPE_CHECKING:
    from slicepilot.agents.base import Agent
    from slicepilot.agents.learned.agent import LearnedAgent
    from slicepilot.env.simulator.scenario import Scenario
    from slicepilot.training.evaluation.comparison import ScenarioResult
    from slicepilot.training.evaluation.config import EvaluationConfig
    from slicepilot.training.evaluation.suite import OverTrainingSeeds

RESULTS = Path("reports/evaluation")
REFRESH_PERIODS = 100
LEGEND = """prio: the slice with the largest weight.
broken: seconds with broken promises, summed over slices by share of weight.
best effort: what slices carry beyond their promises, loss: against no control.
CPU wasted: core-seconds that limits hold and no slice uses; an edge
application's work, if there is any, counts instead.
dominates: not worse in any of the three, and better in some, by 10% of broken
seconds, 2 points of best effort or 5% of CPU. rule: queue-greedy.
return: mean reward per control period. Figures are means over seeds, the
return's is an interquartile mean."""
BEST_FIXED = "best fixed: the best fixed setting of each scenario, in hindsight."
ONLY_FIXED = "best fixed: the only fixed setting here."
DRAWN, DRAWN_SCENARIOS = "drawn", 32
AXIS_NAMES: dict[str, str] = {
    "broken": "broken seconds, ratio",
    "best_effort": "best effort, points",
    "cpu": "wasted CPU, ratio",
}
# On a node about as large as the study's, published settings are used as published, elsewhere as shares of the node.
STUDY_CPUS, STUDY_UPLINK_MBPS, ABOUT = 4.0, 1000.0, 0.1


def evaluate(
    bundle: Annotated[list[Path] | None, typer.Option(help=f"{BUNDLE_HELP} May be repeated.")] = None,
    policy: Annotated[list[str] | None, typer.Option(help=f"{POLICY_HELP}; may be repeated.")] = None,
    scenario: Annotated[
        list[str] | None, typer.Option(help="Scenario: a shipped name or a YAML file; may be repeated.")
    ] = None,
    agents: Annotated[
        list[str] | None,
        typer.Option(help="Names of agents (docs/agents.md), separated by commas; * matches any part of a name."),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="Number of runs of each agent in each scenario; another number is of other runs."),
    ] = None,
    suite: Annotated[str | None, typer.Option(help='Use randomly drawn scenarios ("drawn").')] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Random seed of the runs (default: 20250413), or of the suite (0).")
    ] = None,
    scenarios: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Number of scenarios that a suite draws.")
    ] = None,
    period_ms: Annotated[
        float | None, typer.Option(min=2, max=30_000, help="Control period (default: the scenarios').")
    ] = None,
    config: Annotated[
        str | None,
        typer.Option("-c", "--config", help="Evaluation configuration: a shipped name or a YAML file."),
    ] = None,
    ray: Annotated[bool, typer.Option("--ray", help="Run in parallel with Ray; the results are identical.")] = False,
    address: Annotated[
        str | None, typer.Option(help="Ray cluster for --ray: HOST:PORT, or auto on one of its nodes.")
    ] = None,
    results: Annotated[Path, typer.Option(help="Output folder for the results.")] = RESULTS,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report to this file.")] = None,
    mlflow: Annotated[
        bool | None,
        typer.Option("--mlflow/--no-mlflow", help="Log figures and report to MLflow (default: if it is installed)."),
    ] = None,
    run_name: RunName = None,
    tag: Tags = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run agents on the same seeds of the same scenarios and compare them.

    The policies of bundles and of --policy are judged; without any, the first heuristic among the agents. An agent
    dominates another where it breaks promises no longer, carries no less beyond them, wastes no more CPU, and is
    clearly better in some of it.

    Example: slicepilot evaluate --bundle runs/mine/bundle --scenario multi-promise --report report.html
    """
    from slicepilot.training.evaluation.config import EvaluationConfig
    from slicepilot.training.evaluation.results import Evaluation, Provenance, hardware_fits, save
    from slicepilot.training.runs.labels import RunLabels

    require_single(report, as_json, "--report")
    labels = RunLabels.of(run_name, tag or [])
    drawn = _drawn(suite, seed, scenarios, scenario)
    settings = EvaluationConfig.from_yaml(config or ("drawn" if drawn else "default"))
    settings = _settings(settings, scenario, agents, seeds, None if drawn else seed, period_ms)
    own(results, RESULTS, "results")
    if address is not None and not ray:
        raise ConfigError(f"address = {address!r}: needs --ray")
    if ray:
        from slicepilot.training.cluster.session import need_ray

        need_ray("evaluate --ray")
        if settings.backend != SIMULATOR:
            raise ConfigError(f"ray: needs the backend {SIMULATOR}: a {settings.backend} runs on a single machine")
    bundles = load_learned(bundle or [])
    learned = [*bundles, *load_policies(policy or [], bundles)]
    if mlflow is None:
        mlflow = find_spec("mlflow") is not None
    if mlflow:
        from slicepilot.training.runs.tracking import check_tracking

        check_tracking()
    if drawn:
        from slicepilot.training.evaluation.drawn import draw_scenarios

        chosen = draw_scenarios(results / "scenarios", *drawn, settings.control_period_s)
        settings = replace(settings, scenarios=tuple(played.name for played in chosen))
    else:
        chosen = _scenarios(settings)
    made_for_each = [_make_agents(played, settings, learned) for played in chosen]
    if settings.backend == SIMULATOR and not as_json:
        announce_compilation()
    if settings.backend != SIMULATOR:
        judged = [
            _judge_live(played, made, settings, learned) for played, made in zip(chosen, made_for_each, strict=True)
        ]
    elif ray:
        judged = _judge_on_ray(chosen, made_for_each, settings, learned, address)
    else:
        judged = _judge(chosen, made_for_each, settings, learned, progress_lines(not as_json))
    command = shlex.join(["slicepilot", *sys.argv[1:]])
    candidates = _candidates(bundle or [], bundles)
    candidates |= {a.name: {"policy": given} for given, a in zip(policy or [], learned[len(bundles) :], strict=True)}
    evaluation = Evaluation(tuple(judged), Provenance.here(command), hardware_fits(judged), candidates)
    save(evaluation, results)
    if report is not None:
        from slicepilot.training.evaluation.report import render

        write_out(report, render(evaluation).encode(), "--report")
    if as_json:
        print_json(_document(judged, drawn, _trained_alike(bundles)), schema.Evaluations)
    elif report != STDOUT:
        _print(judged, drawn is not None, _trained_alike(bundles))
        written = [f"results in {results}", *([f"report in {report}"] if report else [])]
        console.print(", ".join(written), soft_wrap=True)
    if mlflow:
        from slicepilot.training.evaluation.tracking import log_evaluation

        log_evaluation(evaluation, chosen, settings, labels, results)


def _candidates(addresses: Sequence[Path], learned: Sequence[LearnedAgent]) -> dict[str, dict[str, Any]]:
    """The recorded facts of the learned policies, by name."""
    from slicepilot.agents.learned.files import BundleFiles
    from slicepilot.training.evaluation.results import candidate_of

    results = {}
    for address, agent in zip(addresses, learned, strict=True):
        digest = BundleFiles.read(agent.bundle.origin or "").digest
        results[agent.name] = candidate_of(str(address), digest, agent.bundle.training)
    return results


def _print(judged: Sequence[ScenarioResult], drawn: bool, alike: Any) -> None:
    if not drawn:
        for result in judged:
            print_result(result)
    if drawn or len(judged) > 1:
        print_suite(judged, alike)
    for line in footer(judged):
        console.print(line, highlight=False)


def footer(judged: Sequence[ScenarioResult]) -> list[str]:
    """What the tables mean, and a warning for few seeds."""
    from slicepilot.training.evaluation.summary import has_one_fixed, too_few

    lines = [LEGEND, ONLY_FIXED if all(map(has_one_fixed, judged)) else BEST_FIXED, too_few(judged)]
    return [line for line in lines if line]


def _judge(
    scenarios: Sequence[Scenario],
    made_for_each: Sequence[Sequence[Agent]],
    settings: EvaluationConfig,
    learned: Sequence[Agent],
    show: Callable[[str, float], None],
) -> list[ScenarioResult]:
    """All scenarios in the simulator, with progress: a bar on a terminal, else ``show``."""
    from slicepilot.training.evaluation.judge import evaluate_scenario

    judged = []
    with progress_bar() as progress:
        # Two more runs per scenario: the references of the losses.
        total = sum(played.num_steps * (len(made) + 2) for played, made in zip(scenarios, made_for_each, strict=True))
        task = progress.add_task("evaluating", total=total)
        periods = 0

        def on_period(name: str, agent: str) -> None:
            nonlocal periods
            periods += 1
            if periods % REFRESH_PERIODS == 0:
                progress.update(task, completed=periods, description=f"{name}: {agent}")
                show(f"evaluating {name}: {agent}", periods / total)

        for played, made in zip(scenarios, made_for_each, strict=True):
            subjects = [a.name for a in learned] or _first_heuristic(made)
            judged.append(evaluate_scenario(played, made, settings, subjects, on_period))
    return judged


def _judge_on_ray(
    scenarios: Sequence[Scenario],
    made_for_each: Sequence[Sequence[Agent]],
    settings: EvaluationConfig,
    learned: Sequence[Agent],
    address: str | None,
) -> list[ScenarioResult]:
    """All scenarios in the simulator, every rollout a task of Ray, with progress."""
    from slicepilot.training.evaluation.on_ray import evaluate_on_ray

    subjects = [[a.name for a in learned] or _first_heuristic(made) for made in made_for_each]
    with progress_bar() as progress:
        task = progress.add_task("evaluating", total=sum(len(made) + 2 for made in made_for_each))

        def on_rollout(name: str, agent: str) -> None:
            progress.update(task, advance=1, description=f"{name}: {agent}")

        return evaluate_on_ray(scenarios, made_for_each, settings, subjects, address, on_rollout)


def _judge_live(
    played: Scenario, made: Sequence[Agent], settings: EvaluationConfig, learned: Sequence[Agent]
) -> ScenarioResult:
    """A scenario on real UPFs, agents interleaved, with progress."""
    from slicepilot.configs.backends import plugin
    from slicepilot.env.reward import RewardWeights
    from slicepilot.training.evaluation.judge import judge, runs_of
    from slicepilot.training.evaluation.rollouts import LiveRunBackend, interleaved_rollouts

    runs = runs_of(played, made)
    backend: LiveRunBackend = plugin(settings.backend).call("open_backend", played)
    try:
        with progress_bar() as progress:
            task = progress.add_task("evaluating", total=settings.seeds * len(runs))

            def on_run(repetition: int, agent: str) -> None:
                progress.update(task, advance=1, description=f"{played.name}, run {repetition + 1}: {agent}")

            weights = RewardWeights.from_yaml(settings.reward)
            recordings = interleaved_rollouts(runs, backend, settings.seeds, settings.seed, weights, on_run)
    finally:
        backend.close()
    return judge(played, made, settings, recordings, [a.name for a in learned] or _first_heuristic(made))


def _settings(
    config: EvaluationConfig,
    scenarios: list[str] | None,
    agents: list[str] | None,
    seeds: int | None,
    seed: int | None,
    period_ms: float | None,
) -> EvaluationConfig:
    """The configuration with what the command line overrides; raises `ConfigError` for a bad number of seeds."""
    if seeds is not None and not 1 <= seeds <= 10_000:
        raise ConfigError(f"seeds = {seeds}: expected 1 to 10000")
    return replace(
        config,
        scenarios=tuple(dict.fromkeys(scenarios or config.scenarios)),
        agents=names_of(agents or []) or config.agents,
        seeds=seeds or config.seeds,
        seed=config.seed if seed is None else seed,
        control_period_s=1e-3 * period_ms if period_ms else config.control_period_s,
    )


def _drawn(
    suite: str | None, seed: int | None, count: int | None, scenarios: list[str] | None
) -> tuple[int, int] | None:
    """Seed and number of the scenarios to draw; None for named scenarios. Raises `ConfigError` for both."""
    if suite is None:
        if count is not None:
            raise ConfigError(f"scenarios = {count}: needs --suite drawn")
        return None
    if suite != DRAWN:
        raise ConfigError(f"suite = {suite!r}: expected {DRAWN}")
    if scenarios:
        raise ConfigError(f"scenario = {scenarios[0]!r}: cannot be combined with --suite")
    return seed or 0, count or DRAWN_SCENARIOS


def _scenarios(config: EvaluationConfig) -> list[Scenario]:
    from slicepilot.env.simulator.scenario import Scenario

    if not config.scenarios:
        raise ConfigError("scenarios: none; write at least one --scenario, or --suite drawn")
    scenarios = [Scenario.from_yaml(name) for name in config.scenarios]
    if config.control_period_s is not None:
        scenarios = [replace(played, control_period_s=config.control_period_s) for played in scenarios]
    for played in scenarios:
        if sum(played.name == other.name for other in scenarios) > 1:
            raise ConfigError(f"scenario: name {played.name!r} is used twice; write each scenario once")
    return scenarios


def _make_agents(scenario: Scenario, config: EvaluationConfig, learned: Sequence[Agent]) -> list[Agent]:
    """The learned agents and every requested agent, made for the scenario's slices and node.

    Raises:
        ConfigError: a name that does not exist, a pattern that matches none.
    """
    from slicepilot.agents.heuristics.registry import available, make
    from slicepilot.env.reward import RewardWeights

    node = scenario.hardware_spec()
    alike = node.logical_cpus == STUDY_CPUS and abs(node.uplink_mbps / STUDY_UPLINK_MBPS - 1.0) <= ABOUT
    known = available(scaled=not alike)
    names: list[str] = []
    for pattern in config.agents:
        matching = [name for name in known if fnmatchcase(name, pattern)] if "*" in pattern else [pattern]
        if not matching:
            raise ConfigError(f"agents: {pattern!r} matches no agent; the agents are {', '.join(known)}")
        names += matching
    slices, weights = scenario.slice_set(), RewardWeights.from_yaml(config.reward)
    return [*learned, *(make(name, slices, node, weights) for name in dict.fromkeys(names))]


def _first_heuristic(made: Sequence[Agent]) -> list[str]:
    from slicepilot.training.evaluation.judge import role_of

    return [agent.name for agent in made if role_of(agent) == "adaptive"][:1]


def _trained_alike(learned: Sequence[LearnedAgent]) -> list[list[str]]:
    """Names of learned agents that differ only in their training seed, by group."""
    groups: dict[str, dict[int, str]] = {}
    for agent in learned:
        record = agent.bundle.training
        config = {key: value for key, value in record.config.items() if key != "seed"}
        key = json.dumps([record.algorithm, record.source, config], sort_keys=True, default=str)
        groups.setdefault(key, {}).setdefault(record.seed, agent.name)
    return [list(names.values()) for names in groups.values()]


def _document(
    judged: Sequence[ScenarioResult], drawn: tuple[int, int] | None, alike: Sequence[Sequence[str]]
) -> dict[str, Any]:
    """The JSON of an evaluation; that of a suite has its seed as well."""
    from slicepilot.training.evaluation.suite import over_training_seeds, summary

    document: dict[str, Any] = {"scenarios": [result.to_json() for result in judged], "summary": summary(judged)}
    if drawn:
        pooled = [row for names in alike for row in over_training_seeds(judged, names)]
        document |= {"suite": DRAWN, "seed": drawn[0], "over_training_seeds": [row.to_json() for row in pooled]}
    return document


def print_suite(judged: Sequence[ScenarioResult], alike: Sequence[Sequence[str]]) -> None:
    """Agents beside the rule and beside the best fixed settings, over all scenarios.

    The policies of a group in ``alike`` differ only in their training seed.
    """
    from slicepilot.training.evaluation.axes import AXES, RELATIONS, shown
    from slicepilot.training.evaluation.comparison import RIVALS
    from slicepilot.training.evaluation.suite import compared, over_training_seeds
    from slicepilot.training.evaluation.summary import count, worst_of

    headings = (
        *("domi-\nnates\n%", "\nequal\n%", "domi-\nnated\n%", "nei-\nther\n%"),
        *("broken\nratio\nmedian", "\n\nworst", "effort\npoints\nmedian", "\n\nworst"),
        *("CPU\nratio\nmed.", "\n\nworst"),
    )
    for which, rival in RIVALS.items():
        rows = compared(judged, which)
        if not rows:
            continue
        title = f"Against {rival}, {count(len(judged), 'scenario')}"
        table = figures_table(title, ("agent", *headings), tight=True)
        for row in rows:
            shares = (f"{100 * row.share(relation):.0f}" for relation in RELATIONS)
            figures = ((shown(axis, row.median(axis)), shown(axis, row.worst(axis)[1])) for axis in AXES)
            name = Text(row.agent, "bold" if row.agent in judged[0].subjects else "")
            table.add_row(name, *shares, *(text for pair in figures for text in pair))
        console.print(table)
        for row in rows:
            if row.agent in judged[0].subjects:
                console.print(worst_of(row), highlight=False, markup=False)
        console.print()
    for names in alike:
        _print_pooled(over_training_seeds(judged, names))


def _print_pooled(rows: Sequence[OverTrainingSeeds]) -> None:
    """Print a table of the policies of a training together."""
    from slicepilot.training.evaluation.axes import AXES, RELATIONS, shown
    from slicepilot.training.evaluation.comparison import RIVALS

    for row in rows:
        names = [own.agent for own in row.each]
        title = f"{len(names)} training seeds together, against {RIVALS[row.each[0].rival]}"
        table = figures_table(title, ("", "median", "95% interval", "seed by seed"))
        for axis in AXES:
            figures = row.axis_json(axis)
            ends, span = (
                " to ".join(shown(axis, end) for end in pair) if pair else "-"
                for pair in (figures["ci95"], (min(figures["medians"]), max(figures["medians"])))
            )
            table.add_row(AXIS_NAMES[axis], shown(axis, figures["median"]), ends, span)
        for relation in RELATIONS:
            shares = [100 * own.share(relation) for own in row.each]
            mean = sum(shares) / len(shares)
            table.add_row(f"{relation}, %", f"{mean:.0f}", "-", f"{min(shares):.0f} to {max(shares):.0f}")
        console.print(table)
        console.print(f"Of {', '.join(names)}: means over them, then medians over scenarios.", highlight=False)


def print_result(result: ScenarioResult) -> None:
    """A table of 80 columns and sentences about the judged agents."""
    from slicepilot.training.evaluation.scores import BEST_EFFORT_LOSS, BROKEN_S, CPU_WASTED, EDGE_WORK
    from slicepilot.training.evaluation.summary import count, relation_word, sentences, short_list

    shown = short_list(result)
    cpu = "edge\nwork\n1000s" if result.has_edge else "CPU\nwasted\ncore-s"
    headings = ("prio\np99 ms", "broken\ns", "best\neffort\nloss %", cpu, "return", "vs rule", "vs best\nfixed")
    table = figures_table(
        f"{result.scenario}: {count(result.seeds, 'seed')}, {len(shown)} of {len(result.agents)} agents",
        ("agent", *headings),
        tight=True,
    )
    for agent in shown:
        table.add_row(
            Text(agent.name, "bold" if agent.name in result.subjects else ""),
            f"{agent.mean('slice1_delay_p99_us') / 1e3:.1f}",
            f"{agent.mean(BROKEN_S):.1f}",
            f"{agent.mean(BEST_EFFORT_LOSS):.1f}",
            f"{1e-3 * agent.mean(EDGE_WORK):,.0f}" if result.has_edge else f"{agent.mean(CPU_WASTED):.0f}",
            f"{result.summary(agent.name, 'return').value:.3f}",
            *(relation_word(result, agent.name, which) for which in ("rule", "best_fixed")),
        )
    console.print(table)
    for subject in result.subjects:
        for sentence in sentences(result, subject):
            console.print(sentence, highlight=False, markup=False)
    console.print()
