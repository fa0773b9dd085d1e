"""The Gymnasium environments: spaces, seeds, ends of runs, rendering, reward, errors. Checkers run in test_sb3.py."""

from __future__ import annotations

import itertools
from dataclasses import astuple, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import RecordVideo, RenderCollection

from slicepilot.env import ENV_ID
from slicepilot.env.backend import Context, Receipt
from slicepilot.env.encoding import FEATURES, KnobDecoder
from slicepilot.env.environments.slice_env import SliceEnv
from slicepilot.env.environments.vector_env import SliceVectorEnv
from slicepilot.env.knobs import Knobs
from slicepilot.env.promises import PromiseMeter, cpu_held, promise_score, promise_scores
from slicepilot.env.reward import TERMS, RewardModel, RewardWeights
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.env.slices import Promises
from slicepilot.env.telemetry import Telemetry
from tests.loads import context_of

RAMP = Scenario.from_yaml("andrade-ramp")


def ramp_backend(lanes: int = 1, period_s: float = 30.0) -> SimulatorBackend:
    """40 periods a run."""
    return SimulatorBackend(ScenarioRuns(RAMP, control_period_s=period_s), lanes)


def actions(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def test_made_by_name_and_stepped() -> None:
    env = gym.make(ENV_ID, scenario="multi-promise", control_period_s=0.01)
    observation, info = env.reset(seed=1)
    assert env.observation_space.contains(observation)
    assert env.action_space.shape == (6, 3)
    assert info == {"terms": {}}
    observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
    assert env.observation_space.contains(observation)
    assert isinstance(reward, float)
    assert (terminated, truncated) == (False, False)
    assert tuple(info["terms"]) == TERMS
    env.close()


@pytest.mark.parametrize("period_s", [0.002, 0.05, 1.0, 30.0])
def test_the_control_period_is_a_parameter_that_the_policy_sees(period_s: float) -> None:
    env = SliceEnv(control_period_s=period_s)
    observation, _ = env.reset(seed=0)
    column = observation.reshape(5, -1)[:, FEATURES.index("control_period")]
    expected = np.log(period_s / 0.002) / np.log(30 / 0.002)
    np.testing.assert_allclose(column, expected, atol=1e-5)
    assert env.loop.steps_left == round(1200 / period_s)
    for action in actions(0, 20, 5, 3):
        observation, *_ = env.step(action)
        assert env.observation_space.contains(observation)


@pytest.mark.parametrize("bad", [np.zeros((5, 2)), np.zeros(15), np.full((5, 3), np.nan), np.full((5, 3), np.inf)])
def test_bad_actions_are_refused_and_leave_the_run_as_it_was(bad: np.ndarray) -> None:
    env, untouched = SliceEnv(ramp_backend()), SliceEnv(ramp_backend())
    for each in (env, untouched):
        each.reset(seed=0)
    with pytest.raises(ValueError, match=r"^action: .*: expected "):
        env.step(bad.astype(np.float32))
    action = actions(1, 5, 3)
    np.testing.assert_array_equal(env.step(action)[0], untouched.step(action)[0])


@pytest.mark.parametrize("render_mode", [None, "ansi"])
def test_a_seed_fixes_this_run_and_the_next(render_mode: Any) -> None:
    """Whatever was played before, and whether somebody watches."""

    def play(env: SliceEnv) -> list[np.ndarray]:
        seen = [env.reset(seed=5)[0], *(env.step(action)[0] for action in actions(2, 40, 5, 3))]
        assert env.loop.steps_left == 0
        seen.append(env.reset()[0])
        return seen

    env, watched = SliceEnv(ramp_backend()), SliceEnv(ramp_backend(), render_mode=render_mode)
    first = play(env)
    for again in (play(watched), play(env)):
        np.testing.assert_array_equal(np.stack(first), np.stack(again))
    assert not np.array_equal(first[0], first[-1])


def test_vector_environment_follows_the_vector_api() -> None:
    env = SliceVectorEnv(ramp_backend(lanes=3))
    assert env.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    assert env.num_envs == 3
    assert env.single_action_space.shape == (5, 3)
    assert env.observation_space.shape == (3, 5 * len(FEATURES))
    observation, info = env.reset(seed=0)
    assert (env.observation_space.contains(observation), info) == (True, {})
    ends = 0
    for action in actions(0, 85, 3, 5, 3):
        observation, reward, terminated, truncated, info = env.step(action)
        assert env.observation_space.contains(observation)
        assert (reward.shape, reward.dtype) == ((3,), np.float32)
        assert (terminated.dtype, truncated.dtype) == (np.bool_, np.bool_)
        assert not terminated.any()
        assert truncated.all() == truncated.any() == ("final_obs" in info)
        ends += int(truncated.any())
        if truncated.any():
            assert env.observation_space.contains(info["final_obs"])
            assert info["final_info"]["terms"].keys() == info["terms"].keys()
            assert info["_final_obs"].all()
            assert info["_final_info"].all()
            # The run that follows starts at once: under no control, in its first second.
            first = observation.reshape(3, 5, -1)[:, :, FEATURES.index("cpu_limit")]
            np.testing.assert_array_equal(first, 1.0)
    assert ends == 2
    env.close()


def test_what_a_vector_step_returns_is_not_touched_by_the_next() -> None:
    env = SliceVectorEnv(ramp_backend(lanes=2))
    env.reset(seed=0)
    returned = env.step(actions(0, 2, 5, 3))
    kept = [np.copy(part) for part in returned[:4]], {k: v.copy() for k, v in returned[4]["terms"].items()}
    for action in actions(1, 45, 2, 5, 3):
        env.step(action)
    for part, copy in zip(returned[:4], kept[0], strict=True):
        np.testing.assert_array_equal(part, copy)
    for name, value in returned[4]["terms"].items():
        np.testing.assert_array_equal(value, kept[1][name])


def test_reward_is_the_weighted_sum_of_the_terms_in_info() -> None:
    weights = RewardWeights(sla=2.0, carried=0.7, delay=0.3, cpu_held=0.2, churn=0.11)
    env = SliceVectorEnv(ramp_backend(lanes=4), weights)
    env.reset(seed=0)
    low, high = {"sla": 0, "carried": 0}, {"delay": 0, "cpu_held": 0, "churn": 0}
    for action in actions(0, 50, 4, 5, 3):
        _, reward, _, _, info = env.step(action)
        total = sum(weight * info["terms"][name] for name, weight in zip(TERMS, astuple(weights), strict=True))
        np.testing.assert_allclose(reward, total, rtol=1e-4, atol=1e-5)
        for name, value in info["terms"].items():
            assert np.all((value >= low.get(name, -1)) & (value <= high.get(name, 1))), name


def judged(telemetry: Telemetry, knobs: Knobs, before: Knobs | None = None) -> tuple[dict[str, float], Context]:
    """Reward terms of one lane of the ramp's slices, four CPUs."""
    slices = RAMP.slice_set()
    context = context_of(slices, steps=1)
    decoder = KnobDecoder(slices)
    rows, previous = (decoder.encode(k) for k in (knobs, before or knobs))
    _, terms = RewardModel(RewardWeights.from_yaml(), context)(telemetry, knobs, rows, previous)
    return {name: float(value[0]) for name, value in terms.items()}, context


def all_well() -> Telemetry:
    telemetry = Telemetry.empty(5)
    telemetry.offered_mbps[:] = telemetry.carried_mbps[:] = 80.0
    telemetry.delay_p50_us[:] = 100.0
    telemetry.delay_p99_us[:] = 1000.0
    return telemetry


def test_reward_terms_mean_what_their_documentation_says() -> None:
    free = Knobs.none(5)
    well, context = judged(all_well(), free)
    assert well["sla"] == pytest.approx(1)
    assert well["carried"] == pytest.approx(1)
    assert well["delay"] == pytest.approx(-np.log1p(1.0) / np.log1p(1e4))
    assert well["cpu_held"] == -1  # five UPFs of one thread could take all four CPUs
    assert well["churn"] == 0

    limited = Knobs.none(5)
    limited.cpu_limit_mcpu[:] = 200
    held, _ = judged(all_well(), limited, before=free)
    limited.cpu_limit_mcpu[:] = 400
    assert 0 > held["cpu_held"] > judged(all_well(), limited)[0]["cpu_held"] > -1
    assert -1 <= held["churn"] < 0

    # A broken promise costs at most the slice's share of the weight, and the more the further it is from kept.
    share = float(context.promises.weight[0, 0] / context.promises.weight.sum())
    late = []
    for times in (0.9, 2, 20):
        slow = all_well()
        slow.delay_p99_us[0] = times * context.promises.delay_bound_us[0]
        late.append(judged(slow, free)[0])
    assert late[0]["sla"] == pytest.approx(1)
    assert 1 - share < late[2]["sla"] < late[1]["sla"] < 1 - 0.3 * share
    assert late[2]["delay"] < late[1]["delay"] < well["delay"]

    starved = all_well()
    starved.carried_mbps[1:] = 20.0
    assert judged(starved, free)[0]["carried"] == pytest.approx(0.25, rel=1e-4)
    elsewhere = all_well()
    elsewhere.carried_mbps[0] = 20.0
    assert judged(elsewhere, free)[0]["carried"] == pytest.approx(1)


def test_promises_are_judged_against_what_is_owed() -> None:
    telemetry = all_well()
    _, context = judged(telemetry, Knobs.none(5))
    committed = context.promises.committed_mbps[0, 0]
    telemetry.offered_mbps[0] = 2 * committed
    telemetry.carried_mbps[0] = committed  # more is not promised
    telemetry.carried_mbps[1] = 0.5 * telemetry.offered_mbps[1]
    telemetry.slices[:, 2] = 0  # silent
    telemetry.delay_p99_us[3] = 4 * context.promises.delay_bound_us[3]
    rate, delay = (score[:, 0] for score in promise_scores(telemetry, context))
    np.testing.assert_allclose(rate, [1, 0.5 / 0.99, 1, 1, 1], rtol=1e-4)
    np.testing.assert_allclose(delay, [1, 1, 1, 0.25, 1], rtol=1e-4)
    np.testing.assert_allclose(promise_score(telemetry, context)[:, 0], np.minimum(rate, delay))
    np.testing.assert_array_equal(PromiseMeter(context).broken(telemetry)[:, 0], [0, 1, 0, 1, 0])


def test_a_rate_is_promised_over_an_averaging_window() -> None:
    telemetry = all_well()
    _, context = judged(telemetry, Knobs.none(5))
    meter = PromiseMeter(replace(context, period_s=np.full(1, 0.2, np.float32), num_steps=50))
    carried = telemetry.carried_mbps.copy()
    assert not meter.broken(telemetry).any()
    # What is late by a period comes in the next; what is lost does not.
    telemetry.carried_mbps[:2] *= 0.8
    assert meter.broken(telemetry)[:2].all()
    telemetry.carried_mbps[0] = 1.2 * carried[0]
    telemetry.carried_mbps[1] = carried[1]
    np.testing.assert_array_equal(meter.broken(telemetry)[:, 0], [0, 1, 0, 0, 0])
    telemetry.carried_mbps[:] = carried
    after = [bool(meter.broken(telemetry)[1, 0]) for _ in range(10)]
    assert after == [True] * 8 + [False] * 2
    # A delay is bounded in every period.
    telemetry.delay_p99_us[4] = 1.1 * context.promises.delay_bound_us[4]
    np.testing.assert_array_equal(meter.broken(telemetry)[:, 0], [0, 0, 0, 0, 1])


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_a_rate_that_is_no_number_is_forgotten_with_its_window(odd: float) -> None:
    telemetry = all_well()
    _, context = judged(telemetry, Knobs.none(5))
    meter = PromiseMeter(replace(context, period_s=np.full(1, 0.5, np.float32), num_steps=50))
    carried = telemetry.carried_mbps.copy()
    telemetry.carried_mbps[0] = odd
    meter.broken(telemetry)
    telemetry.carried_mbps[:] = 0.5 * carried
    seen = [meter.broken(telemetry)[0, 0] for _ in range(6)]
    assert seen[-1]


def test_each_lane_has_its_own_averaging_window() -> None:
    """Lanes of other periods side by side are judged as each by itself."""
    random, periods_s = np.random.default_rng(0), (0.2, 0.9, 4.0)
    _, item = judged(all_well(), Knobs.none(5))
    item = replace(item, num_steps=40)
    shape = 5, len(periods_s)
    together = replace(
        item,
        period_s=np.asarray(periods_s, np.float32),
        promises=Promises(*(np.repeat(getattr(item.promises, f.name), 3, axis=1) for f in fields(Promises))),
    )
    meters = [PromiseMeter(replace(item, period_s=np.full(1, p, np.float32))) for p in periods_s]
    meter, seen = PromiseMeter(together), []
    for _ in range(40):
        telemetry = Telemetry.empty(*shape)
        telemetry.offered_mbps[:] = random.uniform(0, 60, shape)
        telemetry.carried_mbps[:] = telemetry.offered_mbps * random.uniform(0.9, 1.05, shape)
        alone = []
        for k, own in enumerate(meters):
            lane = Telemetry.empty(5, 1)
            lane.slices[:] = telemetry.slices[..., k : k + 1]
            alone.append(own.broken(lane)[:, 0])
        seen.append(meter.broken(telemetry))
        np.testing.assert_array_equal(seen[-1], np.stack(alone, axis=1))
    assert np.ptp(np.asarray(seen).mean(axis=(0, 1))) > 0


def test_an_absent_slice_holds_no_cpu() -> None:
    _, context = judged(all_well(), Knobs.none(5))
    knobs = Knobs.none(5)
    knobs.cpu_limit_mcpu[:] = [[500], [500], [500], [500], [np.inf]]
    valid = np.ones((5, 1), bool)
    assert cpu_held(knobs, context, valid) == pytest.approx(3.0)
    valid[4] = False
    assert cpu_held(knobs, context, valid) == pytest.approx(2.0)


def test_what_is_rendered() -> None:
    text = SliceEnv(ramp_backend(), render_mode="ansi")
    picture = SliceEnv(ramp_backend(), render_mode="rgb_array")
    frames = []
    for env in (text, picture):
        env.reset(seed=0)
    for action in actions(0, 39, 5, 3):
        text.step(action)
        picture.step(action)
        frames.append(picture.render())
    shown = text.render()
    assert isinstance(shown, str)
    assert all(len(line) <= 79 for line in shown.splitlines())
    assert all(name in shown for name in RAMP.slice_set().names)
    for frame in frames:
        assert isinstance(frame, np.ndarray)
        assert (frame.shape, frame.dtype) == ((480, 640, 3), np.uint8)
    assert not any(np.array_equal(a, b) for a, b in itertools.pairwise(frames))
    assert SliceEnv(ramp_backend()).render() is None


# Without MoviePy Gymnasium's wrapper is left half made, and says so when it is deleted.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_video_is_recorded_or_what_is_missing_is_said(tmp_path: Path) -> None:
    env = gym.make(ENV_ID, scenario="multi-promise", render_mode="rgb_array", max_episode_steps=8)
    if find_spec("moviepy") is None:
        with pytest.raises(gym.error.DependencyNotInstalled, match=r"(?i)moviepy is not installed"):
            RecordVideo(env, str(tmp_path))
        env = RenderCollection(env)  # what it would record
        env.reset(seed=0)
        for action in actions(0, 8, 6, 3):
            env.step(action)
        frames: Any = env.render()
        assert len(frames) == 9
        return
    recorded = RecordVideo(env, str(tmp_path))
    recorded.reset(seed=0)
    for action in actions(0, 8, 6, 3):
        recorded.step(action)
    recorded.close()
    [video] = tmp_path.glob("*.mp4")
    assert video.stat().st_size > 1000


class Stubborn(SimulatorBackend):
    """A backend that grants no more than half a CPU, as a guard or an operator may."""

    def apply(self, knobs: Knobs) -> Receipt:
        admitted = knobs.copy()
        np.minimum(knobs.cpu_limit_mcpu, 500, out=admitted.cpu_limit_mcpu)
        return Receipt(super().apply(admitted).applied, "cpu_limit_mcpu: capped at 500")


def test_the_policy_sees_the_knobs_that_hold_not_those_it_wanted() -> None:
    env = SliceEnv(Stubborn(ScenarioRuns(RAMP, control_period_s=30.0)))
    env.reset(seed=0)
    observation = env.step(np.ones((5, 3), np.float32))[0].reshape(5, -1)
    shown = observation[:, FEATURES.index("cpu_limit")]
    wanted = KnobDecoder(RAMP.slice_set()).encode(env.loop.knobs)[0, :, 0]
    np.testing.assert_array_equal(env.loop.knobs.cpu_limit_mcpu, 500)
    np.testing.assert_array_equal(shown, wanted)
    assert np.all(shown < 0.9)
