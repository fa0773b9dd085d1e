"""Sweeps as they run: a worker that is killed, a command that is interrupted, trials that are stopped."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from slicepilot.agents.learned.bundle import PolicyBundle
from slicepilot.cli.app import app
from slicepilot.cli.schemas.training import Tuned
from slicepilot.configs import ConfigError
from slicepilot.configs.documents import check
from slicepilot.training.sweeps.config import SweepConfig
from slicepilot.training.sweeps.files import new_sweep, read_json, read_reports

PROGRAM = [sys.executable, "-c", "from slicepilot.cli import main; main()"]
PATIENCE_S = 200  # of a busy machine
STEPS = 81_920
TRAINING = {
    "algorithm": "ppo",
    "scenario": "andrade-ramp",
    "total_steps": STEPS,
    "num_envs": 32,
    "phase_groups": 2,
    "network": {"width": 16},
    "ppo": {"rollout_steps": 16, "batch_transitions": 256, "epochs": 2},
    "checkpoint_minutes": 0.002,
}


class Tune:
    """``slicepilot tune`` in a folder and a process group of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        command = [*PROGRAM, "tune", *arguments, "--json"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MLFLOW_"))}
        self.home = folder / "home"
        self.home.mkdir(exist_ok=True)
        environment["HOME"] = str(self.home)
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def trial(self, name: str) -> Path:
        return self.folder / "sweep" / "trials" / name

    def wait_for(self, seen: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not seen():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, "too slow"
            time.sleep(0.01)

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=PATIENCE_S)
        assert not (self.home / "ray_results").exists(), "Ray's files stay in the run's folder"
        return self.process.returncode, out, err


@pytest.fixture
def tune(tmp_path: Path) -> Iterator[Callable[..., Tune]]:
    started: list[Tune] = []

    def start(*arguments: str) -> Tune:
        started.append(Tune(tmp_path, *arguments))
        return started[-1]

    yield start
    for item in started:
        if item.process.poll() is None:
            os.killpg(item.process.pid, signal.SIGKILL)
            item.process.wait()


def write_sweep(folder: Path, training: dict[str, Any], **sweep: Any) -> None:
    (folder / "training.yaml").write_text(yaml.safe_dump(TRAINING | training))
    (folder / "sweep.yaml").write_text(yaml.safe_dump({"training": "training.yaml"} | sweep))


def runs_of(folder: Path) -> dict[str, Any]:
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("slicepilot")
    assert experiment is not None
    result = client.search_runs([experiment.experiment_id])
    return {run.info.run_id: run for run in result}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # of MLflow, when it opens its database
def test_a_killed_worker_costs_its_own_work_only(tmp_path: Path, tune: Callable[..., Tune]) -> None:
    write_sweep(tmp_path, {}, axes={"seed": [0, 1]}, asha=None)
    sweep = tune("-c", "sweep.yaml", "--out", "sweep", "--parallel", "2")
    first = sweep.trial("000")
    sweep.wait_for(lambda: (first / "checkpoint.pt").exists() and len(read_reports(first)) >= 2)
    before = read_reports(first)
    os.kill(int(read_json(first / "worker.json")["pid"]), signal.SIGKILL)
    code, out, err = sweep.end()
    assert (code, err) == (0, "")
    check(out, Tuned)
    document = json.loads(out)
    trials = document["trials"]
    assert [trial["status"] for trial in trials] == ["finished"] * 2
    assert [trial["starts"] for trial in trials] == [2, 1]
    assert all(trial["steps"] >= STEPS and trial["progress_pct"] == 100.0 for trial in trials)

    reports = read_reports(first)
    assert reports[: len(before)] == before, "what had been reported stays"
    assert [item["steps"] for item in reports] == sorted({item["steps"] for item in reports}), "it did not begin again"
    record = PolicyBundle.load(Path(document["bundle"])).training
    assert record.env_steps >= STEPS
    best = max(trials, key=lambda trial: float(trial["metric"]))
    assert (document["best"], document["bundle"]) == (best["trial"], best["bundle"])

    runs = runs_of(tmp_path)
    parent = runs.pop(document["run_id"])
    assert parent.info.status == "FINISHED"
    assert parent.data.tags["best_trial"] == best["trial"]
    assert set(runs) == {trial["run_id"] for trial in trials}
    for number, trial in enumerate(trials):
        run = runs[trial["run_id"]]
        assert run.data.tags["mlflow.parentRunId"] == document["run_id"]
        assert (run.info.status, run.data.params["seed"]) == ("FINISHED", str(number))
        assert run.data.metrics["reward"] > 0
    assert not (tmp_path / "sweep" / ".ray").exists(), "Ray leaves nothing to be unpickled"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_interrupted_sweep_goes_on_and_knows_who_was_ahead(tmp_path: Path, tune: Callable[..., Tune]) -> None:
    """The better trial ends before the interruption: only its files can show that the other is worse.

    The second trial is interrupted after its first reports, at some percent, and can be stopped from 60% on. A worker
    waits for the command after each report, so with the command paused it gets no further.
    """
    axes = {"scenario": ["application-mix", "andrade-ramp-priority"]}
    write_sweep(tmp_path, {"tracking": "none"}, axes=axes, reports=50, asha={"grace_pct": 60, "reduction_factor": 1.5})
    sweep = tune("-c", "sweep.yaml", "--out", "sweep", "--parallel", "1")
    second = sweep.trial("001")
    sweep.wait_for(lambda: bool(read_reports(second)) and (second / "checkpoint.pt").exists())
    sweep.process.send_signal(signal.SIGSTOP)
    worker = int(read_json(second / "worker.json")["pid"])
    os.killpg(sweep.process.pid, signal.SIGINT)
    sweep.process.send_signal(signal.SIGCONT)
    code, out, err = sweep.end()
    assert (code, out) == (130, "")
    assert err == "slicepilot: error: interrupted\n"
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
    before = read_reports(second)
    assert before[-1]["progress_pct"] < 60.0

    code, out, err = tune("--resume", "sweep").end()
    assert (code, err) == (0, "")
    check(out, Tuned)
    better, worse = json.loads(out)["trials"]
    assert (better["status"], worse["status"]) == ("finished", "stopped")
    assert (better["values"], worse["values"]) == tuple({"scenario": name} for name in axes["scenario"])
    assert 60.0 <= worse["progress_pct"] < 100.0
    assert worse["bundle"] is None
    reports = read_reports(second)
    assert reports[: len(before)] == before
    assert reports[len(before)]["steps"] > before[-1]["steps"]

    code, out, err = tune("--resume", "sweep").end()
    assert (code, json.loads(out)["trials"]) == (0, [better, worse]), "there is nothing left to do"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_trial_that_fails_fails_alone_and_can_be_tried_again(tmp_path: Path, tune: Callable[..., Tune]) -> None:
    few = {"tracking": "none", "total_steps": 2048}
    write_sweep(tmp_path, few, axes={"reward.sla": [1.0, 2.0]}, metric="sla", asha=None, restarts=0)
    config = SweepConfig.of(
        yaml.safe_load((tmp_path / "sweep.yaml").read_text()) | {"training": str(tmp_path / "training.yaml")}, "test"
    )
    sweep = new_sweep("fails", tmp_path / "sweep", config)
    weights = Path(str(sweep.trials[1].config.reward))
    kept = weights.read_text()
    weights.unlink()
    code, out, err = tune("--resume", "sweep").end()
    assert (code, err) == (1, "")
    check(out, Tuned)
    first, second = json.loads(out)["trials"]
    assert (first["status"], second["status"]) == ("finished", "failed")
    assert second["error"] == f"file {str(weights)!r} does not exist"
    assert json.loads(out)["best"] == "000"
    weights.write_text(kept)
    code, out, err = tune("--resume", "sweep").end()
    assert (code, err) == (0, "")
    assert json.loads(out)["trials"][0] == first
    assert json.loads(out)["trials"][1]["status"] == "finished"
    assert PolicyBundle.load(Path(json.loads(out)["trials"][1]["bundle"])).training.config["reward"] == str(weights)


BAD_INPUT = {
    "nothing": ((), "config = None: give -c with a name or a file, or --resume with a sweep's folder"),
    "both": (("-c", "ppo-smoke", "--resume", "there"), "config = 'ppo-smoke': give -c"),
    "name": (("-c", "ppo-smok"), "sweeps: unknown name 'ppo-smok'; did you mean ppo-smoke"),
    "no sweep": (("--resume", "not/there"), "resume = 'not/there': no sweep.json; expected a sweep's folder"),
    "client": (("-c", "untracked.yaml", "--out", "client", "--address", "ray://127.0.0.1:10001"), "address = 'ray://"),
    "nobody": (("-c", "untracked.yaml", "--out", "nobody", "--address", "127.0.0.1:1"), "address = '127.0.0.1:1': "),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_named(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "untracked.yaml").write_text(yaml.safe_dump({"training": "training.yaml", "axes": {"seed": [0, 1]}}))
    (tmp_path / "training.yaml").write_text(yaml.safe_dump(TRAINING | {"tracking": "none"}))
    monkeypatch.chdir(tmp_path)
    arguments, message = BAD_INPUT[case]
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        CliRunner().invoke(app, ["tune", *arguments], catch_exceptions=False)


@pytest.mark.parametrize("arguments", [("tune", "-c", "ppo-smoke"), ("evaluate", "--ray")], ids=lambda case: case[0])
def test_without_ray_the_error_names_the_extra(arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"needs the package ray: install slicepilot\[train,ray\]$"):
        CliRunner().invoke(app, list(arguments), catch_exceptions=False)
