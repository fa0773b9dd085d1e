import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from slicepilot.agents.heuristics.fixed import no_control, published, static_weights
from slicepilot.agents.heuristics.registry import make
from slicepilot.configs import ConfigError, locate
from slicepilot.data.intervals import Interval
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.evaluation.comparison import Comparison, ScenarioResult, clairvoyant_gap_pct
from slicepilot.training.evaluation.config import EvaluationConfig
from slicepilot.training.evaluation.judge import evaluate_scenario
from slicepilot.training.evaluation.report import render
from slicepilot.training.evaluation.results import (
    Evaluation,
    Provenance,
    hardware_fits,
    log_evaluation,
    read,
    save,
)
from slicepilot.training.evaluation.rollouts import only_active, simulate_rollout
from slicepilot.training.evaluation.scores import delay_p99_us, score, violation_s
from tests.command import slicepilot

LANES, SEED = 4, 7


@pytest.fixture(scope="module")
def ramp() -> Scenario:
    """The published ramp, ten times as fast."""
    scenario = Scenario.from_yaml("andrade-ramp")
    quicker = {
        name: tuple(replace(load, ramp=replace(load.ramp, every_s=24)) if load.ramp else load for load in loads)
        for name, loads in scenario.loads.items()
    }
    return replace(scenario, duration_s=120, loads=quicker)


@pytest.fixture(scope="module")
def judged(ramp: Scenario) -> ScenarioResult:
    slices = ramp.slice_set()
    agents = [
        make("reactive-sla", slices),
        no_control(),
        *(published(n, slices) for n in (1, 2, 5, 7, 8, 13)),
        static_weights(9, slices, 4),
    ]
    config = EvaluationConfig(("andrade-ramp",), seeds=LANES, seed=SEED, loss_window_s={"andrade-ramp": (90, 120)})
    return evaluate_scenario(ramp, agents, config, ["reactive-sla"])


# -- playing -------------------------------------------------------------------------------------------------------


def test_agents_meet_the_same_arrivals_and_noise(ramp: Scenario) -> None:
    slices = ramp.slice_set()
    free, limited = (simulate_rollout(agent, ramp, LANES, SEED) for agent in (no_control(), published(8, slices)))
    np.testing.assert_array_equal(free.row("offered_mbps"), limited.row("offered_mbps"))
    assert not np.array_equal(free.row("carried_mbps"), limited.row("carried_mbps"))
    np.testing.assert_array_equal(free.series, simulate_rollout(no_control(), ramp, LANES, SEED).series)
    bursts = replace(Scenario.from_yaml("bursty-neighbours"), duration_s=60)
    whole, reference, other = (
        simulate_rollout(no_control(), scenario, LANES, seed).row("offered_mbps")
        for scenario, seed in ((bursts, SEED), (only_active(bursts, ["slice1"]), SEED), (bursts, SEED + 1))
    )
    np.testing.assert_array_equal(whole[:, 0], reference[:, 0])
    assert np.ptp(whole[:, 1], axis=1).max() > 50, "lanes differ in their bursts"
    assert not reference[:, 1:].any()
    assert not np.array_equal(whole, other)


def test_recording_keeps_what_happened(ramp: Scenario) -> None:
    slices = ramp.slice_set()
    recording = simulate_rollout(published(8, slices), ramp, LANES, SEED)
    assert recording.series.shape == (8, 120, 5, LANES)
    assert recording.series.dtype == np.float32
    assert (recording.row("cpu_limit_mcpu")[:, 0] == 1000).all()
    assert (recording.row("cpu_limit_mcpu")[:, 1:] == 250).all()
    assert np.isinf(recording.row("egress_mbps")).all()
    assert recording.cpu_held == pytest.approx(2.0)
    assert recording.churn[1:] == pytest.approx(0)
    assert recording.churn[0, 0] > 0, "setting the limits is a move"


# -- figures of merit --------------------------------------------------------------------------------------------------


