"""Policies treat slices alike and serve any number of them; SAC's starts close to no control."""

import math
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from gymnasium import spaces

from slicepilot.agents.learned.guide import NUM_GUIDED
from slicepilot.agents.learned.guide_kernels import NUM_CORRECTIONS
from slicepilot.env.encoding import CPU_AXIS_PER_THREAD_MCPU, FEATURES, NONE_ABOVE, NUM_FEATURES
from slicepilot.env.environments.spaces import Actions, observation_space
from slicepilot.env.environments.vector_env import ControlLoop
from slicepilot.env.knobs import NUM_KNOBS
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.networks.export import random_observations
from slicepilot.training.networks.node_shares import ACTIVE, with_shares
from slicepilot.training.networks.slice_network import HELD, NetworkConfig
from slicepilot.training.online.policy import PpoPolicy, SacPolicy
from slicepilot.training.online.vec_env import NO_CONTROL

Policy = TypeVar("Policy", PpoPolicy, SacPolicy)


def box(slices: int) -> spaces.Box:
    space = Actions(slices).space
    assert isinstance(space, spaces.Box)
    return space


def make(kind: type[Policy], slices: int) -> Policy:
    torch.manual_seed(0)
    policy = kind(observation_space(slices), box(slices), lambda _: 1e-3, network=NetworkConfig(width=16))
    with torch.no_grad():  # away from the nearly constant start
        for parameter in policy.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return policy


def tables(slices: int, count: int = 50, columns: int = NUM_FEATURES) -> torch.Tensor:
    return torch.from_numpy(random_observations(slices, count, np.random.default_rng(0), columns))


@pytest.mark.parametrize("slices", [2, 5, 64])
def test_actions_follow_a_permutation_of_the_slices(slices: int) -> None:
    policy = make(SacPolicy, slices).deterministic()
    table, order = tables(slices), torch.randperm(slices)
    torch.testing.assert_close(policy(table)[:, order], policy(table[:, order]), rtol=0, atol=2e-6)
    assert float(policy(table).detach().std(0).min()) > 0, "the check means nothing for a constant policy"


def test_values_of_corrections_do_not_depend_on_the_order() -> None:
    table, order = tables(5, columns=NUM_GUIDED), torch.randperm(5)
    policy = make(PpoPolicy, 5)
    torch.testing.assert_close(policy.predict_values(table), policy.predict_values(table[:, order]), rtol=0, atol=1e-5)


def test_values_of_knobs_do_not_depend_on_the_order() -> None:
    table, order = tables(5), torch.randperm(5)
    critic = make(SacPolicy, 5).critic
    actions = torch.rand(len(table), 5, NUM_KNOBS)
    for left, right in zip(critic(table, actions), critic(table[:, order], actions[:, order]), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-5)


def test_shares_are_of_what_the_node_has_now() -> None:
    """Rates over the uplink and CPU time over the node, from encoded telemetry, while the uplink is down to a fifth."""
    scenario = replace(Scenario.from_yaml("link-degradation"), uplink_profile=((0.0, 0.2), (1.0, 0.2)))
    loop = ControlLoop(SimulatorBackend(ScenarioRuns(scenario), 3), RewardWeights.from_yaml())
    table = torch.from_numpy(loop.reset(0))
    for _ in range(20):
        table = torch.from_numpy(loop.step(np.broadcast_to(NO_CONTROL, (3, 5, NUM_KNOBS)))[0])
    shares = with_shares(table)[..., NUM_FEATURES:].numpy()
    telemetry, uplink_mbps = loop.telemetry, 0.2 * 940.0
    assert np.all(telemetry.node[1] == 1), "the check means little for an idle link"
    committed = loop.backend.context.promises.committed_mbps
    for column, rate_mbps in enumerate((telemetry.offered_mbps, committed, telemetry.carried_mbps)):
        np.testing.assert_allclose(shares[:, :, column], rate_mbps.T / uplink_mbps, rtol=1e-3)
    used = telemetry.cpu_use_mcpu / telemetry.cpu_use_mcpu.sum(0) * (1 - telemetry.node[0])
    np.testing.assert_allclose(shares[:, :, 3], used.T, rtol=1e-3)
    owed = np.minimum(telemetry.offered_mbps, committed)
    np.testing.assert_allclose(shares[:, :, 4], owed.T / uplink_mbps, rtol=1e-3)
    np.testing.assert_allclose(shares[:, :, 5], (used * owed / telemetry.carried_mbps).T, rtol=1e-2)
    # Weights for the promises: 10/90, 4/60, 2/50, 1/30 and 1/40, so that control-room comes first and guests last.
    needed = shares[0, :, 4]
    np.testing.assert_allclose(shares[0, 0, 6], 0.0, atol=0.05 * needed.sum())
    np.testing.assert_allclose(shares[0, 3, 6], needed.sum() - needed[3], atol=0.1 * needed.sum())
    np.testing.assert_allclose(shares[0, 1, 6], needed[0], atol=0.05 * needed.sum())
    np.testing.assert_allclose(shares[0, 0, 8:10], 1.0, err_msg="there is room for what nobody outranks")
    least, most = CPU_AXIS_PER_THREAD_MCPU
    limits = least * np.exp(shares[:, :, 12:14] * np.log(most / least))
    cpu_mcpu = (telemetry.cpu_use_mcpu * owed / telemetry.carried_mbps).T
    np.testing.assert_allclose(limits[..., 0], np.clip(cpu_mcpu, *CPU_AXIS_PER_THREAD_MCPU), rtol=1e-2)
    cpu_mcpu = (telemetry.cpu_use_mcpu * committed / telemetry.carried_mbps).T
    np.testing.assert_allclose(limits[..., 1], np.clip(cpu_mcpu, *CPU_AXIS_PER_THREAD_MCPU), rtol=1e-2)
    weight = loop.backend.context.promises.weight
    np.testing.assert_allclose(shares[:, :, 14], (weight / weight.sum(0)).T, rtol=1e-3)
    per_cpu = (weight / weight.sum(0)).T / (1e-3 * cpu_mcpu)
    np.testing.assert_allclose(1e3 ** shares[:, :, 15], per_cpu, rtol=2e-2)


