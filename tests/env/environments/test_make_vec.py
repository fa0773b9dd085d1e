"""``gym.make_vec`` gives lanes that play, bit for bit, what single environments with their seeds play."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers.vector import DictInfoToList, NormalizeObservation, RecordEpisodeStatistics

from slicepilot.configs import ConfigError
from slicepilot.env import ENV_ID, LIVE_ENV_ID
from slicepilot.env.environments.spaces import LEVELS
from slicepilot.env.environments.vector_env import SliceVectorEnv
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend
from slicepilot.env.simulator.scenario import Scenario

# Lanes that compete for CPUs, under periods above and below those of CFS and of the sliding means.
CONTENDED = [("flash-crowd", 0.01, 30), ("multi-promise", 1.0, 40)]


def made(lanes: int = 3, **arguments: Any) -> SliceVectorEnv:
    env = gym.make_vec(ENV_ID, num_envs=lanes, **arguments)
    assert isinstance(env, SliceVectorEnv)
    return env


def one_by_one(lanes: int, **arguments: Any) -> VectorEnv[Any, Any, Any]:
    """Gymnasium's own vector of single environments."""
    mode = {"autoreset_mode": arguments.pop("autoreset_mode")}
    return gym.make_vec(ENV_ID, num_envs=lanes, vectorization_mode="sync", vector_kwargs=mode, **arguments)


def drawn(env: Any, steps: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (steps, *env.action_space.shape)).astype(np.float32)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize(("scenario", "period_s", "steps"), CONTENDED)
def test_a_lane_plays_what_a_single_environment_plays(
    scenario: str, period_s: float, steps: int, mode: AutoresetMode
) -> None:
    """Through ends of runs and resets of some lanes, after which lanes end at different times."""
    arguments: dict[str, Any] = {"scenario": scenario, "control_period_s": period_s, "max_episode_steps": steps}
    arguments["autoreset_mode"] = mode
    fast, slow = made(**arguments), one_by_one(3, **arguments)
    np.testing.assert_array_equal(fast.reset(seed=5)[0], slow.reset(seed=5)[0])
    resets = {13: ([7, None, 3], [True, False, False]), 55: (None, [True, True, False]), 56: (9, [False, True, False])}
    cuts_seen = []
    for n, action in enumerate(drawn(fast, 140)):
        (seen, reward, ended, cut, info), (expected, rewards, _, cuts, infos) = fast.step(action), slow.step(action)
        np.testing.assert_array_equal(seen, expected)
        np.testing.assert_array_equal(reward, rewards.astype(np.float32))
        np.testing.assert_array_equal(cut, cuts)
        assert not ended.any()
        cuts_seen.append(cut)
        assert ("final_obs" in info) == (mode is AutoresetMode.SAME_STEP and bool(cuts.any()))
        for lane in np.flatnonzero(info.get("_final_obs", [])):
            np.testing.assert_array_equal(info["final_obs"][lane], infos["final_obs"][lane])
            for term, values in info["final_info"]["terms"].items():
                assert values[lane] == np.float32(infos["final_info"]["terms"][term][lane])
        for mask in ("_final_obs", "_final_info"):
            np.testing.assert_array_equal(info.get(mask), infos.get(mask))
        if n in resets:
            seed, chosen = resets[n]
            mine, theirs = ({"reset_mask": np.array(chosen)} for _ in range(2))
            np.testing.assert_array_equal(
                fast.reset(seed=seed, options=mine)[0], slow.reset(seed=seed, options=theirs)[0]
            )
    assert np.any(cuts_seen, axis=0).all()
    assert any(cut.any() and not cut.all() for cut in cuts_seen), "lanes end at different times"


def test_lanes_that_start_apart_play_a_trace_from_its_beginning(tmp_path: Path) -> None:
    rates = "".join(f"{n},slice1,{10 + 3 * n}\n" for n in range(40))
    (tmp_path / "rates.csv").write_text("time,slice,mbps\n" + rates)
    document = {
        "name": "measured", "description": "A trace.", "slices": "five-video", "hardware": "andrade",
        "duration_s": 30, "control_period_s": 1,
        "loads": {"slice1": [{"kind": "trace", "trace": {"file": "rates.csv"}}]},
    }  # fmt: skip
    (tmp_path / "measured.yaml").write_text(yaml.safe_dump(document))
    scenario = str(tmp_path / "measured.yaml")
    env, single = made(2, scenario=scenario), gym.make(ENV_ID, scenario=scenario)
    env.reset(seed=1)
    actions = drawn(env, 60)
    for action in actions[:11]:
        env.step(action)
    env.reset(seed=[None, 7], options={"reset_mask": np.array([False, True])})
    single.reset(seed=7)
    for action in actions[11:38]:
        seen, expected = env.step(action)[0], single.step(action[1])[0]
        np.testing.assert_array_equal(seen[1], expected)
        assert not np.array_equal(seen[0], seen[1])


