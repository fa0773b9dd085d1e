"""Fine-tuning improves a bad policy, never leaves the guard's envelope, can be stopped, and keeps the better policy."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from slicepilot.agents.heuristics.exploring import ExploringAgent, RandomAgent
from slicepilot.agents.heuristics.fixed import no_control
from slicepilot.agents.learned.bundle import PolicyBundle
from slicepilot.cli.train.train import train as train_command
from slicepilot.configs import ConfigError, available
from slicepilot.controller.guard.backend import GuardedBackend
from slicepilot.controller.guard.config import Floor, Floors, GuardConfig
from slicepilot.data.episodes.files import read_episodes, write_episodes
from slicepilot.env.encoding import KnobDecoder
from slicepilot.env.knobs import Knobs
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.finetune.config import FinetuneConfig
from slicepilot.training.finetune.train import JUDGED_SEEDS, finetune
from slicepilot.training.networks.averaging import PolicyAverage
from slicepilot.training.offline.actors import SliceActor
from slicepilot.training.offline.config import OfflineConfig
from slicepilot.training.offline.networks import SliceNetworks
from slicepilot.training.offline.train import make_learner
from slicepilot.training.recording.recording import record_simulated, run
from slicepilot.training.runs.checkpoint import FILE_NAME, Checkpoint
from slicepilot.training.runs.run import plain_config

SCENARIO = replace(Scenario.from_yaml("testbed-contention"), duration_s=1.0, control_period_s=0.01)
FLOORS = GuardConfig(floor=Floors(default=Floor(cpu_limit_mcpu=100.0, egress_mbps=5.0)))
CONFIG = FinetuneConfig("simulator", guard="default", rounds=2, episodes=1, updates=10, seconds=0.5, judged_runs=2)
CONFIG = replace(CONFIG, tracking="none")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """No control, noise around it, and random knobs: 3 episodes of 100 steps."""
    agents = [no_control(), ExploringAgent(no_control()), RandomAgent()]
    file = tmp_path_factory.mktemp("log") / "log.parquet"
    write_episodes(record_simulated(agents, SCENARIO, 1, 0, RewardWeights.from_yaml("delay-first")), file)
    return file


def offline_run(dataset: Path, starving: bool, **td3_bc: float) -> Checkpoint:
    """A run of TD3+BC that has just begun; a starving policy leaves hardly any CPU to anybody."""
    values = {"algorithm": "td3-bc", "dataset": str(dataset), "updates": 1, "batch_steps": 64, "td3_bc": td3_bc}
    config = OfflineConfig.of(values | {"network": {"width": 16}, "tracking": "none"}, "test")
    torch.manual_seed(0)
    learner = make_learner(config, SliceNetworks(config.network, torch.device("cpu")))
    assert isinstance(learner.actor, SliceActor)
    if starving:
        learner.actor.head.head.out.bias.data[0] = -0.5
    average = PolicyAverage(learner.actor.deterministic())
    state = learner.state()
    return Checkpoint(
        config=plain_config(config),
        steps=0,
        updates=0,
        elapsed_s=0.0,
        run_id=None,
        policy=state["networks"],
        average=average.state(),
        optimizers=state["optimizers"],
        scaler={},
    )


@pytest.fixture(scope="module")
def offline(dataset: Path) -> Checkpoint:
    return offline_run(dataset, starving=True, actor_learning_rate=3e-3, critic_learning_rate=3e-3)


def simulated(guard: GuardConfig | None = None) -> Any:
    return lambda scenario: GuardedBackend(SimulatorBackend(ScenarioRuns(scenario)), guard or GuardConfig())


# -- the guard -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("std", [0.1, 10.0])
def test_however_wild_the_noise_what_is_applied_stays_in_the_envelope(std: float) -> None:
    backend = simulated(FLOORS)(SCENARIO)
    agent = ExploringAgent(no_control(), std, hold_periods=1)
    backend.prepare(agent)
    [episode] = run(backend, agent, 3).episodes(RewardWeights.from_yaml(), {})
    knobs, _ = KnobDecoder(backend.slices).decode(episode.actions)
    assert (knobs.cpu_limit_mcpu >= 100.0 * (1 - 1e-4)).all()
    assert (knobs.egress_mbps >= 5.0 * (1 - 1e-4)).all()
    for side, within in ((0, np.greater_equal), (1, np.less_equal)):
        assert within(knobs.nice, backend.slices.bound("nice", side)).all()
    wanted, _ = KnobDecoder(backend.slices).decode(episode.wanted)
    reported = backend.interventions
    assert reported.ticks == 100
    if std > 1:
        assert (wanted.cpu_limit_mcpu < 100.0).any()
        assert reported.reasons["floor"] > 0
        # A knob that flips at every tick rests at the higher value.
        assert reported.reasons["oscillation"] > 50
        assert reported.touched_ratio > 0.9


def test_runs_do_not_share_a_guard_and_simulated_time_is_its_clock() -> None:
    backend = simulated()(SCENARIO)
    agent = ExploringAgent(no_control(), 10.0, hold_periods=1)
    first = run(backend, agent, 3).episodes(RewardWeights.from_yaml(), {})[0]
    again = run(backend, agent, 3).episodes(RewardWeights.from_yaml(), {})[0]
    np.testing.assert_array_equal(first.actions, again.actions)
    with pytest.raises(ValueError, match="num_lanes = 2"):
        GuardedBackend(SimulatorBackend(ScenarioRuns(SCENARIO), 2), GuardConfig())
    with pytest.raises(RuntimeError, match="reset"):
        simulated()(SCENARIO).apply(Knobs.none(5))


# -- whole runs ----------------------------------------------------------------------------------------------------


def test_a_bad_policy_becomes_better_and_is_saved(tmp_path: Path, offline: Checkpoint) -> None:
    config = replace(CONFIG, rounds=3, updates=200, seconds=1.0, judged_runs=4, noise_std=0.3)
    reported: list[float] = []
    result = finetune(config, offline, tmp_path, simulated(), report=lambda share, _: reported.append(share))
    verdict = result.verdict
    assert verdict.kept == "fine-tuned"
    assert verdict.difference.low > 0.1 * abs(verdict.returns["offline"].mean())
    assert reported == sorted(reported)
    assert 0 <= reported[0] < reported[-1] < 1
    record = PolicyBundle.load(tmp_path / "bundle").training
    assert record.env_steps == 600
    assert "fine-tuned on scenario testbed-contention (simulator)" in record.source
    assert record.config["finetune"]["kept"] == "fine-tuned"
    episodes = read_episodes(tmp_path / "episodes")
    assert episodes.behaviours == ("td3-bc-round-0", "td3-bc-round-1", "td3-bc-round-2")
    assert [episode.info["seed"] for episode in episodes] == [0, 1, 2]
    for done, episode in zip(result.rounds, episodes, strict=True):
        assert done.mean_return == pytest.approx(float(episode.rewards.sum()))
    assert max(episode.info["seed"] for episode in episodes) < JUDGED_SEEDS


def test_a_policy_that_has_become_worse_is_not_saved(tmp_path: Path, dataset: Path) -> None:
    """The log's rewards turned upside down teach it to do harm."""
    log = read_episodes(dataset)
    upside_down = tmp_path / "log.parquet"
    turned = tuple(
        replace(e, rewards=-e.rewards, terms={name: -values for name, values in e.terms.items()}) for e in log
    )
    write_episodes(replace(log, episodes=turned), upside_down)
    start = offline_run(upside_down, starving=False, alpha=100.0, actor_learning_rate=1e-2, critic_learning_rate=1e-2)
    config = replace(CONFIG, rounds=1, updates=150, new_share=0.01, judged_runs=3)
    result = finetune(config, start, tmp_path / "out", simulated())
    assert result.verdict.kept == "offline"
    assert result.verdict.difference.high < 0
    record = PolicyBundle.load(tmp_path / "out" / "bundle").training
    assert record.source == f"dataset {upside_down}"
    assert record.config["finetune"]["kept"] == "offline"


