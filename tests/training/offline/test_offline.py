"""An offline run goes from a recorded dataset to a bundle that decides, can be stopped, and says what it cannot do."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from typer.testing import CliRunner

from slicepilot.agents.heuristics.exploring import ExploringAgent, RandomAgent
from slicepilot.agents.heuristics.fixed import no_control
from slicepilot.agents.learned.agent import LearnedAgent
from slicepilot.agents.learned.bundle import PolicyBundle
from slicepilot.cli.app import app
from slicepilot.configs import ConfigError, available
from slicepilot.data.episodes.episodes import EpisodeSet
from slicepilot.data.episodes.files import write_episodes
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.evaluation.rollouts import simulate_rollout
from slicepilot.training.finetune.config import FinetuneConfig
from slicepilot.training.finetune.learner import FinetuneLearner
from slicepilot.training.networks.export import to_onnx
from slicepilot.training.offline.config import OfflineConfig
from slicepilot.training.offline.data import discounts_of, open_dataset, read_dataset, slices_of, with_reward
from slicepilot.training.offline.train import OfflineProgress, train_offline
from slicepilot.training.recording.recording import record_simulated
from slicepilot.training.runs.checkpoint import Checkpoint

REWARD = "delay-first"
SCENARIO = replace(Scenario.from_yaml("testbed-contention"), duration_s=1.0, control_period_s=0.01)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """No control, noise around it, and random knobs: 6 episodes of 100 steps."""
    agents = [no_control(), ExploringAgent(no_control()), RandomAgent()]
    file = tmp_path_factory.mktemp("log") / "log.parquet"
    write_episodes(record_simulated(agents, SCENARIO, 2, 0, RewardWeights.from_yaml(REWARD)), file)
    return file


@pytest.fixture(scope="module")
def config(dataset: Path) -> OfflineConfig:
    values = {"algorithm": "iql", "dataset": str(dataset), "updates": 20, "batch_steps": 32, "network": {"width": 16}}
    return OfflineConfig.of(values | {"tracking": "none"}, "test")


# -- configuration and data --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", available("offline"))
def test_shipped_configurations_are_valid(name: str) -> None:
    assert OfflineConfig.from_yaml(name).algorithm == name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": 1}, "colour = 1: unknown field"),
        ({"algorithm": "ppo"}, "algorithm = 'ppo': .*'bc', 'td3-bc', 'iql' or 'choice'"),
        ({"iql": {"expectile": 1.0}}, r"iql\.expectile = 1\.0: .*less than 1"),
        ({"td3_bc": {"beta": 1}}, r"td3_bc\.beta = 1: unknown field"),
        ({"updates": None}, "updates or minutes"),
        ({"algorithm": "choice"}, "neither updates nor minutes"),
        ({"behaviours": []}, "behaviours = "),
        ({"device": "tpu"}, "device = 'tpu'"),
    ],
)
def test_bad_values_are_refused_by_field(
    tmp_path: Path, config: OfflineConfig, change: dict[str, Any], message: str
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(json.loads(json.dumps(dataclasses.asdict(config) | change))))
    with pytest.raises(ConfigError, match=rf"mine\.yaml: .*{message}") as caught:
        OfflineConfig.from_yaml(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dataset": "nothing.parquet"}, r"nothing\.parquet': does not exist"),
        ({"behaviours": ("captain",)}, "behaviours = 'captain': expected no-control, exploring-no-control, random"),
        ({"reward": "no-such"}, "reward: unknown name 'no-such'"),
        ({"device": "cuda"}, "device = 'cuda': no GPU"),
    ],
)
def test_what_a_run_cannot_have_is_refused_before_it_starts(
    tmp_path: Path, config: OfflineConfig, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=message) as caught:
        train_offline(replace(config, **change), tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_what_was_measured_after_a_missed_tick_is_not_learned_from(dataset: Path, tmp_path: Path) -> None:
    episodes = open_dataset(str(dataset))
    missed = np.zeros(100, np.uint16)
    missed[[0, 40, 41, 99]] = 2
    whole = episodes.episodes[0]
    late = replace(whole, decisions={**whole.decisions, "missed_ticks": missed}, terminated=True)
    rest = [replace(e, decisions={**e.decisions, "missed_ticks": 0 * missed}) for e in episodes.episodes[1:]]
    write_episodes(EpisodeSet((late, *rest), episodes.facts), tmp_path / "late.parquet")
    results = open_dataset(str(tmp_path / "late.parquet"))
    assert [len(e) for e in results] == [39, 57, *[100] * 5]
    first, second = results.episodes[:2]
    assert not first.terminated
    assert not second.terminated
    np.testing.assert_array_equal(first.observations, whole.observations[1:41])
    np.testing.assert_array_equal(second.rewards, whole.rewards[42:99])
    assert second.telemetry is not None
    assert whole.telemetry is not None
    np.testing.assert_array_equal(second.telemetry, whole.telemetry[42:100])
    assert set(second.terms) == set(whole.terms)


@pytest.mark.parametrize(
    ("array", "value", "what"),
    [
        ("observations", np.nan, "outside what is possible"),
        ("observations", 1e20, "outside what is possible"),
        ("actions", -7.0, "outside what is possible"),
        ("rewards", np.inf, "outside what is possible"),
        ("rewards", 1e30, "contradict each other"),
        ("rewards", 0.0, "contradict each other"),
    ],
)
@pytest.mark.parametrize("algorithm", ["td3-bc", "choice"])
def test_a_dataset_that_would_teach_nonsense_is_refused_before_training(
    tmp_path: Path, dataset: Path, algorithm: str, array: str, value: float, what: str
) -> None:
    """ray-project/ray#7606, takuseno/d3rlpy#255, yihaosun1124/OfflineRL-Kit#14."""
    episodes = read_dataset(str(dataset))
    first = episodes.episodes[0]
    changed = getattr(first, array).copy()
    changed[3] = value
    path = tmp_path / "bad.parquet"
    write_episodes(EpisodeSet((replace(first, **{array: changed}), *episodes.episodes[1:]), episodes.facts), path)
    updates = {} if algorithm == "choice" else {"updates": 2, "batch_steps": 32, "network": {"width": 16}}
    bad = OfflineConfig.of({"algorithm": algorithm, "dataset": str(path), "tracking": "none", **updates}, "test")
    with pytest.raises(ConfigError) as refusal:
        train_offline(bad, tmp_path / "run")
    assert what in str(refusal.value)
    assert array in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_episodes_without_a_step_are_no_fault(tmp_path: Path, dataset: Path) -> None:
    """takuseno/d3rlpy#67: an episode that ended before its first step."""
    episodes = read_dataset(str(dataset))
    write_episodes(EpisodeSet((episodes.episodes[0].part(0, 0), *episodes), episodes.facts), tmp_path / "log.parquet")
    result = CliRunner().invoke(app, ["dataset", "validate", str(tmp_path / "log.parquet")])
    assert result.exit_code == 0, result.output
    assert open_dataset(str(tmp_path / "log.parquet")).num_steps == episodes.num_steps


