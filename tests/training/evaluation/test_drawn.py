"""Drawn scenarios: the same from the same seed, of many kinds, with the bottleneck that they say; ratios summed up."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from slicepilot.agents.heuristics.fixed import no_control
from slicepilot.agents.heuristics.greedy import Greedy
from slicepilot.agents.heuristics.registry import make
from slicepilot.agents.learned.bundle import PolicyBundle
from slicepilot.cli.app import app
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.evaluation.config import EvaluationConfig
from slicepilot.training.evaluation.drawn import BOTTLENECKS, CPUS, MBIT_PER_BYTE, PERIOD_S, SLICES, draw_scenarios
from slicepilot.training.evaluation.judge import evaluate_scenario
from slicepilot.training.evaluation.suite import BEST_FIXED, FLOOR_SHARE, GREEDY, against_rivals, summary

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


def test_ratios_are_of_broken_seconds_with_a_floor(many: list[Scenario]) -> None:
    results = []
    for scenario in many[:3]:
        slices, node = scenario.slice_set(), scenario.hardware_spec()
        agents = [no_control(), make("static-weights-9", slices, node), Greedy(), make("captain", slices, node)]
        # All suites have the same agents.
        results.append(evaluate_scenario(scenario, agents, EvaluationConfig(seeds=2), ["greedy"]))
    fixed, captain = against_rivals(results, "greedy")
    assert (fixed.rival, captain.rival) == (BEST_FIXED, "captain")
    for index, result in enumerate(results):
        mine, others = (
            np.maximum([result.agent(name).scores["sla_violation_s"].mean()], FLOOR_SHARE * result.duration_s)[0]
            for name in ("greedy", "captain")
        )
        assert captain.ratios[index] == pytest.approx(mine / others)
        best = min(result.agent(name).scores["sla_violation_s"].mean() for name in ("no-control", "static-weights-9"))
        assert fixed.ratios[index] == pytest.approx(mine / max(best, FLOOR_SHARE * result.duration_s))
    assert [item.rival for item in against_rivals([replace(r, agents=r.agents[2:]) for r in results], "greedy")] == [
        "captain"
    ]
    # A setting that is the same as another on some nodes plays there under the other's name.
    reported = summary([*results[:2], replace(results[2], agents=results[2].agents[:1] + results[2].agents[2:])])
    assert {"greedy", "captain"} <= set(reported)
    assert len(reported) == len(results[0].rivals) - 1
    assert captain.worst[1] == captain.ratios.max()
    assert captain.typical.low <= captain.typical.value <= captain.typical.high


AGENTS = ("--agents", "no-control,greedy,proportional-share,pi")
BUNDLE = Path(__file__).parents[2] / "data" / "starves-priority"


def judged(folder: Path, *arguments: str) -> str:
    suite = ("evaluate", "--suite", "drawn", "--scenarios", "2", "--seeds", "1", "--no-mlflow", *AGENTS)
    result = CliRunner().invoke(app, [*suite, "--results", str(folder), *arguments])
    assert result.exception is None, result.output
    return result.stdout


def test_rules_are_reported_as_policies_are(tmp_path: Path) -> None:
    outcome = json.loads(judged(tmp_path, "--json"))
    reported = [(item["agent"], item["rival"]) for item in outcome["against"]]
    first = [("greedy", rival) for rival in (BEST_FIXED, "proportional-share", "pi")]
    assert reported == [
        *first,
        *((rule, rival) for rule in ("proportional-share", "pi") for rival in (BEST_FIXED, GREEDY)),
    ]
    assert outcome["over_training_seeds"] == []
    printed = judged(tmp_path)
    assert max(map(len, printed.splitlines())) <= 80
    assert "heuristics: broken seconds over those of greedy" in printed


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
    assert list(rivals) == [BEST_FIXED, "greedy", "proportional-share", "pi"]
    alone = {(item["agent"], item["rival"]): item for item in outcome["against"]}
    for rival, item in rivals.items():
        assert len(item["agents"]) == len(item["medians"]) == 3
        assert not any(name.endswith("/3") for name in item["agents"])
        assert item["medians"] == [alone[name, rival]["median_ratio"] for name in item["agents"]]
        # The same policy three times: seeds add nothing to what scenarios scatter.
        assert item["ci95"][0] <= item["median_ratio"] == pytest.approx(item["medians"][0])
    few = json.loads(judged(tmp_path / "results", "--json", *bundles[2:]))
    assert few["over_training_seeds"] == []
    assert "3 training seeds together, 2 scenarios" in judged(tmp_path / "results", *bundles)