def stopped_at(text: str) -> Any:
    def report(_: float, reported: str) -> None:
        if reported.startswith(text):
            raise KeyboardInterrupt

    return report


def test_a_run_that_was_stopped_goes_on_with_the_next_round(tmp_path: Path, offline: Checkpoint) -> None:
    config = replace(CONFIG, rounds=3)
    whole, part = tmp_path / "whole", tmp_path / "part"
    for folder, text in ((whole, "judging"), (part, "round 2")):
        with pytest.raises(KeyboardInterrupt):
            finetune(config, offline, folder, simulated(), report=stopped_at(text))
        assert not (folder / "bundle").exists()
    checkpoint = Checkpoint.read(part)
    assert len(checkpoint.config["rounds"]) == 1
    with pytest.raises(KeyboardInterrupt):
        finetune(
            FinetuneConfig.resumed(checkpoint.config["finetune"], None),
            checkpoint,
            part,
            simulated(),
            report=stopped_at("judging"),
        )
    item, other = Checkpoint.read(whole), Checkpoint.read(part)
    assert item.config == other.config
    assert item.updates == other.updates == 30
    for key in ("learner", "offline"):
        for name, value in item.policy[key].items():
            assert torch.equal(value, other.policy[key][name]), name
    assert len(read_episodes(part / "episodes")) == 3
    with pytest.raises(ConfigError, match=r"noise_std = 0\.5: expected 0\.1"):
        FinetuneConfig.resumed(checkpoint.config["finetune"], replace(config, noise_std=0.5))


