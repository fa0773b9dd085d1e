"""Sweeps as they are written down: which trials they stand for, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from slicepilot.configs import ConfigError, available
from slicepilot.training.online.config import TrainingConfig
from slicepilot.training.sweeps.config import SweepConfig, Trial, trials_of
from slicepilot.training.sweeps.files import add_report, new_sweep, outcome_of, read_reports, read_sweep, write_json

AXES: dict[str, Any] = {"seed": [0, 1]}


def sweep_of(**values: Any) -> SweepConfig:
    return SweepConfig.of({"training": "ppo-smoke", "axes": AXES} | values, "test")


def online(trial: Trial) -> TrainingConfig:
    assert isinstance(trial.config, TrainingConfig)
    return trial.config


def test_every_combination_is_a_trial() -> None:
    sweep = sweep_of(
        axes={"seed": [0, 1], "ppo.epochs": [1, 2], "ppo.clip_range": [0.1], "reward.sla": [1.0, 2.0]},
        metric="sla",
        cpus_per_trial=2,
    )
    trials = trials_of(sweep)
    assert [trial.name for trial in trials] == [f"{number:03d}" for number in range(8)]
    assert {(t.config.seed, online(t).ppo.epochs, t.weights.sla) for t in trials if t.weights} == {
        (seed, epochs, sla) for seed in (0, 1) for epochs in (1, 2) for sla in (1.0, 2.0)
    }
    assert {online(trial).ppo.clip_range for trial in trials} == {0.1}
    assert {trial.config.threads for trial in trials} == {2}
    assert trials[0].values == {"seed": 0, "ppo.epochs": 1, "reward.sla": 1.0}, "what all share is not reported"
    assert {t.weights.churn for t in trials if t.weights} == {0.05}, "other weights are those of the reward"


def test_samples_are_the_same_each_time_and_inside_their_ranges() -> None:
    axes = {
        "learning_rate": {"low": 1e-4, "high": 1e-2, "log": True},
        "num_envs": [32, 64],
        "ppo.epochs": {"low": 1, "high": 4},
    }
    sweep = sweep_of(axes=axes, samples=20, sample_seed=3)
    trials = trials_of(sweep)
    assert len(trials) == 20
    assert trials == trials_of(sweep)
    assert trials != trials_of(sweep_of(axes=axes, samples=20, sample_seed=4))
    rates = [online(trial).learning_rate for trial in trials]
    assert all(1e-4 <= rate <= 1e-2 for rate in rates)
    assert 4 <= sum(rate < 1e-3 for rate in rates) <= 16, "as many in each decade"
    assert {online(trial).ppo.epochs for trial in trials} == {1, 2, 3, 4}
    assert {online(trial).num_envs for trial in trials} == {32, 64}


REFUSED = {
    "field": ({"samplez": 3}, "samplez = 3: unknown field; did you mean samples?"),
    "no axes": ({"axes": {}}, "axes: none; expected at least one"),
    "empty axis": ({"axes": {"seed": []}}, "axes.seed"),
    "range without samples": (
        {"axes": {"learning_rate": {"low": 1e-4, "high": 1e-3}}},
        "axes.learning_rate is a range: it needs samples",
    ),
    "range upside down": (
        {"axes": {"learning_rate": {"low": 1.0, "high": 0.1}}, "samples": 2},
        "low = 1.0, high = 0.1: expected low < high",
    ),
    "logarithm": (
        {"axes": {"learning_rate": {"low": 0.0, "high": 0.1, "log": True}}, "samples": 2},
        "low = 0.0: expected a positive number with log",
    ),
    "metric": ({"metric": "rewards"}, "metric = 'rewards': did you mean reward?"),
    "both kinds": ({"offline": "iql"}, "expected exactly one of training and offline"),
    "a metric of the simulator offline": (
        {"training": None, "offline": "iql"},
        "metric = 'reward': expected estimate or eval_return",
    ),
    "an estimate without data": ({"metric": "estimate"}, "needs a dataset"),
    "Optuna without a number": ({"search": "optuna"}, "search = 'optuna': needs samples"),
    "a population that cannot change": ({"pbt": {}}, "pbt: no axis that can change on the way"),
    "a population by its end": (
        {"pbt": {}, "axes": {"gamma": [0.9, 0.95]}, "metric": "eval_return"},
        "is known at the end",
    ),
    "ASHA by the end": ({"metric": "eval_return", "asha": {"grace_pct": 30}}, "asha: expected null"),
    "metric that does not compare": (
        {"axes": {"reward.sla": [1.0, 2.0]}},
        "metric = 'reward' with the axis reward.sla: rewards of different weights do not compare; expected one of",
    ),
    "too many": ({"axes": {"seed": list(range(200)), "num_envs": list(range(200))}}, "40000 combinations"),
    "ASHA": ({"asha": {"grace_pct": 100}}, "asha.grace_pct = 100"),
    "CPUs": ({"cpus_per_trial": 0}, "cpus_per_trial = 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_sweeps_are_refused_in_one_line(case: str) -> None:
    values, said = REFUSED[case]
    with pytest.raises(ConfigError) as refused:
        sweep_of(**values)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


BAD_TRIALS = {
    "key": ({"ppo.clip": [0.1]}, "axes: unknown key 'ppo.clip'; did you mean ppo.clip_range?"),
    "part": ({"ppo": [1]}, "axes: unknown key 'ppo'"),
    "weight": ({"reward.slo": [1.0]}, "trial 000: reward: slo = 1.0: unknown field; did you mean sla?"),
    "value": ({"gamma": [0.5, 2.0]}, "trial 001: gamma = 2.0"),
    "mixture": ({"scenario": ["andrade-rampp"]}, "unknown name 'andrade-rampp'; did you mean andrade-ramp"),
    "reward": ({"reward": ["defaul"]}, "unknown name 'defaul'; did you mean default"),
}


@pytest.mark.parametrize("case", BAD_TRIALS)
def test_bad_trials_are_refused_before_any_is_run(case: str, tmp_path: Path) -> None:
    axes, said = BAD_TRIALS[case]
    with pytest.raises(ConfigError) as refused:
        new_sweep("bad", tmp_path / "sweep", sweep_of(axes=axes, metric="sla"))
    assert said in str(refused.value)
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize("name", available("sweeps"))
def test_shipped_sweeps_have_trials(name: str) -> None:
    assert len(trials_of(SweepConfig.from_yaml(name))) > 1


def test_a_folder_holds_the_sweep_as_it_was_begun(tmp_path: Path) -> None:
    sweep = new_sweep("mine", tmp_path / "sweep", sweep_of(axes={"reward.sla": [1.0, 2.0]}, metric="sla"))
    again = read_sweep(tmp_path / "sweep")
    assert [trial.config for trial in again.trials] == [trial.config for trial in sweep.trials]
    assert (again.name, again.config) == (sweep.name, sweep.config)
    weights = yaml.safe_load(Path(str(again.trials[1].config.reward)).read_text())
    assert weights["sla"] == 2.0
    with pytest.raises(ConfigError, match="has a sweep; expected another folder, or --resume"):
        new_sweep("mine", tmp_path / "sweep", sweep_of())


@pytest.mark.parametrize("search", [{}, {"search": "optuna", "samples": 2}])
def test_a_sweep_may_go_on_without_mlflow(tmp_path: Path, search: dict[str, Any]) -> None:
    sweep = new_sweep("mine", tmp_path / "sweep", sweep_of(axes={"seed": [0, 1]}, training="ppo-smoke", **search))
    assert sweep.tracked
    assert not sweep.untracked().tracked
    assert [trial.name for trial in sweep.untracked().trials] == [trial.name for trial in sweep.trials]
    assert read_sweep(tmp_path / "sweep").tracked
    sweep.untracked().write()
    assert not read_sweep(tmp_path / "sweep").tracked


def test_a_report_that_a_killed_worker_left_unfinished_is_left_out(tmp_path: Path) -> None:
    assert outcome_of(tmp_path).status == "unfinished"
    add_report(tmp_path, {"progress_pct": 10.0})
    with (tmp_path / "reports.jsonl").open("a") as file:
        file.write('{"progress_pct": 2')
    add_report(tmp_path, {"progress_pct": 30.0})
    assert [report["progress_pct"] for report in read_reports(tmp_path)] == [10.0, 30.0]
    write_json(tmp_path / "result.json", {"status": "failed", "error": "it broke"})
    outcome = outcome_of(tmp_path)
    assert (outcome.status, outcome.error, outcome.metrics) == ("failed", "it broke", {"progress_pct": 30.0})
