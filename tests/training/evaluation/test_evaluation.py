import dataclasses
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml

from slicepilot.agents.heuristics.fixed import FixedAgent, no_control, published, static_weights
from slicepilot.agents.heuristics.registry import make
from slicepilot.cli.evaluation.evaluate import BEST_FIXED, LEGEND, ONLY_FIXED, footer, print_result
from slicepilot.configs import ConfigError, locate
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.evaluation.comparison import RULE, ScenarioResult
from slicepilot.training.evaluation.config import EvaluationConfig
from slicepilot.training.evaluation.judge import evaluate_scenario, role_of
from slicepilot.training.evaluation.report import render
from slicepilot.training.evaluation.results import (
    Evaluation,
    Provenance,
    hardware_fits,
    read,
    save,
)
from slicepilot.training.evaluation.rollouts import SERIES, Rollout, only_active, simulate_rollout
from slicepilot.training.evaluation.scores import (
    best_effort_loss_pct,
    best_effort_mbit,
    cpu_wasted_core_s,
    delay_p99_us,
    score,
)
from slicepilot.training.evaluation.summary import sentences
from slicepilot.training.evaluation.tracking import log_evaluation
from slicepilot.training.runs.labels import RunLabels
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
        make(RULE, slices),
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
    assert not np.array_equal(
        free.row("offered_mbps"), simulate_rollout(no_control(), ramp, LANES, SEED + 1).row("offered_mbps")
    )


def test_bursts_come_at_the_same_time_for_every_agent_and_reference() -> None:
    scenario = replace(Scenario.from_yaml("bursty-neighbours"), duration_s=60)
    slices = scenario.slice_set()
    full, limited = (
        simulate_rollout(a, scenario, LANES, SEED).row("offered_mbps") for a in (no_control(), published(8, slices))
    )
    np.testing.assert_array_equal(full, limited)
    alone = simulate_rollout(no_control(), only_active(scenario, ["slice1"]), LANES, SEED).row("offered_mbps")
    np.testing.assert_array_equal(full[:, 0], alone[:, 0])
    assert np.ptp(full[:, 1], axis=1).max() > 50, "lanes should differ in their bursts"
    assert not alone[:, 1:].any()


def test_recording_keeps_what_happened(ramp: Scenario) -> None:
    slices = ramp.slice_set()
    recording = simulate_rollout(published(8, slices), ramp, LANES, SEED)
    assert recording.series.shape == (8, 120, 5, LANES)
    assert recording.series.dtype == np.float32
    assert (recording.row("cpu_limit_mcpu")[:, 0] == 1000).all()
    assert (recording.row("cpu_limit_mcpu")[:, 1:] == 250).all()
    assert np.isinf(recording.row("egress_mbps")).all()
    assert recording.cpu_held == pytest.approx(2.0)
    assert 200 < recording.cpu_use_mcpu.mean() <= 2000
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
    weight = ramp.slice_set().column("weight")[:, 0]
    assert figures["sla_violation_s"][0] == pytest.approx((weight[0] * 7 + weight[1] * 14) / weight.sum())


def by_hand(period_s: float, offered_mbps: float = 0.0, share: float = 1.0) -> Rollout:
    """Three periods of two slices that are promised 10 and 20 Mbit/s; the second is absent in the second period."""
    slices = Scenario.from_yaml("andrade-ramp").slice_set()
    specs = [replace(s, sla=replace(s.sla, committed_mbps=c)) for s, c in zip(slices.slices, (10, 20), strict=False)]
    series = np.zeros((len(SERIES), 3, 2, 1), np.float32)
    series[SERIES.index("carried_mbps"), :, :, 0] = share * np.asarray([[30, 50], [0, 0], [12, 5]])
    series[SERIES.index("offered_mbps")] = offered_mbps
    nothing = np.zeros((3, 1), np.float32)
    return Rollout(
        agent="by hand",
        slices=replace(slices, slices=tuple(specs)),
        weight=np.ones((2, 1), np.float32),
        committed_mbps=np.asarray([[10.0], [20.0]], np.float32),
        series=series,
        valid=np.asarray([[True, True], [True, False], [True, True]])[:, :, None],
        violated=np.zeros((3, 2, 1), np.bool_),
        reward=nothing,
        cpu_held=np.asarray([[1.0], [2.0], [0.5]], np.float32),
        cpu_use_mcpu=np.asarray([[400.0], [3000.0], [500.0]], np.float32),
        churn=nothing,
        time_s=period_s * np.arange(1.0, 4.0),
        period_s=period_s,
        wall_s=0.0,
    )


