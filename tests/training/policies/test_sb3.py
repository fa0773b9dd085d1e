"""Policies that Stable-Baselines3 trained on the plain environment: judged as it judges them, and made into bundles."""

from __future__ import annotations

import base64
import json
import os
import pickle
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from sb3_contrib import ARS, TQC, TRPO, CrossQ, RecurrentPPO
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from slicepilot.agents.learned.agent import LearnedAgent
from slicepilot.agents.learned.bundle import PolicyBundle, TrainingRecord
from slicepilot.agents.learned.files import BundleFiles
from slicepilot.agents.learned.onnx_files import bundle_of
from slicepilot.agents.learned.policy_names import PolicyName
from slicepilot.agents.learned.signature import verify
from slicepilot.configs import ConfigError
from slicepilot.controller.service.loaded_policy import load_bundle
from slicepilot.controller.service.trial import Trial
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.evaluation.rollouts import simulate_rollout
from slicepilot.training.policies.load import load_policy
from slicepilot.training.policies.sb3_bundles import Sb3Source
from slicepilot.training.policies.sb3_export import sb3_to_onnx
from slicepilot.training.policies.sb3_files import load_sb3
from tests import command

ENV, PERIOD_S = "slicepilot.env:slicepilot/SliceControl-v0", 30.0
QUICK = replace(Scenario.from_yaml("andrade-ramp"), control_period_s=PERIOD_S)


def slicepilot(*arguments: str, code: int = 0) -> Any:
    done = command.slicepilot(*arguments)
    assert done.returncode == code, done.stderr
    return done


def make_env() -> Any:
    return gym.make(ENV, control_period_s=PERIOD_S)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Knows nothing of slicepilot but the environment's id."""
    folder = tmp_path_factory.mktemp("trained")
    model = PPO("MlpPolicy", make_env(), n_steps=64, batch_size=32, seed=3, device="cpu")
    model.learn(128)
    model.save(folder / "my_ppo")
    return folder / "my_ppo.zip"


@pytest.fixture(scope="module")
def normalised(tmp_path_factory: pytest.TempPathFactory) -> str:
    """With observations that `VecNormalize` has scaled; as ``--policy`` names it."""
    folder = tmp_path_factory.mktemp("normalised")
    env = VecNormalize(DummyVecEnv([make_env]), clip_obs=3.0)
    model = PPO("MlpPolicy", env, n_steps=64, batch_size=32, seed=4, device="cpu")
    model.learn(64)
    model.save(folder / "scaled.zip")
    env.save(str(folder / "vecnormalize.pkl"))
    return f"sb3:{folder}/scaled.zip+{folder}/vecnormalize.pkl"


def sum_of_rewards(model: Any, seed: int, statistics: str | None = None) -> float:
    """What `evaluate_policy` says of the run of a seed."""
    env: Any = DummyVecEnv([make_env])
    if statistics is not None:
        env = VecNormalize.load(statistics, env)
        env.training = env.norm_reward = False
    env.seed(seed)
    rewards, _ = evaluate_policy(model, env, n_eval_episodes=1, return_episode_rewards=True, warn=False)
    env.close()
    assert isinstance(rewards, list)
    return float(rewards[0])


def reward_of(policy: str, seed: int) -> float:
    """What the player of `evaluate` says."""
    return float(simulate_rollout(load_policy(policy), QUICK, 1, seed).reward.sum(dtype=np.float64))


def test_evaluate_says_what_evaluate_policy_says(trained: Path, tmp_path: Path) -> None:
    options = ("--scenario", "andrade-ramp", "--period-ms", "30000", "--agents", "no-control", "--no-mlflow")
    report = tmp_path / "report.html"
    done = slicepilot(
        *("evaluate", "--policy", f"sb3:{trained}", *options, "--seeds", "1", "--seed", "11", "--json"),
        *("--report", str(report), "--results", str(tmp_path / "results")),
    )
    judged = {agent["name"]: agent for agent in json.loads(done.stdout)["scenarios"][0]["agents"]}
    assert list(judged) == ["my_ppo", "no-control"]
    expected = sum_of_rewards(PPO.load(trained, device="cpu"), 11)
    assert judged["my_ppo"]["episode_reward"] == pytest.approx(expected, rel=0, abs=1e-6)
    assert judged["my_ppo"]["return_iqm"] == pytest.approx(expected / 40, rel=0, abs=1e-6)
    assert "my_ppo" in report.read_text()
    assert json.loads((tmp_path / "results" / "results.json").read_text())["scenarios"][0]["subjects"] == ["my_ppo"]


