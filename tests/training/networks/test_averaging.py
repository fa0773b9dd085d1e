"""The average follows the last tenth of a run, and goes on after a resume."""

import pytest
import torch

from slicepilot.env.environments.spaces import Actions, observation_space
from slicepilot.training.networks.averaging import PolicyAverage
from slicepilot.training.networks.slice_network import NetworkConfig
from slicepilot.training.online.policy import PpoPolicy


def policy() -> PpoPolicy:
    torch.manual_seed(0)
    return PpoPolicy(observation_space(2), Actions(2).space, lambda _: 1e-3, network=NetworkConfig(width=8))


def fill(learned: PpoPolicy, value: float) -> None:
    with torch.no_grad():
        for parameter in learned.parameters():
            parameter.fill_(value)


def mean(average: PolicyAverage) -> float:
    values = torch.cat([parameter.detach().flatten() for parameter in average.policy.parameters()])
    assert float(values.max() - values.min()) < 1e-5
    return float(values[0])


@pytest.mark.parametrize("updates", [50, 2000])
def test_weights_count_by_the_ninth_power_of_their_time(updates: int) -> None:
    learned = policy()
    average = PolicyAverage(learned.deterministic())
    for t in range(updates):
        fill(learned, t / updates)
        average.update()
    # The mean of x on [0, 1] under a weight of x^9.
    assert mean(average) == pytest.approx(10 / 11, abs=2 / updates)
    assert float(next(learned.parameters()).detach().flatten()[0]) == pytest.approx((updates - 1) / updates), (
        "learning is not touched"
    )


def test_it_goes_on_where_it_was() -> None:
    learned, other = policy(), policy()
    item, two = PolicyAverage(learned.deterministic()), PolicyAverage(other.deterministic())
    for t in range(20):
        fill(learned, float(t))
        item.update()
    two.restore(item.state())
    for average, source in ((item, learned), (two, other)):
        fill(source, 40.0)
        average.update()
    assert mean(item) == pytest.approx(mean(two)) != 40.0