def test_losses_are_what_the_references_say(ramp: Scenario) -> None:
    slices = ramp.slice_set()
    alone = simulate_rollout(no_control(), only_active(ramp, ["slice1"]), LANES, SEED)
    uncontrolled = simulate_rollout(no_control(), ramp, LANES, SEED)
    window = (90.0, 120.0)
    same = score(uncontrolled, alone, uncontrolled, window)
    assert same["others_loss_pct"] == pytest.approx(0)
    carried = [r.row("carried_mbps")[-30:, 0].sum(axis=0) for r in (uncontrolled, alone)]
    assert same["slice1_loss_pct"] == pytest.approx(100 * (1 - carried[0] / carried[1]), abs=1e-3)
    assert (same["slice1_loss_whole_pct"] < same["slice1_loss_pct"]).all(), "the ramp hurts most at its end"
    squeezed = score(simulate_rollout(published(8, slices), ramp, LANES, SEED), alone, uncontrolled, window)
    assert (squeezed["others_loss_pct"] > 20).all()
    assert squeezed["cpu_held_core_s"] == pytest.approx(2.0 * 120)
    assert (same["cpu_held_core_s"] > squeezed["cpu_held_core_s"]).all()


def test_delay_and_violations_by_hand(ramp: Scenario) -> None:
    recording = simulate_rollout(no_control(), ramp, 1, SEED)
    recording.row("delay_p99_us")[:] = 1000.0
    recording.row("carried_mbps")[:] = 1.0
    recording.row("delay_p99_us")[0] = 9000.0  # 1 of 120 periods, but
    recording.row("carried_mbps")[0] = 0.5  # with half the volume: under 1%
    assert delay_p99_us(recording)[:, 0].tolist() == [1000.0] * 5
    recording.row("carried_mbps")[0] = 10.0
    assert delay_p99_us(recording)[:, 0].tolist() == [9000.0] * 5
    recording.violated[:] = False
    recording.violated[:7, 0] = True
    recording.violated[:14, 1] = True
    figures = score(recording, recording, recording, None)
    assert violation_s(recording)[:2, 0].tolist() == [7.0, 14.0]
    weight = ramp.slice_set().column("weight")[:, 0]
    assert figures["sla_violation_s"][0] == pytest.approx((weight[0] * 7 + weight[1] * 14) / weight.sum())


def test_clairvoyant_gap_is_relative_to_that_players_return() -> None:
    assert clairvoyant_gap_pct(np.full(8, 1.2), np.full(8, 1.5)) == pytest.approx(20)
    assert clairvoyant_gap_pct(np.full(8, 1.65), np.full(8, 1.5)) == pytest.approx(-10)


# -- who is better ---------------------------------------------------------------------------------------------------


def compared(priority: tuple[float, float, float], others: tuple[float, float, float]) -> Comparison:
    return Comparison("rival", Interval(*priority), Interval(*others), tie_pct=0.1)


TIE = (0.0, -0.2, 0.2)
BETTER, WORSE = (-3.0, -4.0, -2.0), (3.0, 2.0, 4.0)


@pytest.mark.parametrize(
    ("priority", "others", "dominates", "dominated"),
    [
        (BETTER, BETTER, True, False),
        (BETTER, TIE, True, False),
        (TIE, BETTER, True, False),
        (TIE, TIE, False, False),
        (BETTER, WORSE, False, False),
        (WORSE, BETTER, False, False),
        (TIE, WORSE, False, True),
        (WORSE, WORSE, False, True),
        # Certain but too small to matter, and large but not certain: both are ties.
        ((0.05, 0.04, 0.06), BETTER, True, False),
        ((5.0, -1.0, 11.0), BETTER, True, False),
        ((-0.05, -0.06, -0.04), TIE, False, False),
    ],
)
def test_domination(
    priority: tuple[float, float, float], others: tuple[float, float, float], dominates: bool, dominated: bool
) -> None:
    comparison = compared(priority, others)
    assert (comparison.dominates, comparison.dominated) == (dominates, dominated)
    assert bool(comparison.why_not) is not dominates


