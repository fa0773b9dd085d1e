"""Training learns, is reproducible, survives kill -9 and full disks, and says what it did in MLflow."""

import contextlib
import dataclasses
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from slicepilot.agents.learned.agent import LearnedAgent
from slicepilot.agents.learned.bundle import PolicyBundle
from slicepilot.agents.learned.files import BundleFiles
from slicepilot.configs import ConfigError, available
from slicepilot.env.simulator.backend import SimulatorBackend
from slicepilot.training.online.config import TrainingConfig
from slicepilot.training.online.train import (
    UNBOUNDED,
    TrainingResult,
    make_env,
    make_learner,
    train,
)
from slicepilot.training.runs.checkpoint import Checkpoint
from slicepilot.training.runs.run import Budget
from slicepilot.training.runs.tracking import DIGEST_TAG
from tests.command import slicepilot

SMOKE = TrainingConfig.from_yaml("ppo-smoke")
UNTRACKED = dataclasses.replace(SMOKE, tracking="none", total_steps=1024)
TINY_SAC = dataclasses.replace(
    UNTRACKED,
    algorithm="sac",
    broken_over_reference=None,
    copies=1,
    sac=dataclasses.replace(SMOKE.sac, warmup_transitions=128, batch_transitions=64, replay_transitions=2000),
)


def learned(config: TrainingConfig) -> tuple[Any, list[float]]:
    """The learner after a run, and the mean reward per rollout."""
    torch.set_num_threads(config.threads)
    env = make_env(config)
    budget = Budget(config.total_steps, config.minutes)
    learner = make_learner(config, env, budget)
    rewards = []
    chunk = 10 * config.num_envs * config.ppo.rollout_steps
    assert config.total_steps is not None
    while learner.num_timesteps < config.total_steps:
        learner.learn(chunk, log_interval=UNBOUNDED, reset_num_timesteps=not rewards)
        rewards.append(env.take_means()["reward"])
    return learner, rewards


# -- configuration ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", available("training"))
def test_shipped_configurations_are_valid(name: str) -> None:
    assert TrainingConfig.from_yaml(name).algorithm in {"ppo", "sac"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": 1}, "colour = 1: unknown field"),
        ({"ppo": {"n_epochs": 1}}, r"ppo\.n_epochs = 1: unknown field"),
        ({"algorithm": "dqn"}, "algorithm = 'dqn': .*'ppo' or 'sac'"),
        ({"gamma": 1.0}, r"gamma = 1\.0: .*less than 1"),
        ({"num_envs": "many"}, "num_envs = 'many'"),
        ({"num_envs": 33}, "phase_groups = 2, copies = 4: expected their product divides num_envs = 33"),
        ({"mixture": "default"}, "exactly one of scenario and mixture"),
        ({"total_steps": None}, "total_steps or minutes"),
        ({"ppo": {"batch_transitions": 1000}}, r"batch_transitions = 1000: expected a divisor of .* = 512"),
    ],
)
def test_bad_values_are_refused_by_field(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    raw = dataclasses.asdict(SMOKE) | change
    for part in ("ppo", "network"):
        raw[part] = dataclasses.asdict(getattr(SMOKE, part)) | change.get(part, {})
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(raw))
    with pytest.raises(ConfigError, match=rf"mine\.yaml: .*{message}") as caught:
        TrainingConfig.from_yaml(file)
    assert "\n" not in str(caught.value)


# -- learning --------------------------------------------------------------------------------------------------


def test_ppo_learns_in_seconds() -> None:
    config = TrainingConfig.of(
        {
            "algorithm": "ppo",
            "scenario": "bursty-neighbours",
            "reward": "edge",
            "total_steps": 40_960,
            "num_envs": 64,
            "phase_groups": 4,
            "learning_rate": 3e-3,
            "network": {"width": 32},
            "ppo": {"rollout_steps": 16, "batch_transitions": 256, "epochs": 3},
            "threads": 1,
        },
        "test",
    )
    _, rewards = learned(config)
    # The rule with the exploration noise gets 3.40 to 3.42 here; it holds CPU that nobody uses.
    assert rewards[-1] > rewards[0] + 0.06, rewards


def test_training_is_reproducible_by_seed() -> None:
    first, again, other = (
        learned(dataclasses.replace(UNTRACKED, seed=seed))[0].policy.state_dict() for seed in (3, 3, 4)
    )
    for name, value in first.items():
        assert torch.equal(value, again[name]), name
    assert any(not torch.equal(value, other[name]) for name, value in first.items())


def test_sac_updates_actor_and_critics() -> None:
    env = make_env(TINY_SAC)
    learner: Any = make_learner(TINY_SAC, env, Budget(TINY_SAC.total_steps, None))
    before = {name: value.clone() for name, value in learner.policy.state_dict().items()}
    learner.learn(512, log_interval=UNBOUNDED)
    after = learner.policy.state_dict()
    assert all(torch.isfinite(value).all() for value in after.values())
    for part in ("actor.encoder", "actor.mean_head", "critic.encoders.0", "critic.heads.1", "critic_target.encoders.0"):
        assert any(not torch.equal(before[name], after[name]) for name in before if name.startswith(part)), part


