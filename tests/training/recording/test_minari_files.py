"""Minari datasets hold what episodes hold, load with Minari itself, and touch no other dataset."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import h5py
import minari
import numpy as np
import pytest

from slicepilot.agents.heuristics.registry import make
from slicepilot.configs import ConfigError
from slicepilot.data.episodes.episodes import Episode, EpisodeSet
from slicepilot.data.episodes.files import is_minari
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.recording.minari_files import read_minari, write_minari
from slicepilot.training.recording.recording import record_simulated
from tests.data.episodes.test_files import assert_same

SCENARIO = dataclasses.replace(Scenario.from_yaml("testbed-contention"), duration_s=0.2, control_period_s=0.01)


@pytest.fixture(scope="module")
def episodes() -> EpisodeSet:
    agents = [make(name, SCENARIO.slice_set(), SCENARIO.hardware_spec()) for name in ("random", "experiment-25-scaled")]
    return record_simulated(agents, SCENARIO, 2, 0, RewardWeights.from_yaml())


def test_what_is_written_is_read_again(tmp_path: Path, episodes: EpisodeSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a relative path; the user's own datasets are left alone."""
    home = tmp_path / "home"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(home))
    monkeypatch.chdir(tmp_path)
    ended = dataclasses.replace(episodes.episodes[0], terminated=True, behaviour="ended")
    whole = EpisodeSet((*episodes, ended), episodes.facts)
    write_minari(whole, Path("made/slices-v0"))
    assert is_minari(tmp_path / "made" / "slices-v0")
    assert_same(read_minari(tmp_path / "made" / "slices-v0"), whole)
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["slices-v0"]
    assert not home.exists()


def test_tasks_of_other_kinds_fit_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    observations, actions = rng.random((6, 3), np.float32), rng.random((5, 1), np.float32)
    own = Episode(observations, actions, rng.random(5, np.float32), actions, np.zeros(5), "policy")
    write_minari(EpisodeSet((own,), {}), tmp_path / "pendulum-v0")
    assert_same(read_minari(tmp_path / "pendulum-v0"), EpisodeSet((own,), {}))


def test_minari_loads_it(tmp_path: Path, episodes: EpisodeSet, monkeypatch: pytest.MonkeyPatch) -> None:
    write_minari(episodes, tmp_path / "slices-v3")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    assert list(minari.list_local_datasets()) == ["slices-v3"]
    dataset = minari.load_dataset("slices-v3")
    assert (dataset.total_episodes, dataset.total_steps) == (4, 80)
    assert dataset.observation_space.shape == (100,)
    assert dataset.action_space.shape == (5, 3)
    for stored, own in zip(dataset, episodes, strict=True):
        assert all(map(dataset.observation_space.contains, stored.observations))
        assert all(map(dataset.action_space.contains, stored.actions))
        np.testing.assert_array_equal(stored.rewards, own.rewards)
        assert stored.truncations.tolist() == [False] * 19 + [True]
        assert not stored.terminations.any()
        np.testing.assert_array_equal(stored.infos["wanted"], own.wanted)
        np.testing.assert_array_equal(stored.infos["log_density"], own.log_density)
        np.testing.assert_array_equal(stored.infos["decisions"]["held"], own.decisions["held"])
    metadata = dataset.storage.metadata
    assert metadata["algorithm_name"] == "random, experiment-25-scaled"
    assert metadata["requirements"][0].startswith("slicepilot==")
    assert not {"author", "author_email"} & metadata.keys()
    assert json.loads(metadata["slicepilot"])["facts"] == episodes.facts
    behaviours = [own["behaviour"] for own in dataset.storage.get_episode_metadata(range(4))]
    assert behaviours == [episode.behaviour for episode in episodes]


@pytest.mark.parametrize("name", ["slices", "slices-v", "slices.parquet", "sli ces-v0"])
def test_names_that_minari_does_not_know_are_refused(tmp_path: Path, episodes: EpisodeSet, name: str) -> None:
    with pytest.raises(ConfigError, match="expected NAME-vN") as error:
        write_minari(episodes, tmp_path / name)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_nothing_is_half_written(tmp_path: Path, episodes: EpisodeSet) -> None:
    short = episodes.episodes[0].part(0, 0)
    with pytest.raises(ConfigError, match=r"episode 1: steps = 0: expected 1 or more"):
        write_minari(EpisodeSet((episodes.episodes[0], short), episodes.facts), tmp_path / "slices-v0")
    with pytest.raises(ConfigError, match="plain values"):
        write_minari(EpisodeSet(episodes.episodes, {"x": float("nan")}), tmp_path / "slices-v0")
    assert not list(tmp_path.iterdir())
    write_minari(episodes, tmp_path / "slices-v0")
    with pytest.raises(ConfigError, match="exists; expected a folder that does not"):
        write_minari(episodes, tmp_path / "slices-v0")
    assert_same(read_minari(tmp_path / "slices-v0"), episodes)


def test_damaged_and_foreign_datasets_are_refused_in_one_line(tmp_path: Path, episodes: EpisodeSet) -> None:
    path = tmp_path / "slices-v0"
    write_minari(episodes, path)
    data, metadata = path / "data" / "main_data.hdf5", path / "data" / "metadata.json"
    good, reported = data.read_bytes(), json.loads(metadata.read_text())

    def without(array: str) -> None:
        with h5py.File(data, "a") as file:
            del file[f"episode_1/{array}"]

    header = json.loads(reported["slicepilot"])
    cases: list[tuple[str, Any]] = [
        ("cannot be read", lambda: data.write_bytes(good[: len(good) // 2])),
        ("cannot be read", data.unlink),
        ("cannot be read", lambda: metadata.write_text("{")),
        ("cannot be read", lambda: without("infos/wanted")),
        ("cannot be read", lambda: without("rewards")),
        ("not made by slicepilot", lambda: metadata.write_text(json.dumps({**reported, "slicepilot": None}))),
        ("format = 9", lambda: metadata.write_text(json.dumps({**reported, "slicepilot": json.dumps({"format": 9})}))),
        (
            "4 episodes instead of 3",
            lambda: metadata.write_text(
                json.dumps({**reported, "slicepilot": json.dumps({**header, "episodes": header["episodes"][1:]})})
            ),
        ),
        ("no Minari dataset", metadata.unlink),
    ]
    for expected, damage in cases:
        data.write_bytes(good)
        metadata.write_text(json.dumps(reported))
        damage()
        with pytest.raises(ConfigError, match=expected) as error:
            read_minari(path)
        assert "\n" not in str(error.value)