def test_statistics_and_memory_are_carried_along(normalised: str, tmp_path: Path) -> None:
    zip_file, _, statistics = normalised.removeprefix("sb3:").partition("+")
    expected = sum_of_rewards(PPO.load(zip_file, device="cpu"), 7, statistics)
    assert reward_of(normalised, 7) == pytest.approx(expected, rel=0, abs=1e-6)
    assert abs(reward_of(f"sb3:{zip_file}", 7) - expected) > 1e-3, "without them it is another policy"
    recurrent = RecurrentPPO("MlpLstmPolicy", make_env(), n_steps=16, batch_size=16, seed=5, device="cpu")
    recurrent.save(tmp_path / "lstm.zip")
    expected = sum_of_rewards(recurrent, 7)
    assert reward_of(f"sb3:{tmp_path / 'lstm.zip'}", 7) == pytest.approx(expected, rel=0, abs=1e-6)


def converted(policy: str) -> PolicyBundle:
    """As the process that converts does it."""
    name = PolicyName.parse(policy)
    source = load_sb3(Sb3Source.read(name))
    model, agreement = sb3_to_onnx(source, name.what)
    assert agreement.max_abs_error < 1e-5
    return bundle_of(model, name.what, TrainingRecord("x", 0))


def same_decisions(bundle: PolicyBundle, policy: str) -> None:
    """The bundle's agent and the policy's, over a run of several lanes."""
    first, second = (
        simulate_rollout(agent, QUICK, 3, 2) for agent in (LearnedAgent(bundle, transfer=True), load_policy(policy))
    )
    np.testing.assert_allclose(first.reward, second.reward, rtol=0, atol=1e-4)


def test_a_normalised_policy_becomes_the_same_bundle(normalised: str) -> None:
    bundle = converted(normalised)
    assert (bundle.transfers, bundle.coding) == ("same-number", "plain")
    same_decisions(bundle, normalised)


ALGORITHMS: dict[str, Callable[[Any], Any]] = {
    "a2c-squashed": lambda env: A2C("MlpPolicy", env, use_sde=True, policy_kwargs={"squash_output": True}),
    "ppo-relu": lambda env: PPO("MlpPolicy", env, policy_kwargs={"activation_fn": torch.nn.ReLU, "net_arch": [8]}),
    "sac": lambda env: SAC("MlpPolicy", env, buffer_size=10),
    "td3": lambda env: TD3("MlpPolicy", env, buffer_size=10),
    "tqc": lambda env: TQC("MlpPolicy", env, buffer_size=10),
    "crossq": lambda env: CrossQ("MlpPolicy", env, buffer_size=10),
    "trpo": lambda env: TRPO("MlpPolicy", env),
    "ars": lambda env: ARS("LinearPolicy", env),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in ALGORITHMS])
def test_other_algorithms_become_bundles_too(name: str, tmp_path: Path) -> None:
    ALGORITHMS[name](make_env()).save(tmp_path / "policy.zip")
    same_decisions(converted(f"sb3:{tmp_path / 'policy.zip'}"), f"sb3:{tmp_path / 'policy.zip'}")


def test_all_algorithms_are_read(tmp_path: Path) -> None:
    for name, make in ALGORITHMS.items():
        model = make(make_env())
        model.action_space.seed(1)  # a generator in the file
        model.save(tmp_path / f"{name}.zip")
        read = load_sb3(Sb3Source.read(PolicyName.parse(f"sb3:{tmp_path / name}.zip")))
        seen = np.random.default_rng(0).uniform(-1, 1, (4, 100)).astype(np.float32)
        np.testing.assert_array_equal(read.predict(seen)[0], model.predict(seen, deterministic=True)[0])