def test_best_effort_is_what_exceeds_the_promise_over_two_seconds() -> None:
    """Of 1 s, two periods are a block, and the last a shorter block; periods of 4 s are blocks of their own."""
    assert best_effort_mbit(by_hand(1.0)).tolist() == [(30 - 20) + (12 - 10) + (50 - 20)]
    assert best_effort_mbit(by_hand(4.0)).tolist() == [4 * ((30 - 10) + (12 - 10) + (50 - 20))]


def test_its_loss_is_a_share_of_no_controls_or_of_what_is_offered() -> None:
    """42 Mbit without control; with 0.8 of the rates (24 - 20) + (40 - 20) = 24."""
    free, mine = by_hand(1.0), by_hand(1.0, share=0.8)
    assert best_effort_loss_pct(free, free).tolist() == [0.0]
    assert best_effort_loss_pct(mine, free)[0] == pytest.approx(100 * (42 - 24) / 42)
    # 1% of 6 x 2000 Mbit is more than 42.
    assert best_effort_loss_pct(mine, by_hand(1.0, offered_mbps=2000))[0] == pytest.approx(100 * (42 - 24) / 120)


def test_wasted_is_what_is_held_and_not_used() -> None:
    assert cpu_wasted_core_s(by_hand(1.0))[0] == pytest.approx(0.6)
    assert cpu_wasted_core_s(by_hand(4.0))[0] == pytest.approx(2.4)


# -- who is better ---------------------------------------------------------------------------------------------------


def test_roles(ramp: Scenario) -> None:
    slices = ramp.slice_set()
    assert role_of(published(4, slices)) == "reference"
    assert role_of(published(5, slices)) == "fixed"
    assert role_of(FixedAgent("mine")) == "fixed"
    assert role_of(make("captain", slices)) == "adaptive"
    assert role_of(make("clairvoyant", slices)) == "clairvoyant"


def test_agents_beside_the_rule_and_the_best_fixed_setting(judged: ScenarioResult) -> None:
    assert {"experiment-1", "experiment-2"}.isdisjoint(judged.figures), "references are not judged"
    mine, rule = (judged.agent(name) for name in ("reactive-sla", RULE))
    over = judged.over("reactive-sla", "rule")
    assert over is not None
    assert over.broken == pytest.approx(mine.mean("sla_violation_s") / rule.mean("sla_violation_s"))
    assert over.best_effort == pytest.approx(rule.mean("best_effort_loss_pct") - mine.mean("best_effort_loss_pct"))
    assert over.cpu == pytest.approx(mine.mean("cpu_wasted_core_s") / rule.mean("cpu_wasted_core_s"))
    fixed = [a for a in judged.rivals if a.role == "fixed"]
    assert judged.best_fixed in {a.name for a in fixed}
    least = min(a.mean("sla_violation_s") for a in fixed)
    assert judged.agent(str(judged.best_fixed)).mean("sla_violation_s") <= 1.02 * least
    # Experiment 5 is no control: the same run.
    assert judged.figures["experiment-5"].over(judged.figures["no-control"]).relation == "equal"
    alone = replace(judged, agents=(mine,))
    assert (alone.over("reactive-sla", "rule"), alone.over("reactive-sla", "best_fixed")) == (None, None)


def test_the_table_and_its_legend_fit_80_columns(judged: ScenarioResult, capsys: pytest.CaptureFixture[str]) -> None:
    print_result(judged)
    printed = capsys.readouterr().out
    assert "wasted" in printed
    assert " vs rule" in printed
    assert " its broken seconds" in printed
    assert "…" not in printed
    lines = "\n".join([printed, *footer([judged]), ONLY_FIXED]).splitlines()
    assert max(map(len, lines)) <= 80


def test_the_footer_warns_of_few_seeds_and_of_a_single_fixed_setting(judged: ScenarioResult) -> None:
    assert footer([judged]) == [LEGEND, BEST_FIXED, "4 seeds: too few to tell agents apart"]
    assert footer([judged, replace(judged, seeds=1)])[-1] == "1 seed: too few to tell agents apart"
    alone = tuple(a for a in judged.agents if a.role != "fixed" or a.name == "no-control")
    single = replace(judged, seeds=5, agents=alone)
    assert footer([single]) == [LEGEND, ONLY_FIXED]
    assert "no-control, the only fixed setting here" in sentences(single, "reactive-sla")[1]