def test_the_first_lane_that_is_seeded_otherwise_changes_no_other() -> None:
    arguments: dict[str, Any] = {"scenario": "flash-crowd", "control_period_s": 0.01}
    one, other = made(**arguments), made(**arguments)
    one.reset(seed=[1, 2, 3])
    other.reset(seed=[9, 2, 3])
    a, b = ([env.step(action)[0] for action in drawn(env, 60)][-1] for env in (one, other))
    np.testing.assert_array_equal(a[1:], b[1:])
    assert not np.array_equal(a[0], b[0])


def test_lanes_of_any_number_differ_and_go_on_without_a_seed() -> None:
    env = made(64, scenario="multi-promise", max_episode_steps=5)
    first = env.reset(seed=0)[0]
    assert env.observation_space.contains(first)
    assert len(np.unique(first, axis=0)) == 64
    again = env.reset()[0]
    assert not (again == first).all(axis=1).any()
    np.testing.assert_array_equal(env.reset(seed=list(range(64)))[0], first)
    unseeded = made(2)
    assert not np.array_equal(*unseeded.reset()[0])


def test_lanes_without_a_generator_of_their_own_get_one_from_a_list_of_seeds() -> None:
    """`SliceVectorEnv` of a backend: a number seeds all lanes together, and they start together."""
    runs = ScenarioRuns(Scenario.from_yaml("multi-promise"))
    env, mask = SliceVectorEnv(SimulatorBackend(runs, 3)), {"reset_mask": np.array([True, False, False])}
    together = env.reset(seed=1)[0]
    with pytest.raises(ConfigError, match=r"lanes share a generator; those of gymnasium.make_vec"):
        env.reset(options=mask)
    apart = env.reset(seed=[1, 2, 3])[0]
    np.testing.assert_array_equal(apart, made(scenario="multi-promise").reset(seed=1)[0])
    assert not np.array_equal(together, apart)
    again = env.reset(seed=[5, 5, 5], options=mask)[0]
    assert [bool((again[k] != apart[k]).any()) for k in range(3)] == [True, False, False]
    copies = SliceVectorEnv(SimulatorBackend(runs, 4, copies=2))
    with pytest.raises(ConfigError, match=r"^seed = a list of 4: these lanes are drawn together: expected a number$"):
        copies.reset(seed=[1, 2, 1, 2])