def test_other_weights_give_the_reward_that_recording_with_them_gives(dataset: Path) -> None:
    episodes = open_dataset(str(dataset))
    assert with_reward(episodes, None) is with_reward(episodes, REWARD) is episodes
    agents = [no_control(), ExploringAgent(no_control()), RandomAgent()]
    again = record_simulated(agents, SCENARIO, 2, 0, RewardWeights.from_yaml("edge"))
    changed = with_reward(episodes, "edge")
    for item, other in zip(changed, again, strict=True):
        np.testing.assert_allclose(item.rewards, other.rewards, atol=1e-5)
    assert changed.facts["reward"] == dataclasses.asdict(RewardWeights.from_yaml("edge"))
    bare = EpisodeSet(tuple(replace(episode, terms={}) for episode in episodes), episodes.facts)
    with pytest.raises(ConfigError, match="reward = 'edge': expected none"):
        with_reward(bare, "edge")


def test_short_periods_are_discounted_less(dataset: Path) -> None:
    episodes = open_dataset(str(dataset))
    np.testing.assert_allclose(discounts_of(episodes, 0.9), 0.95)
    np.testing.assert_allclose(discounts_of(episodes, 0.99), 0.99)
    assert discounts_of(episodes, 0.9).shape == (600,)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"slices": None}, "dataset: slices = "),
        ({"encoder": {"features": ["colour"]}}, r"dataset: encoder\.features"),
        ({"decoder": None}, "dataset: decoder = None"),
    ],
)
def test_a_dataset_of_another_encoding_is_refused(dataset: Path, facts: dict[str, Any], message: str) -> None:
    episodes = open_dataset(str(dataset))
    assert slices_of(episodes) == SCENARIO.slice_set()
    with pytest.raises(ConfigError, match=message):
        slices_of(EpisodeSet(episodes.episodes, {**episodes.facts, **facts}))


# -- whole runs --------------------------------------------------------------------------------------------------