def test_a_backend_is_closed_whatever_happens(tmp_path: Path, offline: Checkpoint) -> None:
    closed = []

    class Watched(GuardedBackend):
        def close(self) -> None:
            closed.append(self.interventions.ticks)

    def opened(scenario: Scenario) -> GuardedBackend:
        return Watched(SimulatorBackend(ScenarioRuns(scenario)), GuardConfig())

    with pytest.raises(KeyboardInterrupt):
        finetune(CONFIG, offline, tmp_path, opened, report=stopped_at("round 1: return"))
    assert closed == [50]


# -- the command ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", available("finetune"))
def test_shipped_configurations_are_valid(name: str) -> None:
    config = FinetuneConfig.from_yaml(name)
    assert config.backend == name
    GuardConfig.from_yaml(config.guard)


def test_the_command_says_what_has_come_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], offline: Checkpoint
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log").mkdir()
    offline.write(tmp_path / "log" / FILE_NAME)
    Path("mine.yaml").write_text(yaml.safe_dump(plain_config(replace(CONFIG, rounds=1))))
    train_command(config="mine.yaml", finetune=Path("log"), seed=3, as_json=True)
    figures = json.loads(capsys.readouterr().out)
    assert figures["kept"] in ("offline", "fine-tuned")
    assert figures["difference"]["low"] <= figures["difference"]["value"] <= figures["difference"]["high"]
    assert [done["guard_touched_ratio"] for done in figures["rounds"]] == [pytest.approx(0.5, abs=0.5)]
    folder = Path("runs/finetune-td3-bc-simulator-seed3")
    assert figures["bundle"] == str(folder / "bundle")
    assert FinetuneConfig.from_yaml(folder / "config.yaml") == replace(CONFIG, rounds=1, seed=3)
    with pytest.raises(ConfigError, match="this is a fine-tuning run; expected an offline run"):
        train_command(config="simulator", finetune=folder)
    with pytest.raises(ConfigError, match="seed = 4: expected 3"):
        train_command(resume=folder, seed=4)


@pytest.mark.parametrize(
    ("algorithm", "arguments", "message"),
    [
        ("ppo", {}, "a run of 'ppo'; expected a run of train --offline"),
        ("bc", {}, "a run of 'bc'; expected a run of train --offline"),
        (None, {"config": None}, "config = None: accepted with --finetune"),
        (None, {"config": "simulatr"}, "finetune: unknown name 'simulatr'; did you mean simulator"),
        (None, {"finetune": Path("nosuch")}, "finetune = 'nosuch': no checkpoint"),
        (None, {"steps": 3}, "steps = '3': accepted without fine-tuning"),
        (None, {"resume": Path("log")}, "resume = 'log': accepted without fine-tuning"),
        (None, {"out": Path("log")}, "out = 'log': expected another folder"),
        (None, {"scenario": "andrade-ramp"}, "scenario = 'andrade-ramp': expected the slices of dataset"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    offline: Checkpoint,
    algorithm: str | None,
    arguments: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log").mkdir()
    config = offline.config | ({} if algorithm is None else {"algorithm": algorithm})
    replace(offline, config=config).write(Path("log") / FILE_NAME)
    with pytest.raises(ConfigError, match=message) as caught:
        train_command(**({"config": "simulator", "finetune": Path("log")} | arguments))
    assert "\n" not in str(caught.value)
    assert not Path("runs").exists()