# -- a whole run, tracked ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TrainingResult, Path]]:
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield train(SMOKE, folder / "out", "smoke"), folder


def test_the_bundle_of_a_run_drives_its_scenario(run: tuple[TrainingResult, Path]) -> None:
    result, folder = run
    bundle = PolicyBundle.load(folder / "out" / "bundle")
    record = bundle.training
    assert (record.algorithm, record.seed, record.env_steps) == ("ppo", 0, 4096)
    assert record.run_id == result.run_id is not None
    assert TrainingConfig.of(record.config, "bundle") == SMOKE == TrainingConfig.from_yaml(folder / "out/config.yaml")
    assert bundle.agreement is not None
    assert bundle.agreement.max_abs_error <= 1e-5
    assert bundle.agreement.observations >= 1000
    backend = SimulatorBackend(SMOKE.episodes(), 2)
    telemetry = backend.reset(0)
    agent = LearnedAgent(bundle)
    agent.reset(backend.slices, backend.context, 0)
    knobs = agent.decide(telemetry, backend.engine.knobs)
    assert knobs.nice.shape == (5, 2)


def test_mlflow_holds_parameters_curves_and_files(run: tuple[TrainingResult, Path]) -> None:
    import mlflow

    result, folder = run
    assert (folder / "mlflow.db").is_file()
    assert not mlflow.is_tracking_uri_set(), "the next run in this process has the default again"
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    stored = client.get_run(str(result.run_id))
    assert stored.info.status == "FINISHED"
    assert stored.data.params["algorithm"] == "ppo"
    assert stored.data.params["ppo.epochs"] == "2"
    assert stored.data.tags["source"] == "scenario andrade-ramp"
    for metric in ("reward", "terms/sla", "terms/carried", "terms/delay", "terms/cpu_held", "terms/churn"):
        history = client.get_metric_history(str(result.run_id), metric)
        assert history, metric
        assert [point.step for point in history] == [int(point["steps"]) for point in result.curve]
    assert stored.data.metrics["reward"] == pytest.approx(result.reward)
    assert "train/approx_kl" in stored.data.metrics
    files = {entry.path for entry in client.list_artifacts(str(result.run_id), "bundle")}
    assert files == {"bundle/policy.onnx", "bundle/bundle.yaml", "bundle/SHA256SUMS"}
    assert {entry.path for entry in client.list_artifacts(str(result.run_id))} == {"bundle", "config.yaml"}
    assert (folder / "mlartifacts").is_dir()
    assert not (folder / "mlruns").exists(), "the model is kept with its run"
    digest = BundleFiles.read(folder / "out" / "bundle").digest
    [version] = client.search_model_versions(f"tags.`{DIGEST_TAG}` = '{digest}'")
    assert (version.name, version.run_id) == ("slicepilot", result.run_id)
    assert stored.inputs is not None
    [dataset] = stored.inputs.dataset_inputs
    assert dataset.dataset.name == "andrade-ramp"
    assert stored.info.run_name is not None
    assert stored.info.run_name.startswith("smoke-seed0 20")
    record = json.loads((folder / "out" / "run.json").read_text())
    assert record["model"] == f"models:/slicepilot/{version.version}"
    assert (record["run_id"], record["status"]) == (result.run_id, "FINISHED")
    assert (folder / "out" / "metrics.jsonl").read_text().count("\n") >= 1