class Discrete(gym.ActionWrapper):  # type: ignore[type-arg]
    """What DQN needs."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.action_space = gym.spaces.Discrete(2)


def test_what_cannot_be_judged_or_run_says_why(trained: Path, tmp_path: Path) -> None:
    DQN("MlpPolicy", Discrete(make_env()), buffer_size=10).save(tmp_path / "dqn.zip")
    with pytest.raises(ConfigError, match=r"dqn.zip': action_space = Discrete\(2\): expected .* Box from -1 to 1"):
        load_policy(f"sb3:{tmp_path / 'dqn.zip'}")
    stacked = gym.wrappers.FrameStackObservation(make_env(), 2)
    PPO("MlpPolicy", stacked, n_steps=16, batch_size=16, device="cpu").save(tmp_path / "stacked.zip")
    with pytest.raises(ConfigError, match=r"'stacked': observation space .*; expected 100 numbers: 20 for each of 5"):
        reward_of(f"sb3:{tmp_path / 'stacked.zip'}", 0)
    with pytest.raises(ConfigError, match=r"observes 200 numbers and acts by 15; expected 20 and 3 for each slice"):
        converted(f"sb3:{tmp_path / 'stacked.zip'}")
    RecurrentPPO("MlpLstmPolicy", make_env(), n_steps=16, batch_size=16, device="cpu").save(tmp_path / "lstm.zip")
    with pytest.raises(ConfigError, match=r"remembers .*; a bundle decides by what it sees now"):
        converted(f"sb3:{tmp_path / 'lstm.zip'}")
    (tmp_path / "text.zip").write_text("no archive")
    with pytest.raises(ConfigError, match=r"not a file that Stable-Baselines3's save has written \(BadZipFile"):
        load_policy(f"sb3:{tmp_path / 'text.zip'}")
    with pytest.raises(ConfigError, match=r"there.zip': No such file"):
        load_policy("sb3:not/there.zip")
    with pytest.raises(ConfigError, match=r"ppo.zip': write sb3:.*my_ppo.zip"):
        load_policy(str(trained))


def with_data(source: Path, target: Path, **changed: Any) -> Path:
    """A file of Stable-Baselines3 with other pickles in its ``data``."""
    with zipfile.ZipFile(source) as archive, zipfile.ZipFile(target, "w") as result:
        for name in archive.namelist():
            content = archive.read(name)
            if name == "data":
                data = json.loads(content)
                data |= {key: {":serialized:": base64.b64encode(value).decode()} for key, value in changed.items()}
                content = json.dumps(data).encode()
            result.writestr(name, content)
    return target


class Runs:
    """Unpickled, it runs a command."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("key", ["policy_class", "observation_space", "policy_kwargs", "lr_schedule", "_last_obs"])