def test_intervals_end_where_figures_do(judged: ScenarioResult) -> None:
    """Two runs that differ much have an interval of Student's t that is longer than a run."""
    name = judged.subjects[0]
    wide = {"sla_violation_s": [0.1, 9.0], "others_loss_pct": [-300.0, 99.0], "churn_pct": [0.5, 80.0]}
    agents = [
        replace(a, scores={**a.scores, **{key: np.asarray(values) for key, values in wide.items()}})
        for a in judged.agents
    ]
    result = replace(judged, agents=tuple(agents))
    seconds, loss, churn = (result.summary(name, key) for key in wide)
    assert (seconds.value, seconds.high) == (pytest.approx(4.55), judged.duration_s)
    assert 0 <= seconds.low < seconds.value
    assert (churn.high, loss.high) == (100.0, 100.0)
    assert loss.low < -300


def test_references_have_fewer_slices(judged: ScenarioResult) -> None:
    item, two = judged.agent("experiment-1"), judged.agent("experiment-2")
    assert item.scores["slice1_loss_pct"] == pytest.approx(0, abs=1e-6)
    assert item.scores["others_loss_pct"] == pytest.approx(100)
    assert (two.scores["others_loss_pct"] < 0).all(), "the one other slice has more than with four"


def test_traces_are_kept_for_the_featured_only(judged: ScenarioResult) -> None:
    assert judged.featured[0] == "reactive-sla"
    assert {RULE, judged.best_fixed, "no-control"} <= set(judged.featured)
    kept = {a.name for a in judged.agents if a.trace is not None}
    assert kept == set(judged.featured)


def test_json_has_exactly_the_documented_keys(judged: ScenarioResult) -> None:
    document = json.loads(json.dumps(judged.to_json(), allow_nan=False))
    assert list(document) == ["scenario", "seeds", "best_fixed", "agents"]
    assert document["seeds"] == LANES
    for agent in document["agents"]:
        assert list(agent) == [
            "name", "slice1_loss_pct", "others_loss_pct", "slice1_delay_p99_us", "sla_violation_s", "cpu_held_core_s",
            "cpu_wasted_core_s", "best_effort_loss_pct", "episode_reward", "return_iqm", "ci95", "over_rule",
            "over_best_fixed",
        ]  # fmt: skip
        assert (agent["over_rule"] is None) == (agent["name"] in {"experiment-1", "experiment-2"})
        low, high = agent["ci95"]
        assert low <= agent["return_iqm"] <= high


# -- files -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def evaluation(judged: ScenarioResult) -> Evaluation:
    return Evaluation((judged,), Provenance.here("slicepilot evaluate"), hardware_fits([judged]))


def test_results_survive_the_disk(evaluation: Evaluation, tmp_path: Path) -> None:
    save(evaluation, tmp_path / "new" / "folder")
    again = read(tmp_path / "new" / "folder")
    assert again.scenarios[0].to_json() == evaluation.scenarios[0].to_json()
    assert again.scenarios[0].figures == evaluation.scenarios[0].figures
    assert again.provenance == evaluation.provenance
    document = json.loads((tmp_path / "new" / "folder" / "results.json").read_text())
    assert document["scenarios"][0]["loss_window_s"] == [90, 120]
    assert sorted(p.name for p in (tmp_path / "new" / "folder").iterdir()) == ["arrays.npz", "results.json"]


def test_damaged_results_are_refused_in_one_line(evaluation: Evaluation, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="slicepilot evaluate"):
        read(tmp_path / "nowhere")
    save(evaluation, tmp_path)
    (tmp_path / "arrays.npz").write_bytes(b"other")
    with pytest.raises(ConfigError, match="does not belong"):
        read(tmp_path)
    (tmp_path / "results.json").write_text('{"format": 99}')
    with pytest.raises(ConfigError, match="format 3"):
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
    if "andrade-ramp" in config.scenarios:
        assert config.loss_window_s["andrade-ramp"] == (900, 1200), "the last five minutes, as in the study"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of MLflow, when it opens its database
