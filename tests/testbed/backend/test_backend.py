"""The live environment is the same environment."""

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check
from stable_baselines3.common.env_checker import check_env as sb3_check

from slicepilot.agents.heuristics.fixed import no_control, static_weights
from slicepilot.configs import ConfigError
from slicepilot.controller.guard.config import GuardConfig
from slicepilot.controller.loop.loop import Loop, LoopConfig
from slicepilot.env import LIVE_ENV_ID
from slicepilot.env.environments.slice_env import SliceEnv
from slicepilot.env.knobs import Knobs
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.scenario import EdgeApplication, Load, Scenario
from slicepilot.testbed.backend.backend import TestbedBackend, open_backend
from slicepilot.testbed.backend.guarded import GuardedTestbed
from slicepilot.testbed.lifecycle.processes import ProgramError
from slicepilot.testbed.lifecycle.removal import running, take_down
from slicepilot.testbed.lifecycle.spec import TestbedSpec
from slicepilot.testbed.lifecycle.testbed import Testbed, missing
from slicepilot.training.evaluation.rollouts import interleaved_rollouts
from tests.controller.loop.scripted import active

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"this machine lacks {'; '.join(missing())}")
NAME = "sptb"
LIGHT = {f"slice{i}": (Load("cbr", rate_mbps=4.0, packet_bytes=1000),) for i in range(1, 6)}


def scenario_of(loads: dict[str, tuple[Load, ...]], **events: object) -> Scenario:
    return Scenario("light", "a test", "testbed-five", "testbed", 0.4, 0.02, loads, **events)  # type: ignore[arg-type]


@pytest.fixture
def backend() -> Iterator[TestbedBackend]:
    testbed = Testbed.up(TestbedSpec(name=NAME, burn_us=20))
    live = TestbedBackend(testbed, scenario_of(LIGHT), owned=True)
    yield live
    live.close()
    take_down(NAME)
    assert NAME not in running()


def test_passes_the_environment_checks(backend: TestbedBackend) -> None:
    env = gym.make(LIVE_ENV_ID, backend=backend, disable_env_checker=True).unwrapped
    # A second backend beside it would share its knobs.
    gymnasium_check(env, skip_render_check=True, skip_close_check=True)
    sb3_check(env)


def test_a_second_load_and_a_testbed_that_is_taken_down_are_reported(backend: TestbedBackend) -> None:
    backend.reset(seed=0)
    other = TestbedBackend(backend.testbed, scenario_of(LIGHT))
    try:
        with pytest.raises(ConfigError, match=r"'sptb' carries the loads of another run \(process \d+\)"):
            other.reset(seed=0)
    finally:
        other.close()
    take_down(NAME)
    with pytest.raises(ProgramError, match="'sptb' was taken down during the run"):
        all(backend.wait() >= 0 for _ in range(200))


def test_a_copy_of_real_upfs_is_refused(backend: TestbedBackend) -> None:
    env = SliceEnv(backend)
    env.reset(seed=0)
    for how in (copy.deepcopy, pickle.dumps):
        for each in (env, GuardedTestbed(backend, GuardConfig()), backend):
            with pytest.raises(TypeError, match=r"^TestbedBackend: cannot be copied or pickled: "):
                how(each)
    with pytest.raises(TypeError, match=r"^TestbedBackend: "):
        copy.copy(backend)
    env.step(env.action_space.sample())


def test_measures_what_is_offered_and_carried(backend: TestbedBackend) -> None:
    backend.reset(seed=1)
    seen = [backend.observe().copy() for _ in range(15)]
    offered = np.mean([t.offered_mbps for t in seen], axis=0)
    carried = np.mean([t.carried_mbps for t in seen], axis=0)
    np.testing.assert_allclose(offered, 4.0, rtol=0.25)
    np.testing.assert_allclose(carried, offered, rtol=0.25)
    assert all((t.delay_p99_us[t.carried_mbps > 0] > 0).all() for t in seen)
    assert all(t.valid.all() for t in seen)


def test_knobs_act_and_come_back(backend: TestbedBackend) -> None:
    group = backend.testbed.cgroup("slice2")
    files = [group / name for name in ("cpu.cfs_quota_us", "cpu.shares", "cpu.max", "cpu.weight")]
    before = {path: path.read_text() for path in files if path.exists()}
    assert before
    backend.reset(seed=1)
    knobs = Knobs.none(5)
    knobs.cpu_limit_mcpu[1], knobs.nice[1], knobs.egress_mbps[2] = 300.0, -5.0, 1.0
    receipt = backend.apply(knobs)
    assert receipt.error is None
    assert {path: path.read_text() for path in before} != before
    carried = [float(backend.observe().carried_mbps[2, 0]) for _ in range(40)][20:]
    assert np.mean(carried) == pytest.approx(1.0, rel=0.35)
    backend.close()
    assert not Path(group).exists() or {path: path.read_text() for path in before} == before