def test_no_code_of_a_file_is_run(key: str, trained: Path, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    evil = with_data(trained, tmp_path / "evil.zip", **{key: pickle.dumps(Runs(marker))})
    if key in ("lr_schedule", "_last_obs"):  # of no use to a policy, and not even looked at
        load_policy(f"sb3:{evil}")
    else:
        with pytest.raises(ConfigError, match=rf"evil.zip': {key}: needs (posix|os).system, which is code"):
            load_policy(f"sb3:{evil}")
    assert not marker.exists()


class OwnExtractor(torch.nn.Module):
    """A class of the user's."""


@pytest.mark.parametrize(
    "value",
    [
        OwnExtractor,
        b"cos\nsystem\n.",
        b"cstable_baselines3.common.save_util\nload_from_pkl\n.",
        b"ctorch.nn.modules.module\n_global_forward_hooks\n.",
        b"cslicepilot.training.policies.sb3_files\nload_sb3\n.",
    ],
)
def test_classes_of_others_and_functions_are_not_looked_up(value: Any, trained: Path, tmp_path: Path) -> None:
    pickled = value if isinstance(value, bytes) else pickle.dumps({"features_extractor_class": value})
    evil = with_data(trained, tmp_path / "evil.zip", policy_kwargs=pickled)
    with pytest.raises(ConfigError, match=r"is code that the file would run; .* FILE.py:Class"):
        load_policy(f"sb3:{evil}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root could be given another user's file")
def test_root_takes_no_file_that_somebody_else_can_change(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    theirs = folder / "ppo.zip"
    theirs.write_bytes(trained.read_bytes())
    for path in (theirs, folder):
        os.chown(path, 12345, 12345)
        with pytest.raises(ConfigError, match=r"belongs to user 12345; .*make a bundle of it as its user"):
            load_policy(f"sb3:{theirs}")
        os.chown(path, 0, 0)
    done = slicepilot("run", "--policy", f"sb3:{theirs}", "--mode", "live", code=2)
    assert "was not promoted" in done.stderr
    os.chown(theirs, 12345, 12345)
    done = slicepilot("run", "--policy", f"sb3:{theirs}", "--seconds", "1", code=2)
    assert "belongs to user 12345" in done.stderr


def no_path_of_this_machine(*files: Path) -> None:
    for file in files:
        for folder in (Path.home(), Path(__file__).parents[3], tempfile.gettempdir()):
            assert f"{folder}/".encode() not in file.read_bytes(), file


def test_one_command_makes_a_signed_bundle(trained: Path, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "key.pem").write_bytes(private)
    (tmp_path / "public.pem").write_bytes(public)
    call = ("bundle", "import", f"sb3:{trained}", "--out", f"{tmp_path}/made", "--sign", f"{tmp_path}/key.pem")
    document = json.loads(slicepilot(*call, "--json").stdout)
    assert document["signed"]
    assert not document["any_number"]
    assert document["agreement"]["max_abs_error"] < 1e-5
    no_path_of_this_machine(*(tmp_path / "made").iterdir())
    files = BundleFiles.read(tmp_path / "made")
    verify(files, tmp_path / "public.pem")
    bundle = PolicyBundle.load(tmp_path / "made")
    assert bundle.training.env_steps == 128
    same_decisions(bundle, f"sb3:{trained}")
    policy = load_bundle(tmp_path / "made", str(tmp_path / "public.pem"), trial=Trial(5, 0.5))
    assert "never promoted" in policy.refusal, "a controller takes it in shadow, after a trial"
    assert "is there already" in slicepilot(*call, code=2).stderr
    others = ("--out", f"{tmp_path}/other", "--scenario", "flash-crowd", "--no-sign")
    last = slicepilot(*call[:3], *others).stdout.splitlines()[-1]
    assert f"slicepilot evaluate --bundle {tmp_path}/other --scenario flash-crowd, or " in last


@pytest.mark.slow
def test_a_bundle_becomes_files_that_decide_alike(tmp_path: Path) -> None:
    files = ("--sb3", str(tmp_path / "g.zip"), "--onnx", str(tmp_path / "g.onnx"), "--scenario", "multi-promise")
    document = json.loads(slicepilot("bundle", "export", "generalist", *files, "--json").stdout)
    assert (document["algorithm"], document["coding"]) == ("PPO", "guided")
    no_path_of_this_machine(tmp_path / "g.onnx")
    assert PPO.load(tmp_path / "g.zip", device="cpu").action_space.shape == (6, 5)
    played = Scenario.from_yaml("multi-promise")
    quick = replace(played, control_period_s=10.0, duration_s=100.0)
    names = ["generalist", f"onnx:{tmp_path / 'g.onnx'}", f"sb3:{tmp_path / 'g.zip'}"]
    own, *others = (simulate_rollout(load_policy(name), quick, 2, 1) for name in names)
    for run in others:
        np.testing.assert_allclose(run.reward, own.reward, rtol=0, atol=1e-4)
    again = PolicyBundle.load("generalist")
    assert converted(f"sb3:{tmp_path / 'g.zip'}").coding == again.coding