def test_a_run_that_was_stopped_ends_as_one_that_was_not(tmp_path: Path, config: OfflineConfig) -> None:
    seen: list[OfflineProgress] = []
    whole = train_offline(config, tmp_path / "whole", report=seen.append)
    assert whole.updates == 20
    assert seen[-1].fraction == 1.0
    assert set(seen[-1].figures) >= {"critic_loss", "value_loss", "actor_loss"}
    train_offline(replace(config, updates=12), tmp_path / "part")
    checkpoint = Checkpoint.read(tmp_path / "part")
    assert checkpoint.updates == 12
    rest = train_offline(OfflineConfig.resumed(checkpoint.config, config), tmp_path / "part", resume=checkpoint)
    assert rest.updates == 20
    assert rest.bundle.model == whole.bundle.model
    item, other = (Checkpoint.read(tmp_path / name) for name in ("whole", "part"))
    for key, value in item.policy.items():
        assert torch.equal(value, other.policy[key]), key
    with pytest.raises(ConfigError, match=r"seed = 1: expected 0"):
        OfflineConfig.resumed(checkpoint.config, replace(config, seed=1))
    checkpoint.policy = {"encoder.weight": torch.zeros(1)}
    with pytest.raises(ConfigError, match="its network is not what this version builds"):
        train_offline(config, tmp_path / "part", resume=checkpoint)


def test_a_run_of_few_updates_saves_what_it_has_learned(tmp_path: Path, config: OfflineConfig) -> None:
    """The average takes every tenth update in, and what is left of them in the end; fine-tuning begins with that."""
    result, log = train_offline(replace(config, updates=3), tmp_path), open_dataset(config.dataset)
    start = Checkpoint.read(tmp_path)
    learner = FinetuneLearner(FinetuneConfig("simulator", updates=3), config, log, start)
    offline = learner.policies["offline"]
    assert to_onnx(offline) == result.bundle.model
    untrained = start.average["weights"]
    assert not any(torch.equal(value, untrained[name]) for name, value in offline.named_parameters())
    learner.learn(log.episodes[:1], lambda _: None)
    tuned = dict(learner.policies["fine-tuned"].named_parameters())
    assert not any(torch.equal(value, tuned[name]) for name, value in offline.named_parameters())


def test_the_bundle_of_a_run_decides_for_its_slices(tmp_path: Path, config: OfflineConfig, dataset: Path) -> None:
    result = train_offline(replace(config, algorithm="td3-bc"), tmp_path / "out")
    bundle = PolicyBundle.load(tmp_path / "out" / "bundle")
    record = bundle.training
    assert (record.algorithm, record.env_steps, record.source) == ("td3-bc", 600, f"dataset {dataset}")
    assert OfflineConfig.of(record.config, "bundle") == OfflineConfig.from_yaml(tmp_path / "out" / "config.yaml")
    assert result.behaviours == ("no-control", "exploring-no-control", "random")
    assert bundle.agreement is not None
    assert bundle.agreement.max_abs_error <= 1e-5
    assert bundle.agreement.observations > 3000
    played = simulate_rollout(LearnedAgent(bundle), replace(SCENARIO, duration_s=0.1), 2, 0)
    assert played.reward.shape == (10, 2)


def test_the_command_trains_tracks_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: OfflineConfig
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    file = tmp_path / "mine.yaml"
    values = json.loads(json.dumps(dataclasses.asdict(replace(config, algorithm="td3-bc"))))
    file.write_text(yaml.safe_dump(values | {"dataset": "elsewhere", "tracking": "mlflow"}))
    arguments = ["--offline", "-c", str(file), "--dataset", config.dataset, "--steps", "3", "--out", "run", "--json"]
    arguments += ["--force"]  # after three updates it is worse than what was logged, if the data can say at all
    result = CliRunner().invoke(app, ["train", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert figures["updates"] == 3
    assert figures["dataset_steps"] == 600
    assert figures["run_id"] is not None
    assert figures["missing"] == []
    estimate = figures["estimate"]
    assert estimate["best"] in figures["behaviours"]
    for name, difference in estimate["differences"].items():
        less = estimate["estimates"][name]["value"] - estimate["best_reward"]["value"]
        assert difference["value"] == pytest.approx(less)
        low, high = difference["ci95"] or (-1.0, 1.0)
        assert difference["verdict"] == ("better" if low > 0 else "worse" if high < 0 else "cannot be told apart")
    assert "model-based" in estimate["differences"]
    assert PolicyBundle.load(tmp_path / "run" / "bundle").training.run_id == figures["run_id"]
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    assert client.get_metric_history(figures["run_id"], "train/critic_loss")[-1].step == 3
    more = ["train", "--resume", "run", "--steps", "5", "--no-estimate"]
    with pytest.raises(ConfigError, match="nothing else judges the policy; give --force as well"):
        CliRunner().invoke(app, more, catch_exceptions=False)
    more.append("--force")
    again = CliRunner().invoke(app, more, catch_exceptions=False)
    assert again.exit_code == 0, again.output
    assert "5 updates" in again.stdout
    assert "estimated worth" not in again.stdout
    assert PolicyBundle.load(tmp_path / "run" / "bundle").training.run_id == figures["run_id"]