@pytest.mark.parametrize("how", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_goes_on_as_the_original_with_lanes_that_end_apart(how: Callable[[Any], Any]) -> None:
    env = made(scenario="flash-crowd", control_period_s=0.01, max_episode_steps=20, render_mode="ansi")
    env.reset(seed=3)
    for action in drawn(env, 7):
        env.step(action)
    env.reset(options={"reset_mask": np.array([False, True, False])})
    twin = how(env)
    for action in drawn(env, 50, seed=1):
        mine, theirs = env.step(action), twin.step(action)
        for a, b in zip(mine[:4], theirs[:4], strict=True):
            np.testing.assert_array_equal(a, b)
        assert env.render() == twin.render()
    assert twin.spec == env.spec


def test_vector_wrappers_of_gymnasium_work_on_it() -> None:
    arguments: dict[str, Any] = {"scenario": "multi-promise", "max_episode_steps": 6}
    env = RecordEpisodeStatistics(made(4, **arguments))
    env.reset(seed=0)
    lengths = []
    for n, action in enumerate(drawn(env, 20)):
        *_, info = env.step(action)
        if n == 2:
            env.reset(options={"reset_mask": np.array([True, False, False, False])})
        if "episode" in info:
            lengths.append(info["episode"]["l"].tolist())
    assert lengths[:2] == [[0, 6, 6, 6], [6, 0, 0, 0]]
    normal = NormalizeObservation(made(4, autoreset_mode="NextStep", **arguments))  # it takes no other mode
    normal.reset(seed=0)
    assert sum(normal.step(action)[3].all() for action in drawn(normal, 20)) == 3
    listed = DictInfoToList(made(2, **arguments | {"max_episode_steps": 3}))
    listed.reset(seed=0)
    infos = [listed.step(action)[4] for action in drawn(listed, 3)][-1]
    assert [set(lane) for lane in infos] == [{"terms", "final_obs", "final_info"}] * 2
    assert infos[1]["final_info"]["terms"] == infos[1]["terms"]


@pytest.mark.parametrize("flat", [True, "multidiscrete"])
def test_flat_actions_are_the_table_row_by_row(flat: Any) -> None:
    """In single environments and in vectors; levels are equal steps from -1 to 1, and the last is no limit."""
    arguments: dict[str, Any] = {"scenario": "multi-promise"}
    plain, vector = made(2, **arguments), made(2, flat_actions=flat, **arguments)
    single = gym.make(ENV_ID, flat_actions=flat, **arguments)
    for env in (plain, vector):
        env.reset(seed=1)
    single.reset(seed=1)
    assert vector.single_action_space == single.action_space
    assert single.action_space.shape == (18,)
    vector.action_space.seed(0)
    for _ in range(5):
        action = vector.action_space.sample()
        assert vector.action_space.contains(action)
        table = (action / (LEVELS - 1) * 2 - 1 if flat == "multidiscrete" else action).reshape(2, 6, 3)
        expected = plain.step(table.astype(np.float32))[0]
        np.testing.assert_allclose(vector.step(action)[0], expected, atol=1e-5)
        np.testing.assert_allclose(single.step(action[0])[0], expected[0], atol=1e-5)
    if flat == "multidiscrete":
        single.step(np.full(18, LEVELS - 1))
        knobs = single.unwrapped.loop.knobs  # type: ignore[attr-defined]
        assert np.isinf(knobs.cpu_limit_mcpu).all()
        assert np.isinf(knobs.egress_mbps).all()
    with pytest.raises(ValueError, match=r"^action: shape \(6, 3\): expected \(18,\) or a batch of it$"):
        single.unwrapped.step(np.zeros((6, 3), np.float32))


def test_every_lane_is_rendered() -> None:
    env = made(3, scenario="multi-promise", render_mode="rgb_array", max_episode_steps=12)
    with pytest.raises(gym.error.ResetNeeded, match=r"^render before reset"):
        env.render()
    env.reset(seed=1)
    single = gym.make(ENV_ID, scenario="multi-promise", render_mode="rgb_array", max_episode_steps=12)
    single.reset(seed=2)
    for n, action in enumerate(drawn(env, 11)):
        env.step(action)
        single.step(action[1])
        if n == 4:
            env.reset(options={"reset_mask": np.array([True, False, False])})
    frames: Any = env.render()
    assert [frame.shape for frame in frames] == [(480, 640, 3)] * 3
    np.testing.assert_array_equal(frames[1], single.render())
    assert not np.array_equal(frames[0], frames[1])
    assert made(2).render() is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backend": "testbed"}, r"^backend = 'testbed': vectors of environments are simulated: expected 'simulator'$"),
        ({"scenario": "nothing"}, r"nothing"),
        ({"control_period_s": 60}, r"^control_period_s = 60"),
        ({"render_mode": "human"}, r"^render_mode: unknown 'human'; expected ansi or rgb_array$"),
        ({"flat_actions": "dict"}, r"^flat_actions = 'dict': expected True, False or 'multidiscrete'$"),
        ({"autoreset_mode": "now"}, r"^autoreset_mode = 'now': expected one of NextStep, SameStep, Disabled$"),
        ({"max_episode_steps": 0}, r"^max_episode_steps = 0: expected at least 1$"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        gym.make_vec(ENV_ID, num_envs=2, **arguments)


def test_a_mask_of_no_lane_or_before_the_first_run_is_refused() -> None:
    env = made()
    with pytest.raises(ConfigError, match=r"True for 1 of 3 lanes: .* lanes share a generator"):
        env.reset(options={"reset_mask": np.array([True, False, False])})
    env.reset(seed=1)
    with pytest.raises(ConfigError, match=r"True for 0 of 3 lanes: .*, True for at least one$"):
        env.reset(options={"reset_mask": np.zeros(3, np.bool_)})
    assert gym.spec(LIVE_ENV_ID).vector_entry_point is None