def test_a_comparison_is_a_run_in_mlflow_with_a_run_for_each_candidate(
    evaluation: Evaluation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    save(evaluation, tmp_path / "results")
    result = evaluation.scenarios[0]
    known = {"reactive-sla": {"bundle": "mine", "digest": "0" * 64, "run_id": None, "training": {"seed": 3}}}
    evaluation = dataclasses.replace(evaluation, candidates=known)
    scenarios = [Scenario.from_yaml(played.scenario) for played in evaluation.scenarios]
    config = EvaluationConfig(seeds=result.seeds, seed=result.seed)
    run_id = log_evaluation(evaluation, scenarios, config, RunLabels.of(None, ["team=edge"]), tmp_path / "results")
    import mlflow

    client = mlflow.MlflowClient("sqlite:///mlflow.db")
    run = client.get_run(run_id)
    assert (run.info.status, run.data.params["seeds"]) == ("FINISHED", str(result.seeds))
    assert run.inputs is not None
    assert [item.dataset.name for item in run.inputs.dataset_inputs] == [played.name for played in scenarios]
    files = {entry.path for folder in ("", "pictures") for entry in client.list_artifacts(run_id, folder)}
    assert {"report.html", "results.json", "arrays.npz", f"pictures/{result.scenario} delay.svg"} <= files
    picture = client.download_artifacts(run_id, f"pictures/{result.scenario} axes.svg", str(tmp_path))
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")

    under = client.search_runs([run.info.experiment_id], f"tags.`mlflow.parentRunId` = '{run_id}'")
    candidates = {each.info.run_name: each for each in under}
    assert set(candidates) == {agent.name for each in evaluation.scenarios for agent in each.rivals}
    assert {each.data.tags["role"] for each in under} >= {"fixed", "adaptive"}
    assert {each.data.tags["team"] for each in under} == {"edge"}
    judged = candidates["reactive-sla"].data
    assert judged.params["training.seed"] == "3"
    seconds = result.summary("reactive-sla", "sla_violation_s").value
    assert judged.metrics[f"{result.scenario}/sla_violation_s"] == pytest.approx(seconds)
    over = result.over("reactive-sla", "rule")
    assert over is not None
    assert judged.metrics[f"{result.scenario}/over_rule/broken"] == pytest.approx(over.broken)


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
    (["--seeds", "many"], "seeds"),
    (["--period-ms", "1"], "period-ms"),
    (["--bundle", "nowhere"], "nowhere"),
    (["--config", "strict"], "default"),
    ({"loads": {"slice1": [{"kind": "cbr", "rate_mbps": -1}]}}, "rate_mbps = -1"),
    ({"loads": {"slice1": [{"kind": "cbr", "rate_mbps": float("nan")}]}}, "rate_mbps"),
    ({"loads": {"slice9": LOADS["slice1"]}}, "slice9"),
    ({"slices": "twins.yaml", "loads": LOADS}, "duplicate s_nssai 1-000001"),
    ({"slices": "none.yaml", "loads": LOADS}, "slices"),
    ({"slices": "absent.yaml", "loads": LOADS}, "does not exist"),
)


@pytest.fixture(scope="module")
def slice_sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with slice sets that are none, and a scenario that is one."""
    folder = tmp_path_factory.mktemp("bad")
    twin = {"s_nssai": {"sst": 1, "sd": "000001"}, "sla": {"committed_mbps": 1, "delay_bound_ms": 1}}
    (folder / "twins.yaml").write_text(yaml.safe_dump({"slices": [{"name": n, **twin} for n in ("a", "b")]}))
    (folder / "none.yaml").write_text("slices: []\n")
    small_scenario(folder)
    return folder


@pytest.mark.parametrize(("bad", "said"), BAD)
def test_bad_input_is_one_line_and_exit_code_2(bad: list[str] | dict[str, Any], said: str, slice_sets: Path) -> None:
    arguments = bad if isinstance(bad, list) else ["--scenario", small_scenario(slice_sets, "bad.yaml", **bad).name]
    done = slicepilot("evaluate", *arguments, "--no-mlflow", cwd=slice_sets)
    assert done.returncode == 2, done.stderr
    [line] = done.stderr.strip().splitlines()
    assert said in line
    assert not (slice_sets / "reports").exists()


def test_a_report_of_nothing_is_one_line(tmp_path: Path) -> None:
    done = slicepilot("report", "nowhere", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "nowhere" in done.stderr