def test_the_loop_drives_it_and_leaves_no_trace(backend: TestbedBackend) -> None:
    group = backend.testbed.cgroup("slice1")
    shares = next(path for path in (group / "cpu.shares", group / "cpu.weight") if path.exists())
    before = shares.read_text()
    agent = static_weights(9, backend.slices, 2.0, via="nice")
    report = Loop(backend, active(agent, backend), LoopConfig(max_ticks=20)).run()
    assert report.ticks == 20
    assert report.failed_applies == 0
    assert shares.read_text() != before
    backend._actuator.close()
    assert shares.read_text() == before


def test_an_absent_slice_is_not_valid_and_the_uplink_follows_its_profile(backend: TestbedBackend) -> None:
    loads = LIGHT | {"slice2": (Load("cbr", rate_mbps=60.0, packet_bytes=1400),)}
    events = {"absent": {"slice3": (0.0, 1e6)}, "uplink_profile": ((0.0, 0.02), (1e6, 0.02))}
    backend.play(scenario_of(loads, **events))
    backend.reset(seed=1)
    seen = [backend.observe().copy() for _ in range(15)][5:]
    assert not any(t.valid[2, 0] for t in seen)
    backend.play(scenario_of(LIGHT))
    assert backend.reset(seed=1).valid.all()  # what was absent then is there now
    assert np.mean([t.carried_mbps.sum() for t in seen]) == pytest.approx(20.0, rel=0.3)


def test_agents_take_turns(backend: TestbedBackend) -> None:
    agents = [no_control(), static_weights(9, backend.slices, 2.0)]
    played = [(agent, backend.scenario) for agent in agents]
    order: list[tuple[int, str]] = []
    recordings = interleaved_rollouts(
        played, backend, 2, 0, RewardWeights.from_yaml(), lambda repetition, name: order.append((repetition, name))
    )
    assert [repetition for repetition, _ in order] == [0, 0, 1, 1]
    assert [recording.series.shape for recording in recordings] == [(8, 20, 5, 2)] * 2
    np.testing.assert_allclose(recordings[0].row("offered_mbps").mean((0, 2)), 4.0, rtol=0.25)
    exact = recordings[0].packets_p99_us
    assert exact is not None
    assert exact.shape == (5, 2)
    # A few late packets make a period late, but not one in a hundred of all packets.
    periods = np.quantile(recordings[0].row("delay_p99_us"), 0.99, axis=0)
    assert ((exact > 0) & (exact < 1.2 * periods)).all()


def test_refuses_what_it_cannot_play(backend: TestbedBackend) -> None:
    with pytest.raises(ConfigError, match="cpu_profile"):
        backend.play(scenario_of(LIGHT, cpu_profile=((0.0, 0.5),)))
    with pytest.raises(ConfigError, match=r"edge.threads = 2; expected .* 0"):
        backend.play(scenario_of(LIGHT, edge=EdgeApplication(2)))
    backend.play(scenario_of({"slice1": (Load("tcp", rate_mbps=5.0),)}))
    with pytest.raises(ConfigError, match="tcp"):
        backend.reset(seed=0)


def test_an_edge_application_works_with_what_is_left() -> None:
    scenario = scenario_of(LIGHT, edge=EdgeApplication(1), uplink_profile=((0.0, 0.5), (1.0, 0.5)))
    live = open_backend(scenario, record_packets=True)
    try:
        agents = [(no_control(), scenario)]
        [recording] = interleaved_rollouts(agents, live, 1, 0, RewardWeights.from_yaml())
        assert recording.work_done is not None
        assert recording.work_done[0] > 100
        packets = live.packet_events()
        assert set(packets["slice"]) == {0, 1, 2, 3, 4}
        assert (packets["exit_ns"] > packets["n3_ns"]).all()
        # The link's use is that of the half that is left of it.
        telemetry = live.observe()
        assert telemetry.node[1, 0] == pytest.approx(telemetry.carried_mbps.sum() / 500.0, rel=0.1, abs=1e-3)
    finally:
        live.close()


def test_opens_a_testbed_of_its_own_and_takes_it_down() -> None:
    taken = "sp" in running()
    live = open_backend(scenario_of(LIGHT))
    assert "sp" in running()
    live.close()
    live.close()
    assert ("sp" in running()) == taken