def test_a_silent_slice_keeps_its_rank() -> None:
    """A slice that sends nothing needs nothing, but goes after one whose promise weighs more for what it takes."""
    loop = ControlLoop(
        SimulatorBackend(ScenarioRuns(Scenario.from_yaml("testbed-contention"))), RewardWeights.from_yaml()
    )
    loop.reset(0)
    silent = 0
    for _ in range(400):
        table = torch.from_numpy(loop.step(np.broadcast_to(NO_CONTROL, (1, 5, NUM_KNOBS)))[0])
        shares = with_shares(table)[0, :, NUM_FEATURES:].numpy()
        if table[0, 3, FEATURES.index("offered_mbps")] == 0:
            silent += 1
            assert shares[3, 5] == 0
            assert shares[0, 7] < 0.35 * shares[1:, 5].sum(), "hardly anything goes before slice 1"
            assert shares[3, 7] > 0.7 * shares[0, 5], "slice 1 goes before it"
    assert silent > 50


@pytest.mark.parametrize(
    ("kind", "columns", "actions"), [(PpoPolicy, NUM_GUIDED, NUM_CORRECTIONS), (SacPolicy, NUM_FEATURES, NUM_KNOBS)]
)
def test_one_state_dict_serves_any_number_of_slices(kind: Any, columns: int, actions: int) -> None:
    weights = make(kind, 5).state_dict()
    for slices in (2, 3, 17, 64):
        policy = make(kind, slices)
        policy.load_state_dict(weights)
        action = policy.deterministic()(tables(slices, columns=columns))
        assert action.shape == (50, slices, actions)
        assert bool((action.abs() <= 1).all())


def test_absent_slices_hold_their_knobs_and_influence_nobody() -> None:
    policy = make(SacPolicy, 5).deterministic()
    table = tables(5)
    table[..., ACTIVE] = 1.0
    table[:, 2, ACTIVE] = 0.0
    action = policy(table)
    torch.testing.assert_close(action[:, 2], table[:, 2, HELD])
    others = [0, 1, 3, 4]
    torch.testing.assert_close(action[:, others], policy(table[:, others]), rtol=0, atol=2e-6)
    nobody = table.clone()
    nobody[..., ACTIVE] = 0.0
    torch.testing.assert_close(policy(nobody), nobody[..., HELD])


def test_an_untrained_policy_is_generous() -> None:
    torch.manual_seed(0)
    policy = SacPolicy(observation_space(5), box(5), lambda _: 1e-3)
    table = tables(5)
    table[..., ACTIVE] = 1.0
    action = policy.deterministic()(table).detach()
    assert float(action[..., 0].min()) > 0.7
    assert float(action[..., 2].min()) > NONE_ABOVE
    assert float(action[..., 1].abs().max()) < 0.1


def test_ppo_likelihood_is_that_of_a_gaussian_over_present_slices() -> None:
    policy = make(PpoPolicy, 3)
    table = tables(3, 20, NUM_GUIDED)
    flat = table.reshape(20, 3 * NUM_GUIDED)
    actions, values, log_prob = policy(flat)
    again_values, again, entropy = policy.evaluate_actions(flat, actions.reshape(20, -1))
    torch.testing.assert_close(log_prob, again, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(values, again_values)
    mean = policy(flat, deterministic=True)[0]
    std = policy.log_std.exp()
    expected = torch.distributions.Normal(mean, std).log_prob(actions).sum(2)
    mask = table[..., ACTIVE]
    torch.testing.assert_close(log_prob, (expected * mask).sum(1), rtol=1e-3, atol=1e-3)
    per_slice = float(policy.log_std.detach().sum()) + 0.5 * NUM_CORRECTIONS * math.log(2 * math.pi * math.e)
    torch.testing.assert_close(entropy, per_slice * mask.sum(1), rtol=1e-4, atol=1e-4)
    assert bool((actions[mask < 0.5] == 0).all())