def test_verdict_on_real_runs(judged: ScenarioResult) -> None:
    verdict = judged.verdict("reactive-sla")
    assert {"experiment-1", "experiment-2"}.isdisjoint({c.rival for c in verdict.comparisons}), (
        "references are no rivals"
    )
    assert set(verdict.fixed) == {
        "no-control", "experiment-5", "experiment-7", "experiment-8", "experiment-13", "static-weights-9",
    }  # fmt: skip
    fewest = min(verdict.fixed, key=lambda name: judged.agent(name).scores["sla_violation_s"].mean())
    assert verdict.best_fixed is not None
    assert judged.agent(verdict.best_fixed).scores["sla_violation_s"].mean() == pytest.approx(
        judged.agent(fewest).scores["sla_violation_s"].mean()
    )
    mine, best = (judged.agent(n).scores["sla_violation_s"] for n in ("reactive-sla", verdict.best_fixed))
    assert verdict.violation_ratio is not None
    assert verdict.violation_ratio.value == pytest.approx(mine.mean() / best.mean())
    assert set(verdict.dominated) | {c.rival for c in verdict.not_dominated} == set(verdict.fixed)
    assert "experiment-13" in verdict.dominated, "its shaping makes the others lose nearly everything"
    # Experiment 5 is no control: the same run, so neither dominates the other.
    five = judged.verdict("experiment-5")
    [against] = [c for c in five.comparisons if c.rival == "no-control"]
    assert against.outcomes == ("tie", "tie")


def test_references_have_fewer_slices(judged: ScenarioResult) -> None:
    item, two = judged.agent("experiment-1"), judged.agent("experiment-2")
    assert item.scores["slice1_loss_pct"] == pytest.approx(0, abs=1e-6)
    assert item.scores["others_loss_pct"] == pytest.approx(100)
    assert (two.scores["others_loss_pct"] < 0).all(), "the one other slice has more than with four"


# -- files -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def evaluation(judged: ScenarioResult) -> Evaluation:
    return Evaluation((judged,), Provenance.here("slicepilot evaluate"), hardware_fits([judged]))


def test_results_survive_the_disk(evaluation: Evaluation, tmp_path: Path) -> None:
    save(evaluation, tmp_path / "new" / "folder")
    again = read(tmp_path / "new" / "folder")
    assert again.scenarios[0].to_json() == evaluation.scenarios[0].to_json()
    assert again.scenarios[0].verdict("reactive-sla") == evaluation.scenarios[0].verdict("reactive-sla")
    assert again.provenance == evaluation.provenance
    document = json.loads((tmp_path / "new" / "folder" / "results.json").read_text())
    assert document["scenarios"][0]["loss_window_s"] == [90, 120]
    assert sorted(p.name for p in (tmp_path / "new" / "folder").iterdir()) == ["arrays.npz", "results.json"]


def test_damaged_results_are_refused_in_one_line(evaluation: Evaluation, tmp_path: Path) -> None:
    save(evaluation, tmp_path)
    (tmp_path / "arrays.npz").write_bytes(b"other")
    with pytest.raises(ConfigError, match="does not belong"):
        read(tmp_path)
    (tmp_path / "results.json").write_text('{"format": 99}')
    with pytest.raises(ConfigError, match="format 2"):
        read(tmp_path)
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(ConfigError, match="not valid JSON") as caught:
        read(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["default", "demo"])
def test_shipped_configurations_name_what_exists(name: str) -> None:
    config = EvaluationConfig.from_yaml(name)
    for scenario in config.scenarios:
        assert Scenario.from_yaml(scenario).name == scenario
    assert set(config.loss_window_s) <= set(config.scenarios)
    assert config.loss_window_s["andrade-ramp"] == (900, 1200), "the last five minutes, as in the study"


@pytest.mark.slow
def test_figures_and_report_go_to_mlflow(
    evaluation: Evaluation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "report.html").write_text("<!DOCTYPE html>")
    run_id = log_evaluation(evaluation, tmp_path / "report.html")
    import mlflow

    client = mlflow.MlflowClient("sqlite:///mlflow.db")
    run = client.get_run(run_id)
    result = evaluation.scenarios[0]
    prefix = f"eval/{result.scenario}/reactive-sla"
    seconds = result.summary("reactive-sla", "sla_violation_s").value
    assert run.data.metrics[f"{prefix}/sla_violation_s"] == pytest.approx(seconds)
    assert run.data.metrics[f"{prefix}/fixed_dominated"] == len(result.verdict("reactive-sla").dominated)
    assert run.info.status == "FINISHED"
    assert [entry.path for entry in client.list_artifacts(run_id, "evaluation")] == ["evaluation/report.html"]


# -- the command -----------------------------------------------------------------------------------------------------


