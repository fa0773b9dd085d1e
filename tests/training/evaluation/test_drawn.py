"""Drawn scenarios: the same from the same seed, of many kinds, with the bottleneck that they say; ratios summed up."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from slicepilot.agents.heuristics.fixed import no_control
from slicepilot.agents.heuristics.greedy import Greedy
from slicepilot.agents.heuristics.queue_greedy import QueueGreedy
from slicepilot.agents.heuristics.registry import make
from slicepilot.agents.learned.bundle import PolicyBundle
from slicepilot.cli.app import app
from slicepilot.configs import ConfigError
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.evaluation.axes import CPU_FLOOR, FLOOR_SHARE, RELATIONS
from slicepilot.training.evaluation.config import EvaluationConfig
from slicepilot.training.evaluation.drawn import BOTTLENECKS, CPUS, MBIT_PER_BYTE, PERIOD_S, SLICES, draw_scenarios
from slicepilot.training.evaluation.judge import evaluate_scenario
from slicepilot.training.evaluation.suite import LEAST_OTHERS_LOSS_PCT, against, compared, summary

MANY = 60


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> list[Scenario]:
    return draw_scenarios(tmp_path_factory.mktemp("many"), 3, MANY)


def bottleneck(scenario: Scenario) -> str:
    return scenario.description.rpartition(" ")[2].strip(".")


def test_a_seed_says_all_and_a_scenario_does_not_depend_on_how_many_are_drawn(tmp_path: Path) -> None:
    few, more, other = (
        draw_scenarios(tmp_path / name, seed, count) for name, seed, count in (("a", 5, 2), ("b", 5, 4), ("c", 6, 2))
    )
    for item, again in zip(few, more, strict=False):
        assert item.loads == again.loads
        assert item.slice_set() == again.slice_set()
        assert item.hardware_spec() == again.hardware_spec()
    assert few[0].loads != other[0].loads


def test_all_may_have_one_control_period(tmp_path: Path) -> None:
    own = draw_scenarios(tmp_path / "own", 5, 3)
    given = draw_scenarios(tmp_path / "given", 5, 3, period_s=15.0)
    assert [item.control_period_s for item in given] == [15.0] * 3
    assert [item.hardware_spec() for item in given] == [item.hardware_spec() for item in own]
    assert [item.duration_s / item.control_period_s for item in given] == pytest.approx(
        [item.duration_s / item.control_period_s for item in own]
    )


def test_they_are_of_many_kinds(many: list[Scenario]) -> None:
    nodes = [scenario.hardware_spec() for scenario in many]
    assert {bottleneck(scenario) for scenario in many} == set(BOTTLENECKS)
    assert {node.logical_cpus for node in nodes} == set(CPUS)
    assert {node.egress_mode for node in nodes} == {"edt", "tbf", "htb"}
    counts = {len(scenario.slice_set()) for scenario in many}
    assert (min(counts), max(counts)) == SLICES
    periods = np.asarray([scenario.control_period_s for scenario in many])
    assert periods.min() < 3 * PERIOD_S[0]
    assert periods.max() > PERIOD_S[1] / 3
    threads = {spec.upf_threads for scenario in many for spec in scenario.slice_set().slices}
    assert threads == {1.0, 2.0, 4.0}


def test_the_bottleneck_is_what_they_say(many: list[Scenario]) -> None:
    """By the declared loads alone; a thread that is too slow for its slice may leave the CPUs idle."""
    for scenario in many:
        node = scenario.hardware_spec()
        mbps, cpus = 0.0, 0.0
        for (load,) in scenario.loads.values():
            rate = load.mean_rate_mbps * load.flows
            rate *= load.on_s / (load.on_s + load.off_s) if load.kind == "onoff" else 1.0
            cost_us = node.upf_cost_us + node.rx_cost_us + node.tx_cost_us
            mbps += rate
            cpus += rate * cost_us * 1e-6 / (MBIT_PER_BYTE * load.packet_bytes)
        short = bottleneck(scenario)
        assert (mbps > 1.1 * node.uplink_mbps) == (short in {"uplink", "both"}), scenario.name
        assert cpus < 2.0 * node.logical_cpus
        if short in {"uplink", "edge"}:
            assert cpus < 0.8 * node.logical_cpus
        assert (scenario.edge is not None) == (short == "edge")


def test_promises_are_broken_without_control_and_kept_more_often_with(many: list[Scenario]) -> None:
    """Most of them ask for control: a suite that nothing helps, or that needs no help, judges nobody."""
    config, better, broken = EvaluationConfig(seeds=2), 0, 0
    for scenario in many[:8]:
        slices, node = scenario.slice_set(), scenario.hardware_spec()
        result = evaluate_scenario(scenario, [no_control(), make("greedy", slices, node)], config, ["greedy"])
        free_s, greedy_s = (result.agent(n).scores["sla_violation_s"].mean() for n in ("no-control", "greedy"))
        broken += free_s > 0.02 * scenario.duration_s
        better += greedy_s < 0.9 * free_s
    assert broken >= 6
    assert better >= 4


def test_ratios_and_shares_are_over_scenarios(many: list[Scenario]) -> None:
    results = []
    for scenario in many[:3]:
        slices, node = scenario.slice_set(), scenario.hardware_spec()
        agents = [no_control(), make("static-weights-9", slices, node), Greedy(), QueueGreedy()]
        results.append(evaluate_scenario(scenario, agents, EvaluationConfig(seeds=2), ["greedy"]))
    rule = against(results, "greedy", "rule")
    assert rule is not None
    for index, result in enumerate(results):
        mine, theirs = (result.agent(name) for name in ("greedy", "queue-greedy"))
        for axis, key, floor in (
            ("broken", "sla_violation_s", FLOOR_SHARE),
            ("cpu", "cpu_wasted_core_s", CPU_FLOOR),
        ):
            ratio = max(mine.mean(key), floor * result.duration_s) / max(theirs.mean(key), floor * result.duration_s)
            assert getattr(rule.overs[index], axis) == pytest.approx(ratio)
    assert sum(rule.share(relation) for relation in RELATIONS) == pytest.approx(1.0)
    worst = rule.values("broken").argmax()
    assert rule.worst("broken") == (results[worst].scenario, rule.values("broken")[worst])
    assert rule.worst("best_effort")[1] == rule.values("best_effort").min()
    assert [row.agent for row in compared(results, "rule")] == ["greedy"]
    assert [row.agent for row in compared(results, "best_fixed")] == ["greedy", "queue-greedy"]

    # A setting that is the same as another one on some nodes plays there under the other's name.
    few = [*results[:2], replace(results[2], agents=results[2].agents[:1] + results[2].agents[2:])]
    assert set(summary(few)) == {"no-control", "greedy", "queue-greedy"}
    figures = summary(results)["greedy"]
    over_rule, over_fixed = figures["over_rule"], figures["over_best_fixed"]
    assert over_rule["broken"]["median"] == np.median(rule.values("broken"))
    losses = [
        [max(result.agent(name).mean("others_loss_pct"), LEAST_OTHERS_LOSS_PCT) for name in ("greedy", "queue-greedy")]
        for result in results
    ]
    assert over_rule["others_loss"]["median"] == pytest.approx(np.median([a / b for a, b in losses]))
    assert over_fixed["wins"] == sum(result.over("greedy", "best_fixed").broken < 1 for result in results)  # type: ignore[union-attr]
    without = [replace(result, agents=result.agents[2:3]) for result in results]
    assert summary(without)["greedy"] == {"over_best_fixed": None, "over_rule": None}


AGENTS = ("--agents", "no-control,greedy,queue-greedy,pi")
BUNDLE = Path(__file__).parents[2] / "data" / "starves-priority"


def judged(folder: Path, *arguments: str) -> str:
    suite = ("evaluate", "--suite", "drawn", "--scenarios", "2", "--seeds", "1", "--no-mlflow", *AGENTS)
    result = CliRunner().invoke(app, [*suite, "--results", str(folder), *arguments])
    assert result.exception is None, result.output
    return result.stdout


def test_a_suite_leads_with_the_rule_and_the_best_fixed_setting(tmp_path: Path) -> None:
    outcome = json.loads(judged(tmp_path, "--json"))
    assert (outcome["suite"], outcome["seed"], outcome["over_training_seeds"]) == ("drawn", 0, [])
    assert set(outcome["summary"]) == {"no-control", "greedy", "queue-greedy", "pi"}
    printed = judged(tmp_path)
    assert max(len(line) for line in printed.splitlines() if str(tmp_path) not in line) <= 80
    assert "…" not in printed
    first, second = (printed.index(f"Against {rival}, 2") for rival in ("queue-greedy", "the best fixed setting"))
    assert first < second
    # The judged first, then the other rules; the rule is not compared with itself.
    rows = [line.split()[0] for line in printed.splitlines() if line.startswith(("greedy ", "queue-greedy ", "pi "))]
    assert rows == ["greedy", "pi", "greedy", "greedy", "queue-greedy", "pi", "greedy"]
    assert printed.count("greedy at worst against") == 2


def test_bundles_of_one_training_are_reported_together(tmp_path: Path) -> None:
    """Of four bundles three differ in their seed alone; the fourth has learned at another rate."""
    shipped, bundles = PolicyBundle.load(BUNDLE), []
    for number in range(4):
        config = shipped.training.config | {"seed": number} | ({"learning_rate": 0.5} if number == 3 else {})
        record = replace(shipped.training, seed=number, config=config)
        replace(shipped, training=record).save(tmp_path / str(number))
        bundles += ["--bundle", str(tmp_path / str(number))]
    outcome = json.loads(judged(tmp_path / "results", "--json", *bundles))
    rivals = {item["rival"]: item for item in outcome["over_training_seeds"]}
    assert list(rivals) == ["rule", "best_fixed"]
    for rival, item in rivals.items():
        assert item["agents"] == ["0", "1", "2"], "named after their folders"
        alone = [outcome["summary"][name][f"over_{rival}"] for name in item["agents"]]
        assert item["dominates"] == [figures["dominates"] for figures in alone]
        for axis in ("best_effort", "cpu_wasted"):
            assert item[axis]["medians"] == [figures[axis]["median"] for figures in alone]
        # The same policy three times: seeds add nothing to what scenarios scatter.
        broken = item["broken"]
        assert broken["ci95"][0] <= broken["median"] == pytest.approx(broken["medians"][0])
    few = json.loads(judged(tmp_path / "results", "--json", *bundles[2:]))
    assert few["over_training_seeds"] == []
    assert "3 training seeds together, against queue-greedy" in judged(tmp_path / "results", *bundles)


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (("--suite", "drawm"), "suite = 'drawm': expected drawn"),
        (("--scenarios", "3"), "scenarios = 3: needs --suite drawn"),
        (
            ("--suite", "drawn", "--scenario", "andrade-ramp"),
            "scenario = 'andrade-ramp': cannot be combined with --suite",
        ),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, arguments: tuple[str, ...], reported: str) -> None:
    result: Any = CliRunner().invoke(app, ["evaluate", *arguments, "--results", str(tmp_path)])
    assert isinstance(result.exception, ConfigError)
    assert reported in str(result.exception)
    assert not list(tmp_path.iterdir())
