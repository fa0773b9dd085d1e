"""Fitted Q evaluation on a chain whose values are known."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slicepilot.training.ope.fitted_q import FittedQConfig, HeldOut, Steps, evaluate, fit_values, folds_of

from ...effort import repetitions

CONFIG = FittedQConfig(
    gamma=0.8, updates=400, regressions=40, batch=128, width=4, learning_rate=0.1, weight_decay=0.0, members=4
)
REWARD = np.asarray([[0.0, 1.0], [2.0, -1.0]])
STAY = np.asarray([[0.9, 0.2], [0.7, 0.4]])
"""Probability to stay in the state, by state and action."""


class Table(nn.Module):
    """State and action as they come, one of four."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs


def exact(policy: tuple[int, int], gamma: float, stay: NDArray[np.float64] = STAY) -> NDArray[np.float64]:
    """(1 - gamma) Q of a policy in both states, by solving Bellman's equation."""
    moves = np.asarray(
        [[stay[s, a], 1 - stay[s, a]] if s == 0 else [1 - stay[s, a], stay[s, a]] for s, a in enumerate(policy)]
    )
    rewards = np.asarray([REWARD[s, a] for s, a in enumerate(policy)])
    return np.asarray((1 - gamma) * np.linalg.solve(np.eye(2) - gamma * moves, rewards), np.float64)


def stayed(steps: Steps) -> NDArray[np.float64]:
    """How often a sample stayed in the state, by state and action."""
    state, action = np.divmod(steps.logged.argmax(1).numpy(), 2)
    same = np.append(state[1:] == state[:-1], False)
    result = [[same[:-1][(state[:-1] == s) & (action[:-1] == a)].mean() for a in range(2)] for s in range(2)]
    return np.asarray(result)


def chain(
    count: int, seed: int, policies: tuple[tuple[int, int], ...], episodes: int = 10, noise: float = 0.0
) -> Steps:
    """Random actions in a chain of two states, cut into episodes of equal length."""
    rng = np.random.default_rng(seed)
    state, action = np.zeros(count + 1, np.int64), rng.integers(0, 2, count)
    for t in range(count):
        stays = rng.uniform() < STAY[state[t], action[t]]
        state[t + 1] = state[t] if stays else 1 - state[t]
    rewards = REWARD[state[:-1], action] + noise * rng.standard_normal(count)
    done = np.stack([np.asarray(policy)[state] for policy in policies])
    return Steps(
        logged=inputs(state[:-1], action),
        later=torch.stack([inputs(state[1:], own[1:]) for own in done]),
        queried=torch.stack([inputs(state[:-1], own[:-1]) for own in done]),
        rewards=torch.as_tensor(rewards, dtype=torch.float32),
        terminated=torch.zeros(count, dtype=torch.bool),
        episode=torch.arange(count) * episodes // count,
    )


def inputs(state: NDArray[np.int64], action: NDArray[np.int64]) -> Tensor:
    return torch.eye(4)[torch.as_tensor(2 * state + action)]


POLICIES = ((0, 0), (1, 0), (1, 1))


def test_the_chains_values_are_found() -> None:
    steps = chain(6000, 1, POLICIES)
    values = np.mean([fit_values(steps, np.ones(10), Table, CONFIG, seed) for seed in range(3)], axis=0)
    first = steps.logged[:, :2].sum(1).bool().numpy()
    sample = stayed(steps)
    np.testing.assert_allclose(sample, STAY, atol=0.03)
    for policy, own in zip(POLICIES, values, strict=True):
        for state, where in enumerate((first, ~first)):
            # Nearer to what the sample says than the sample is to the truth.
            assert own[where].mean() == pytest.approx(exact(policy, CONFIG.gamma, sample)[state], abs=0.025)
            assert own[where].mean() == pytest.approx(exact(policy, CONFIG.gamma)[state], abs=0.08)


def test_what_follows_the_end_is_worth_nothing() -> None:
    steps = chain(3000, 1, ((0, 0),))
    ended = Steps(**{**vars(steps), "terminated": torch.ones(3000, dtype=torch.bool)})
    values = fit_values(ended, np.ones(10), Table, CONFIG, seed=0)[0]
    first = steps.logged[:, :2].sum(1).bool().numpy()
    assert values[first].mean() == pytest.approx(0.2 * REWARD[0, 0], abs=0.03)
    assert values[~first].mean() == pytest.approx(0.2 * REWARD[1, 0], abs=0.03)


def test_episodes_of_weight_zero_do_not_count() -> None:
    steps = chain(4000, 2, POLICIES)
    lies = steps.rewards.clone()
    lies[steps.episode == 4] += 50
    weights = np.ones(10)
    weights[4] = 0
    lied, told = (
        fit_values(Steps(**{**vars(steps), "rewards": rewards}), weights, Table, CONFIG, seed=0)
        for rewards in (lies, steps.rewards)
    )
    np.testing.assert_allclose(lied, told)


def test_intervals_hold_the_value_and_say_how_good_they_are() -> None:
    """A sample of 600 noisy steps misses the value by 0.06 (standard deviation), and its bootstrap knows."""
    policy, hits, draws = (1, 0), 0, repetitions(6, 15)
    for seed in range(draws):
        steps = chain(600, seed, (policy,), episodes=12, noise=1.0)
        share = steps.logged[:, :2].sum().item() / 600
        truth = exact(policy, CONFIG.gamma) @ [share, 1 - share]
        [result] = evaluate(steps, 1, Table, CONFIG)
        hits += int(result.low <= truth <= result.high)
        assert 0.01 < result.diagnostics["sampling_sd"] < 0.15
    assert hits >= 0.8 * draws


def test_held_out_policies_widen_all_intervals() -> None:
    steps = chain(4000, 3, POLICIES)
    true = float(fit_values(steps, np.ones(10), Table, CONFIG, seed=0)[2].mean())
    elsewhere = np.ones(10)
    elsewhere[:2] = 0
    right, wrong = (evaluate(steps, 2, Table, CONFIG, [HeldOut(2, true + lie, elsewhere)]) for lie in (0.0, 1.0))
    for good, bad in zip(right, wrong, strict=True):
        assert good.value == bad.value
        assert good.diagnostics["held_out_error"] < 0.1
        assert bad.diagnostics["held_out_error"] == pytest.approx(1.0, abs=0.1)
        assert bad.high - bad.low > 2 * 1.9 > good.high - good.low


def test_folds_keep_together_what_shares_episodes() -> None:
    def around(*numbers: int) -> HeldOut:
        elsewhere = np.ones(6)
        elsewhere[list(numbers)] = 0
        return HeldOut(0, 0.0, elsewhere)

    assert folds_of([around(0, 1), around(2), around(1, 3)]) == [[0, 2], [1]]
    # Whoever is in all of the data cannot be left out.
    assert folds_of([around(0, 1, 2, 3, 4, 5)]) == []
    assert len(folds_of([around(n) for n in range(6)])) == 4