def small_scenario(folder: Path, file: str = "small.yaml", **changes: Any) -> Path:
    raw = yaml.safe_load(locate("scenarios", "andrade-ramp").read_text())
    path = folder / file
    path.write_text(yaml.safe_dump({**raw, "name": "small", "duration_s": 30, **changes}))
    return path


def test_command_prints_saves_and_reports(tmp_path: Path) -> None:
    """The scenario lies elsewhere and names its hardware by a path relative to itself."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "node.yaml").write_text(locate("hardware", "andrade").read_text())
    scenario = small_scenario(elsewhere, hardware="node.yaml")
    options = ["--scenario", str(scenario), "--seeds", "3", "--agents", "no-control,reactive-sla,experiment-7"]
    options += ["--period-ms", "500", "--seed", "7"]
    call = ["evaluate", *options, "--no-mlflow", "--json", "--results", "out", "--report", "page.html"]
    result = slicepilot(*call, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    [only] = document["scenarios"]
    assert (only["scenario"], only["seeds"]) == ("small", 3)
    assert [a["name"] for a in only["agents"]] == ["no-control", "reactive-sla", "experiment-7"]
    assert set(document["summary"]) == {"no-control", "reactive-sla", "experiment-7"}
    assert {p.name for p in tmp_path.iterdir()} == {"elsewhere", "out", "page.html"}
    saved = read(tmp_path / "out")
    assert (saved.scenarios[0].period_s, saved.scenarios[0].seed) == (0.5, 7)
    assert (tmp_path / "page.html").read_text() == render(saved)


LOADS: dict[str, Any] = {"slice1": [{"kind": "cbr", "rate_mbps": 10}]}
BAD: tuple[tuple[list[str] | dict[str, Any], str], ...] = (
    (["--scenario", "andrade-rump"], "andrade-ramp"),
    (["--scenario", "missing.yaml"], "does not exist"),
    (["--scenario", "flash-crowd", "--scenario", "small.yaml", "--scenario", "./small.yaml"], "used twice"),
    (["--agents", "reactive"], "reactive-sla"),
    (["--agents", "nothing-*"], "matches no agent"),
    (["--seeds", "0"], "1 to 10000"),
    (["--period-ms", "1"], "period-ms"),
    (["--bundle", "nowhere"], "nowhere"),
    (["--config", "strict"], "default"),
    ({"loads": {"slice1": [{"kind": "cbr", "rate_mbps": -1}]}}, "rate_mbps = -1"),
    ({"loads": {"slice1": [{"kind": "cbr", "rate_mbps": float("nan")}]}}, "rate_mbps"),
    ({"loads": {"slice9": LOADS["slice1"]}}, "slice9"),
    ({"slices": "twins.yaml", "loads": LOADS}, "duplicate s_nssai 1-000001"),
    ({"slices": "none.yaml", "loads": LOADS}, "slices"),
    (["--suite", "drawm"], "suite = 'drawm': expected drawn"),
    (["--scenarios", "3"], "scenarios = 3: needs --suite drawn"),
    (["--suite", "drawn", "--scenario", "andrade-ramp"], "cannot be combined with --suite"),
    (["--address", "127.0.0.1:1"], "address = '127.0.0.1:1': needs --ray"),
    (["--ray", "-c", "testbed"], "ray: needs the backend simulator: a testbed runs on one machine"),
)


def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    twin = {"s_nssai": {"sst": 1, "sd": "000001"}, "sla": {"committed_mbps": 1, "delay_bound_ms": 1}}
    (tmp_path / "twins.yaml").write_text(yaml.safe_dump({"slices": [{"name": n, **twin} for n in ("a", "b")]}))
    (tmp_path / "none.yaml").write_text("slices: []\n")
    small_scenario(tmp_path)
    for number, (bad, expected) in enumerate(BAD):
        file = f"bad{number}.yaml"
        arguments = bad if isinstance(bad, list) else ["--scenario", small_scenario(tmp_path, file, **bad).name]
        result = slicepilot("evaluate", *arguments, "--no-mlflow", cwd=tmp_path)
        assert result.returncode == 2, (arguments, result.stderr)
        [line] = result.stderr.strip().splitlines()
        assert expected in line, arguments
    assert slicepilot("report", "nowhere", cwd=tmp_path).returncode == 2
    assert not (tmp_path / "reports").exists()
