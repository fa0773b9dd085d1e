"""A choice among logged settings takes what is clearly better than no control, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from slicepilot.agents.base import Agent
from slicepilot.agents.heuristics.exploring import ExploringAgent
from slicepilot.agents.heuristics.fixed import FixedAgent, no_control, static_weights
from slicepilot.agents.learned.agent import LearnedAgent
from slicepilot.agents.learned.bundle import PolicyBundle
from slicepilot.configs import ConfigError
from slicepilot.controller.service.trial import try_out
from slicepilot.data.episodes.episodes import EpisodeSet
from slicepilot.data.episodes.files import write_episodes
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.env.slices import SliceSet
from slicepilot.training.evaluation.rollouts import simulate_rollout
from slicepilot.training.offline.choice import LEAST_RUNS, Choice, choose
from slicepilot.training.offline.config import OfflineConfig
from slicepilot.training.offline.train import OfflineResult, train_offline
from slicepilot.training.recording.recording import record_simulated

WEIGHTS = RewardWeights.from_yaml("delay-first")
SCENARIO = replace(Scenario.from_yaml("testbed-contention"), duration_s=1.0, control_period_s=0.01)
WEIGHTED = static_weights(9, SCENARIO.slice_set(), SCENARIO.hardware_spec().logical_cpus)
STARVED = FixedAgent("starved", [50.0, np.inf, np.inf, np.inf, np.inf])


def recorded(agents: Sequence[Agent], runs: int = LEAST_RUNS) -> EpisodeSet:
    return record_simulated(list(agents), SCENARIO, runs, 0, WEIGHTS)


@pytest.fixture(scope="module")
def log() -> EpisodeSet:
    """A better setting by CPU requests, a worse setting, and noise; of each as many runs as are needed."""
    return recorded([no_control(), WEIGHTED, STARVED, ExploringAgent(no_control())])


def chosen(choice: Choice, active: int) -> str:
    [name] = [option.setting.names[0] for option in choice.options if option.chosen and option.active_slices == active]
    return name


def trained(log: EpisodeSet, folder: Path) -> OfflineResult:
    write_episodes(log, folder / "log.parquet")
    config = OfflineConfig.from_yaml("choice").override(dataset=str(folder / "log.parquet"), tracking="none")
    return train_offline(config, folder / "run")


def test_the_bundle_plays_the_setting_that_is_clearly_better(log: EpisodeSet, tmp_path: Path) -> None:
    result = trained(log, tmp_path)
    assert result.choice is not None
    assert result.choice.controls
    assert chosen(result.choice, 5) == WEIGHTED.name
    assert result.choice.left_out == ("exploring-no-control",)
    try_out(result.bundle)  # as `slicepilot run` does before it decides
    learned = LearnedAgent(PolicyBundle.load(tmp_path / "run" / "bundle"), transfer=True)
    own, logged, without = (
        float(simulate_rollout(agent, SCENARIO, 8, 99, WEIGHTS).reward.mean())
        for agent in (learned, WEIGHTED, no_control())
    )
    # On pods of the declared requests: 9 to 1 is 10 levels of nice, 9.3 to 1.
    assert own == pytest.approx(logged, abs=0.02 * (logged - without))


def test_it_leaves_a_number_of_slices_that_was_not_logged_alone(log: EpisodeSet, tmp_path: Path) -> None:
    bundle = trained(log, tmp_path).bundle
    table = np.repeat(log.episodes[0].observations[:1], 6, axis=0)
    action = np.empty((6, 5, 3), np.float32)
    for active in range(6):
        table[active, :, log.facts["encoder"]["features"].index("active")] = np.arange(5) < active
    network = bundle.network()
    network.bind(table, action)
    network.run()
    nothing = np.broadcast_to(np.asarray([1.0, 0.0, 1.0], np.float32), (5, 5, 3))
    assert np.array_equal(action[:5], nothing)
    assert not np.array_equal(action[5], nothing[0])


def test_it_serves_no_other_slices_than_those_of_the_log(log: EpisodeSet, tmp_path: Path) -> None:
    bundle = trained(log, tmp_path).bundle
    fewer = SliceSet(bundle.slices.slices[:4])
    heavier = SliceSet((replace(bundle.slices.slices[0], weight=99.0), *bundle.slices.slices[1:]))
    assert PolicyBundle.load(tmp_path / "run" / "bundle").for_slices(bundle.slices, transfer=True).slices
    with pytest.raises(ConfigError, match=r"slices: 4 given; expected the 5 .*: it holds settings that were logged"):
        bundle.for_slices(fewer, transfer=True)
    with pytest.raises(ConfigError, match=r"slices\.0\.weight = 99\.0"):
        bundle.for_slices(heavier, transfer=True)


def test_few_runs_are_not_enough_however_good(log: EpisodeSet) -> None:
    few = EpisodeSet((*log.of("no-control"), *log.of(WEIGHTED.name).episodes[1:]), log.facts)
    choice = choose(few)
    assert not choice.controls
    assert chosen(choice, 5) == "no-control"
    assert (choice.actions() == choice.actions()[0]).all()


def test_without_runs_of_no_control_there_is_nothing_to_compare_with(log: EpisodeSet) -> None:
    with pytest.raises(ConfigError, match="no run without control"):
        choose(log.of(WEIGHTED.name, "exploring-no-control"))


def test_what_was_not_measured_of_a_setting_counts_as_broken(log: EpisodeSet) -> None:
    """All of its weight but the measured tenth: the rest may have been anything."""
    own = tuple(
        replace(
            episode,
            unmeasured=np.zeros(episode.observations.shape[:2], np.bool_),
            decisions={"unmeasured_share": np.full(len(episode), 0.9, np.float32)},
        )
        for episode in log.of(WEIGHTED.name)
    )
    assert not choose(EpisodeSet((*log.of("no-control"), *own), log.facts)).controls


def test_of_logs_without_a_difference_few_get_a_choice(log: EpisodeSet) -> None:
    """Rewards of which one in seven is far worse, as in the study: the bound has to hold for all settings together."""
    rng = np.random.default_rng(7)
    settings = [no_control(), *(FixedAgent(f"nice-{n}", nice=[-n, 0, 0, 0, 0]) for n in range(1, 9))]
    short = replace(SCENARIO, duration_s=0.02)
    episodes = record_simulated(settings, short, LEAST_RUNS, 0, WEIGHTS)

    def drawn(better: float) -> Choice:
        def rewards(length: int, name: str) -> npt.NDArray[np.float32]:
            value = rng.normal(scale=0.2) - 1.4 * (rng.random() < 1 / 7) + better * (name == "nice-3")
            return np.full(length, value, np.float32)

        own = (replace(episode, rewards=rewards(len(episode), episode.behaviour)) for episode in episodes)
        return choose(EpisodeSet(tuple(own), episodes.facts))

    assert sum(drawn(0.0).controls for _ in range(40)) <= 6  # more than that has a probability of 0.3% at 5%
    assert [chosen(drawn(0.8), 5) for _ in range(5)] == ["nice-3"] * 5
