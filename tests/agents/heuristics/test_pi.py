"""The PI controller: where it settles, that it does not wind up, and how slices of less weight give way."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from slicepilot.agents.heuristics.fixed import no_control
from slicepilot.agents.heuristics.pi import Pi, PiGains
from slicepilot.env.arrays import FloatArray
from slicepilot.env.knobs import Knobs
from slicepilot.env.telemetry import Telemetry
from tests.agents.played import play, slice_set
from tests.loads import context_of

GENTLE = PiGains(
    setpoint=0.5, rate=4.0, error_s=0.5, proportional=0.2, integral_s=10.0, release=1.0, give_way=0.0, nice=6.0
)


class Plant:
    """Slices whose p99 delay is bound x (needed / limit)^2, and which carry all that they offer."""

    def __init__(self, slices: Any, gains: PiGains, period_s: float = 1.0) -> None:
        context, size = context_of(slices, period_s=period_s), len(slices)
        self.agent, self.size, self.promises = Pi(gains), size, context.promises
        self.agent.reset(slices, context, 0)
        self.limit: FloatArray = np.full((size, 1), 1000.0, np.float32)
        self.nice = np.zeros((size, 1))

    def step(self, needed_mcpu: float | FloatArray) -> np.ndarray:
        """One period; the p99 delay over the bound that was measured, (S,)."""
        telemetry = Telemetry.empty(self.size)
        over = np.square(needed_mcpu / np.minimum(self.limit, 1000.0))
        telemetry.slices[3] = self.promises.delay_bound_us * over
        knobs = self.agent.decide(telemetry, Knobs.none(self.size))
        self.limit, self.nice = knobs.cpu_limit_mcpu.copy(), knobs.nice
        return np.asarray(over)[:, 0]


@pytest.mark.parametrize("period_s", [0.05, 1.0, 5.0])
def test_settles_at_its_set_point_whatever_the_period(period_s: float) -> None:
    plant = Plant(slice_set(2), GENTLE, period_s)
    over = [plant.step(300.0) for _ in range(int(400 / period_s))]
    np.testing.assert_allclose(over[-1], GENTLE.setpoint, rtol=0.05)
    np.testing.assert_allclose(plant.limit, 300.0 / np.sqrt(GENTLE.setpoint), rtol=0.03)


def test_does_not_wind_up_at_either_end() -> None:
    quick = replace(GENTLE, error_s=0.01)
    plant = Plant(slice_set(2), quick)
    for _ in range(1000):
        plant.step(4000.0)
    assert np.isinf(plant.limit).all()
    # After a thousand periods of too little it takes one of enough to begin to take away, and a few to be there.
    plant.step(100.0)
    assert (plant.limit < 1000).all()
    for _ in range(1000):
        plant.step(1.0)
    np.testing.assert_allclose(plant.limit, 100.0, rtol=1e-5)
    plant.step(2000.0)
    assert (plant.limit > 110.0).all()


def test_a_missing_rate_counts_as_a_delay_does() -> None:
    plant = Plant(slice_set(2), GENTLE)
    for _ in range(200):
        plant.step(100.0)
    low = plant.limit.copy()
    telemetry = Telemetry.empty(2)
    telemetry.slices[0], telemetry.slices[1] = 50.0, 20.0  # offered, carried: no packet came late, but most are lost
    limit = plant.agent.decide(telemetry, Knobs.none(2)).cpu_limit_mcpu
    assert (limit > 1.2 * low).all()


def test_slices_of_less_weight_give_way_to_one_that_misses() -> None:
    def limits(give_way: float) -> list[float]:
        plant = Plant(slice_set(2), replace(GENTLE, give_way=give_way))
        for _ in range(60):
            plant.step(np.asarray([[4000.0], [700.0]], np.float32))
        return plant.limit[:, 0].tolist()

    assert limits(0.0)[1] > 900
    alone, below = limits(3.0)
    assert np.isinf(alone)
    assert below < 500


def test_tuned_gains_keep_promises_with_less_cpu(light: Any, contended: Any) -> None:
    light.steps = 200
    played = play(Pi(), light)
    assert (played.violated < 0.05 * light.steps).all()
    held = np.stack([np.minimum(knobs.cpu_limit_mcpu, 1000.0) for knobs in played.knobs[100:]])
    assert held.mean() < 600
    assert play(Pi(), contended, 4).violated[0].max() < 0.6 * play(no_control(), contended, 4).violated[0].min()