def test_a_finished_run_goes_on_with_a_larger_budget(
    run: tuple[TrainingResult, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    result, folder = run
    database = f"sqlite:///{folder}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", database)
    checkpoint = Checkpoint.read(folder / "out")
    assert checkpoint.steps == 4096
    config = TrainingConfig.resumed(checkpoint.config, dataclasses.replace(SMOKE, total_steps=6144))
    said: list[str] = []
    longer = train(config, folder / "longer", resume=checkpoint, say=said.append)
    assert [line.split()[0] for line in (*said[:2], said[-1])] == ["preparing", "comparing", "exporting"]
    assert len(said) == 4, "and what is kept"
    assert longer.steps == 6144
    assert longer.run_id == result.run_id
    assert os.environ["MLFLOW_TRACKING_URI"] == database, "a user's own address stays"
    assert longer.elapsed_s > checkpoint.elapsed_s
    assert longer.curve[0]["steps"] > 4096
    with pytest.raises(ConfigError, match=r"seed = 1: expected 0"):
        TrainingConfig.resumed(checkpoint.config, dataclasses.replace(SMOKE, seed=1))


def test_a_start_that_does_not_fit_is_refused_before_the_simulator_runs(tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(ConfigError, match="differs in shape"):
        train(UNTRACKED, tmp_path / "out", start=PolicyBundle.load("generalist"), say=said.append)
    assert said == []


def test_runs_may_start_on_a_new_database_at_once(tmp_path: Path) -> None:
    """MLflow's own migrations fail when two processes set a database up."""
    script = "from slicepilot.training.runs.tracking import Tracker; Tracker('run').finish('FINISHED')"
    environment = os.environ | {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}"}
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", script], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    errors = [run.communicate(timeout=120)[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0, 0], errors


def test_an_unusable_tracking_server_is_bad_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "gopher://nowhere")
    with pytest.raises(ConfigError, match=r"MLFLOW_TRACKING_URI = 'gopher://nowhere': cannot be used") as caught:
        train(SMOKE, tmp_path / "out")
    assert "\n" not in str(caught.value)


# -- checkpoints -------------------------------------------------------------------------------------------------


def a_checkpoint(steps: int = 5) -> Checkpoint:
    return Checkpoint({"seed": 0}, steps, 1, 1.0, None, {"w": torch.zeros(20_000)}, {}, {}, {})


@pytest.mark.parametrize("damage", ["truncated", "foreign", "empty", "version"])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "checkpoint.pt"
    with pytest.raises(ConfigError, match=r"resume = .*no checkpoint"):
        Checkpoint.read(tmp_path)
    a_checkpoint().write(file)
    assert Checkpoint.read(tmp_path).steps == 5
    data = file.read_bytes()
    if damage == "version":
        dataclasses.replace(a_checkpoint(), format_version=9).write(file)
    else:
        file.write_bytes({"truncated": data[: len(data) // 2], "foreign": b"hello\n" * 100, "empty": b""}[damage])
    with pytest.raises(ConfigError, match=r"checkpoint '.*checkpoint\.pt'") as caught:
        Checkpoint.read(file)
    assert "\n" not in str(caught.value)


@contextlib.contextmanager
def file_size_limit(limit_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.pt"
    a_checkpoint(1).write(file)
    with file_size_limit(50_000), pytest.raises(ConfigError, match="File too large; the last checkpoint is kept"):
        a_checkpoint(2).write(file)
    assert Checkpoint.read(file).steps == 1
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.pt"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


COMMAND = [sys.executable, "-c", "from slicepilot.cli import main; main()", "train"]


def config_file(folder: Path, config: TrainingConfig) -> str:
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump(dataclasses.asdict(config), sort_keys=False))
    return str(file)


@pytest.mark.slow
def test_training_onto_a_full_disk_ends_with_one_line_and_exit_code_2(small_disk: Path, tmp_path: Path) -> None:
    large = dataclasses.replace(UNTRACKED, network=dataclasses.replace(SMOKE.network, width=128))
    result = slicepilot("train", "-c", config_file(tmp_path, large), "--out", small_disk / "out")
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert not list(small_disk.rglob("*.pt*")), "no half of a checkpoint"
    line = result.stderr.splitlines()[-1]
    assert "checkpoint" in line
    assert "No space left on device" in line


@pytest.mark.slow
def test_training_goes_on_after_kill_9(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = dataclasses.replace(SMOKE, total_steps=10_000_000, checkpoint_minutes=0.005)
    folder = tmp_path / "out"
    environment = os.environ | {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
    process = subprocess.Popen(
        [*COMMAND, "-c", config_file(tmp_path, config), "--out", str(folder)],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        seen = set()
        deadline = time.monotonic() + 240
        while len(seen) < 3:
            assert process.poll() is None, "training ended before it was killed"
            assert time.monotonic() < deadline, "no checkpoint"
            with contextlib.suppress(FileNotFoundError):
                seen.add((folder / "checkpoint.pt").stat().st_mtime_ns)
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    checkpoint = Checkpoint.read(folder)
    assert checkpoint.steps % (config.num_envs * config.ppo.rollout_steps) == 0
    assert checkpoint.elapsed_s > 0
    [key] = checkpoint.optimizers
    adam_steps = {float(state["step"]) for state in checkpoint.optimizers[key]["state"].values()}
    [gradient_steps] = adam_steps

    goal = checkpoint.steps + 1024
    monkeypatch.setenv("MLFLOW_TRACKING_URI", environment["MLFLOW_TRACKING_URI"])
    result = train(dataclasses.replace(config, total_steps=goal), folder, resume=checkpoint)
    assert result.steps == goal
    assert result.run_id == checkpoint.run_id is not None
    after = Checkpoint.read(folder)
    [gradient_steps_after] = {float(state["step"]) for state in after.optimizers[key]["state"].values()}
    rollouts = 1024 // (config.num_envs * config.ppo.rollout_steps)
    per_rollout = config.ppo.epochs * config.num_envs * config.ppo.rollout_steps // config.ppo.batch_transitions
    assert gradient_steps_after == gradient_steps + rollouts * per_rollout
    assert after.updates == checkpoint.updates + rollouts * config.ppo.epochs
    assert after.scaler["steps"] == checkpoint.scaler["steps"] + rollouts * config.ppo.rollout_steps
    assert after.elapsed_s > checkpoint.elapsed_s
    assert PolicyBundle.load(folder / "bundle").training.env_steps == goal


def test_generators_continue_where_they_were() -> None:
    from slicepilot.training.runs.checkpoint import generator_states, restore_generators

    states = generator_states()
    drawn = (np.random.rand(3), torch.rand(3))  # noqa: NPY002
    restore_generators(states)
    np.testing.assert_array_equal(np.random.rand(3), drawn[0])  # noqa: NPY002
    assert torch.equal(torch.rand(3), drawn[1])
