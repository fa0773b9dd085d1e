"""On problems whose answer is known, each algorithm finds what it promises to find, and behaviour cloning does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from slicepilot.data.episodes.episodes import Episode, EpisodeSet
from slicepilot.env.knobs import NUM_KNOBS
from slicepilot.training.networks.export import random_observations
from slicepilot.training.networks.node_shares import ACTIVE
from slicepilot.training.networks.slice_network import HELD, NetworkConfig
from slicepilot.training.offline.actors import Choice
from slicepilot.training.offline.behaviour_cloning import BehaviourCloning, BehaviourCloningConfig
from slicepilot.training.offline.iql import Iql, IqlConfig, expectile_loss
from slicepilot.training.offline.learner import Batch, Learner
from slicepilot.training.offline.memory import Memory, RewardScale
from slicepilot.training.offline.networks import Networks, SliceNetworks
from slicepilot.training.offline.td3_bc import Td3Bc, Td3BcConfig

from .flat import FlatNetworks

CPU = torch.device("cpu")
DEVICES = [CPU, *([torch.device("cuda")] if torch.cuda.is_available() else [])]
FAST = 3e-3
MAKERS: dict[str, Callable[[Networks], Learner]] = {
    "bc": lambda networks: BehaviourCloning(BehaviourCloningConfig(FAST), networks),
    "td3-bc": lambda networks: Td3Bc(
        Td3BcConfig(
            alpha=8.0, policy_noise=0.05, target_rate=0.05, actor_learning_rate=FAST, critic_learning_rate=FAST
        ),
        networks,
    ),
    "iql": lambda networks: Iql(
        IqlConfig(
            expectile=0.9,
            inverse_temperature=5.0,
            target_rate=0.05,
            actor_learning_rate=FAST,
            critic_learning_rate=FAST,
            value_learning_rate=FAST,
        ),
        networks,
    ),
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


# -- a bandit: two contexts, a good action that was rarely logged, a bad action that was logged often ----------------


GOOD, BAD, GOOD_SHARE = 0.5, -0.5, 0.3


def bandit(steps: int = 1000) -> EpisodeSet:
    """Episodes of one step; the action's sign counts relative to the context's, and near `GOOD` it pays most."""
    rng = np.random.default_rng(0)
    context = rng.choice([-1.0, 1.0], steps)
    chosen = np.where(rng.random(steps) < GOOD_SHARE, GOOD, BAD) + rng.normal(0.0, 0.1, steps)
    reward = 1.0 - np.square(chosen - GOOD)
    return EpisodeSet(
        tuple(episode([c, c], [c * a], [r], terminated=True) for c, a, r in zip(context, chosen, reward, strict=True))
    )


def episode(states: list[float], actions: list[float], rewards: list[float], terminated: bool = False) -> Episode:
    table = np.asarray(actions, np.float32)[:, None]
    return Episode(
        observations=np.asarray(states, np.float32)[:, None],
        actions=table,
        rewards=np.asarray(rewards, np.float32),
        wanted=table,
        log_density=np.full(len(actions), np.nan),
        behaviour="test",
        terminated=terminated,
    )


def flat(episodes: EpisodeSet, gamma: float = 0.9, device: torch.device = CPU) -> tuple[FlatNetworks, Memory]:
    observations = torch.from_numpy(np.concatenate([e.observations for e in episodes]))
    networks = FlatNetworks(observations, 1, (32, 32), device)
    discounts = np.full(episodes.num_steps, gamma, np.float32)
    return networks, Memory.of(episodes, networks, discounts, RewardScale.of(episodes))


def learned(name: str, episodes: EpisodeSet, updates: int, device: torch.device = CPU) -> Learner:
    networks, memory = flat(episodes, device=device)
    learner = MAKERS[name](networks)
    for _ in range(updates):
        learner.update(memory.sample(64))
    return learner


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize("name", list(MAKERS))
def test_all_but_behaviour_cloning_learn_the_best_logged_action(name: str, device: torch.device) -> None:
    learner = learned(name, bandit(), 300, device)
    with torch.no_grad():
        low, high = learner.policy(torch.tensor([[-1.0], [1.0]], device=device)).cpu().squeeze(-1).tolist()
    mean_logged = GOOD_SHARE * GOOD + (1.0 - GOOD_SHARE) * BAD
    for action in (-low, high):
        if name == "bc":
            assert action == pytest.approx(mean_logged, abs=0.15)
        else:
            assert action == pytest.approx(GOOD, abs=0.2)


# -- a chain: the value of an action shows only a step later -----------------------------------------------------


def chain(count: int = 400) -> EpisodeSet:
    """Two steps: the first action's sign decides which state follows, and only that state's reward differs."""
    rng = np.random.default_rng(1)
    result = []
    for _ in range(count):
        first, second = rng.uniform(-1.0, 1.0, 2)
        reached = 1.0 if first > 0 else -1.0
        result.append(episode([0.0, reached, reached], [first, second], [0.0, reached], terminated=True))
    return EpisodeSet(tuple(result))


@pytest.mark.parametrize("name", ["td3-bc", "iql"])
def test_values_reach_back_over_a_step(name: str) -> None:
    learner = learned(name, chain(), 350)
    with torch.no_grad():
        assert float(learner.policy(torch.zeros(1, 1))) > 0.25, "towards the state that pays"
    assert isinstance(learner, Td3Bc | Iql)
    networks, memory = flat(chain())
    start = networks.prepare(torch.zeros(2, 1))
    with torch.no_grad():
        worse, better = learner.critics(start, torch.tensor([[-0.8], [0.8]])).mean(0).tolist()
    scale = float(memory.rewards.max())
    assert better - worse > 1.2 * scale, "values differ by 2 gamma rewards"


# -- parts against closed forms -----------------------------------------------------------------------------------


def test_the_expectile_loss_is_least_at_the_expectile() -> None:
    values = torch.from_numpy(np.random.default_rng(0).normal(size=5000))
    for expectile in (0.3, 0.5, 0.9):
        grid = torch.linspace(-2.0, 2.0, 2001, dtype=torch.float64)
        losses = torch.stack([expectile_loss(values - m, expectile).mean() for m in grid])
        best = float(grid[losses.argmin()])
        above, below = (values - best).clamp(min=0).mean(), (best - values).clamp(min=0).mean()
        assert float(expectile * above - (1.0 - expectile) * below) == pytest.approx(0.0, abs=2e-3)


def choice(mask: Tensor, log_std: float = -0.7) -> Choice:
    raw = torch.randn(len(mask), 2, 3)
    return Choice(raw, torch.ones(3), torch.full((3,), log_std), mask, torch.full_like(raw, 0.25))


def test_likelihoods_are_those_of_pytorchs_distributions_over_present_slices() -> None:
    mask = torch.tensor([[[1.0], [1.0]], [[0.0], [1.0]]])
    item = choice(mask)
    assert item.log_std is not None
    actions = torch.rand(2, 2, 3) - 0.5
    expected = torch.distributions.Normal(torch.tanh(item.raw), item.log_std.exp()).log_prob(actions) * mask
    torch.testing.assert_close(item.log_likelihood(actions), expected.sum((1, 2)))


def test_rewards_are_scaled_to_one_and_centred_unless_episodes_end() -> None:
    rng = np.random.default_rng(0)
    runs = [episode([0.0] * 51, [0.0] * 50, list(rng.normal(3.0, 2.0, 50))) for _ in range(20)]
    rewards = np.concatenate([run.rewards for run in runs]).astype(np.float64)
    scale = RewardScale.of(EpisodeSet(tuple(runs)))
    assert (scale.mean, scale.std) == (pytest.approx(rewards.mean()), pytest.approx(rewards.std()))
    ended = EpisodeSet((episode([0.0, 0.0], [0.0], [4.0], terminated=True), *runs))
    assert RewardScale.of(ended).mean == 0.0


def test_batches_hold_steps_of_the_dataset() -> None:
    """A step's next observation is its own episode's; the last one of an episode that ended counts nothing."""
    held = {"held": np.asarray([False, True])}
    episodes = EpisodeSet(
        (
            replace(episode([0.0, 1.0, 2.0], [0.1, 0.2], [1.0, 2.0]), decisions=held),
            episode([5.0, 6.0], [0.3], [3.0], terminated=True),
            episode([8.0, 9.0], [0.4], [4.0]),
        )
    )
    networks, _ = flat(episodes)
    memory = Memory.of(episodes, networks, np.full(4, 0.5, np.float32), RewardScale())
    batch = memory.sample(500)
    raw = torch.cat([batch.inputs, batch.next_inputs], 1) * networks.std + networks.mean
    columns = torch.stack([batch.rewards, batch.discounts, batch.decided], 1)
    result = torch.unique(torch.cat([raw, batch.actions, columns], 1).round(decimals=3), dim=0)
    expected = torch.tensor(
        [[0, 1, 0.1, 1, 0.5, 1], [1, 2, 0.2, 2, 0.5, 0], [5, 6, 0.3, 3, 0.0, 1], [8, 9, 0.4, 4, 0.5, 1]]
    )
    torch.testing.assert_close(result, expected)


def test_what_held_for_several_periods_is_one_step() -> None:
    """Of at most so many periods, with discounted rewards, and drawn as often as it has periods."""
    chosen_twice = episode([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [0.1] * 3 + [0.2] * 2, [1.0, 2.0, 4.0, 8.0, 16.0])
    held = {"held": np.asarray([False, True, True, False, True])}
    steady = episode([7.0, 8.0, 9.0], [0.3, 0.3], [32.0, 64.0], terminated=True)
    episodes = EpisodeSet((replace(chosen_twice, decisions=held), steady))
    networks, _ = flat(episodes)
    memory = Memory.of(episodes, networks, np.full(7, 0.5, np.float32), RewardScale(), periods=2)
    batch = memory.sample(4000)
    raw = torch.cat([batch.inputs, batch.next_inputs], 1) * networks.std + networks.mean
    columns = torch.stack([batch.rewards, batch.discounts, batch.decided], 1)
    result, counts = torch.unique(
        torch.cat([raw, batch.actions, columns], 1).round(decimals=3), dim=0, return_counts=True
    )
    expected = torch.tensor(
        [
            [0, 2, 0.1, 1 + 0.5 * 2, 0.25, 1],  # two periods of the three
            [3, 5, 0.2, 8 + 0.5 * 16, 0.25, 1],
            [7, 9, 0.3, 32 + 0.5 * 64, 0.0, 1],  # cut anywhere
            [8, 9, 0.3, 64, 0.0, 1],
        ]
    )
    torch.testing.assert_close(result, expected)
    np.testing.assert_allclose(counts / 4000, np.asarray([3, 2, 1, 1]) / 7, atol=0.04)


@pytest.mark.parametrize("name", ["bc", "iql"])
def test_what_is_only_held_is_not_imitated(name: str) -> None:
    """Every other step goes on with the opposite of what was chosen: only the choices count."""
    rng = np.random.default_rng(0)
    chosen = rng.normal(0.5, 0.05, 400)
    runs = [
        replace(episode([0.0, 0.0, 0.0], [a, -a], [0.0, 0.0]), decisions={"held": np.asarray([False, True])})
        for a in chosen
    ]
    learner = learned(name, EpisodeSet(tuple(runs)), 200)
    with torch.no_grad():
        assert float(learner.policy(torch.zeros(1, 1))) == pytest.approx(0.5, abs=0.1)


# -- with the networks for slices ---------------------------------------------------------------------------------


NETWORK = NetworkConfig(width=16)


def tables(count: int, slices: int = 4, seed: int = 0) -> Tensor:
    return torch.from_numpy(random_observations(slices, count, np.random.default_rng(seed)))


def slice_batch(networks: SliceNetworks, seed: int, count: int = 64) -> Batch:
    rng = torch.Generator().manual_seed(seed)
    observations = tables(2 * count, seed=seed)
    return Batch(
        networks.prepare(observations[:count]),
        2.0 * torch.rand(count, 4, NUM_KNOBS, generator=rng) - 1.0,
        torch.randn(count, generator=rng),
        networks.prepare(observations[count:]),
        torch.full((count,), 0.9),
        torch.ones(count),
    )


def slice_learner(name: str, updates: int = 5) -> tuple[SliceNetworks, Learner]:
    torch.manual_seed(3)
    networks = SliceNetworks(NETWORK, CPU)
    learner = MAKERS[name](networks)
    for k in range(updates):
        learner.update(slice_batch(networks, k))
    return networks, learner


@pytest.mark.parametrize("name", list(MAKERS))
def test_what_was_learned_treats_slices_alike(name: str) -> None:
    networks, learner = slice_learner(name)
    table, order = tables(20), torch.randperm(4)
    with torch.no_grad():
        action = learner.policy(table)
        torch.testing.assert_close(action[:, order], learner.policy(table[:, order]), rtol=0, atol=2e-6)
        assert learner.policy(tables(3, slices=9)).shape == (3, 9, NUM_KNOBS)
        if isinstance(learner, Td3Bc | Iql):
            value = learner.critics(networks.prepare(table), action)
            moved = learner.critics(networks.prepare(table[:, order]), action[:, order])
            torch.testing.assert_close(value, moved, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", list(MAKERS))
def test_absent_slices_hold_their_knobs_and_teach_nothing(name: str) -> None:
    networks, learner = slice_learner(name)
    table = tables(20)
    table[..., ACTIVE] = 1.0
    table[:, 1, ACTIVE] = 0.0
    with torch.no_grad():
        torch.testing.assert_close(learner.policy(table)[:, 1], table[:, 1, HELD])
    batch = slice_batch(networks, 9)
    absent = batch.inputs[..., ACTIVE : ACTIVE + 1] < 0.5
    assert absent.any()
    changed = batch._replace(actions=torch.where(absent, -batch.actions, batch.actions))
    learners = []
    for own in (batch, changed):
        _, other = slice_learner(name)
        torch.manual_seed(5)
        other.update(own)
        learners.append(other.state()["networks"])
    for key, value in learners[0].items():
        torch.testing.assert_close(value, learners[1][key], rtol=0, atol=0, msg=key)


@pytest.mark.parametrize("name", list(MAKERS))
def test_a_restored_learner_goes_on_as_if_it_had_never_stopped(name: str) -> None:
    networks, learner = slice_learner(name)
    kept, generator = learner.state(), torch.get_rng_state()
    for k in range(5):
        learner.update(slice_batch(networks, 20 + k))
    _, other = slice_learner(name, updates=0)
    other.restore(kept)
    torch.set_rng_state(generator)
    for k in range(5):
        other.update(slice_batch(networks, 20 + k))
    assert other.updates == learner.updates == 10
    for key, value in learner.state()["networks"].items():
        assert torch.equal(value, other.state()["networks"][key]), key
