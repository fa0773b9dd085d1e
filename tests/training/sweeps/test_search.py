"""Trials that are drawn by what others have achieved, and populations whose trials take over from each other."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from slicepilot.training.sweeps.config import SweepConfig
from slicepilot.training.sweeps.files import (
    RESULT_FILE,
    Sweep,
    add_report,
    new_sweep,
    read_reports,
    read_sweep,
    write_json,
)
from tests.training.sweeps.test_tune import TRAINING

pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray, while it is imported
pytest.importorskip("ray")

RATES = {"low": 1e-5, "high": 1e-1, "log": True}


def sweep_of(folder: Path, **values: Any) -> Sweep:
    (folder / "training.yaml").write_text(yaml.safe_dump(TRAINING | {"tracking": "none"}))
    config = SweepConfig.of({"training": str(folder / "training.yaml")} | values, "test")
    return new_sweep("mine", folder / "sweep", config)


def spec(sweep: Sweep, trial: Any) -> dict[str, Any]:
    return {"name": trial.name, "rate": trial.config.learning_rate, "folder": str(sweep.folder_of(trial))}


def finish(trials: Any, trial_id: str, given: dict[str, Any]) -> float:
    """End a trial whose metric is best at a learning rate of 0.001."""
    value = -abs(math.log10(given["trial"]["rate"]) + 3)
    folder = Path(given["trial"]["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    report = {"progress_pct": 100.0, "steps": 1, "elapsed_s": 1.0, "reward": value}
    add_report(folder, report)
    write_json(folder / RESULT_FILE, {"status": "finished", "bundle": None})
    trials.on_trial_result(trial_id, report)
    trials.on_trial_complete(trial_id, report)
    return value


def test_optuna_draws_better_trials_as_it_goes_on_also_after_an_interruption(tmp_path: Path) -> None:
    from ray.tune.search import Searcher

    from slicepilot.training.sweeps.search import OptunaTrials

    axes = {"learning_rate": RATES, "ppo.epochs": {"low": 1, "high": 3}, "gamma": [0.9, 0.95], "seed": [7]}
    sweep = sweep_of(tmp_path, axes=axes, samples=40, search="optuna")
    assert sweep.trials == ()
    trials = OptunaTrials(sweep, spec)
    values = [finish(trials, f"t{n}", trials.suggest(f"t{n}")) for n in range(20)]
    begun = trials.suggest("interrupted")

    trials = OptunaTrials(read_sweep(tmp_path / "sweep"), spec)
    again = trials.suggest("again")
    assert again == begun, "what has no end yet comes first"
    values += [finish(trials, "again", again)]
    values += [finish(trials, f"u{n}", trials.suggest(f"u{n}")) for n in range(19)]
    assert trials.suggest("one more") == Searcher.FINISHED
    sweep = read_sweep(tmp_path / "sweep")
    assert [trial.name for trial in sweep.trials] == [f"{n:03d}" for n in range(40)]
    assert {trial.config.seed for trial in sweep.trials} == {7}
    assert all("seed" not in trial.values for trial in sweep.trials)
    assert np.mean(values[25:]) > np.mean(values[:10]) + 0.3


def test_a_worse_trial_takes_over_settings_and_keeps_its_name(tmp_path: Path) -> None:
    from slicepilot.training.sweeps.population import Population

    axes = {"learning_rate": RATES, "ppo.epochs": {"low": 1, "high": 3}, "seed": [0, 1]}
    sweep = sweep_of(tmp_path, axes=axes, samples=4, metric="sla", pbt={"resample": 0.0})
    assert sweep.config.asha is None
    assert set(sweep.config.mutable) == {"learning_rate", "ppo.epochs"}, "a seed does not change on the way"
    population = Population(sweep.config, time_attr="progress_pct", metric="sla", mode="max")

    def trial(name: str, rate: float, epochs: int) -> Any:
        values = {"learning_rate": rate, "ppo.epochs": epochs}
        return SimpleNamespace(config={"trial": {"name": name, "folder": name, "values": values}})

    for _ in range(20):
        config, _ = population._get_new_config(trial("worse", 1e-4, 2), trial("better", 9e-2, 3))
        own = config["trial"]
        assert (own["name"], own["folder"]) == ("worse", "worse")
        assert own["values"]["learning_rate"] in (pytest.approx(7.2e-2), 1e-1), "a step, within the range"
        assert own["values"]["ppo.epochs"] in {2, 3}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_trial_goes_on_from_a_copy_of_a_better_one(tmp_path: Path) -> None:
    """What Ray asks of two trials when one takes over from the other, in this process."""
    from slicepilot.training.sweeps.sweep import spec_of
    from slicepilot.training.sweeps.trainable import TrialRun

    axes = {"learning_rate": [1e-3, 1e-4], "reward.churn": [0.02, 0.05]}
    sweep = sweep_of(tmp_path, axes=axes, metric="sla", reports=10, pbt={})
    specs = [spec_of(sweep, trial) for trial in sweep.trials]
    better, worse = (TrialRun({"trial": own}) for own in (specs[0], specs[3]))
    ahead = better.train()
    for _ in range(3):
        ahead = better.train()
    behind = worse.train()
    assert behind["steps"] < ahead["steps"]
    copied = tmp_path / "copied"
    copied.mkdir()
    better.save_checkpoint(str(copied))
    assert better.train()["steps"] > ahead["steps"], "the better trial goes on"
    changed = specs[3] | {"values": {"learning_rate": 5e-4, "reward.churn": 0.03}}
    assert worse.reset_config({"trial": changed})
    worse.load_checkpoint(str(copied))
    after = worse.train()
    assert after["steps"] > ahead["steps"], "from where the better trial was"
    [copy] = read_reports(sweep.folder_of(sweep.trials[3]), "copies.jsonl")
    assert (copy["from"], copy["values"]["learning_rate"]) == ("000", 5e-4)
    config = yaml.safe_load((sweep.folder_of(sweep.trials[3]) / "config.yaml").read_text())
    assert config["learning_rate"] == 5e-4
    assert yaml.safe_load(Path(config["reward"]).read_text())["churn"] == 0.03
    for trial in (better, worse):
        trial.cleanup()
