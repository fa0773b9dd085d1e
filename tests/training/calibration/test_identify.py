"""The fit finds hardware again that it is shown through its behaviour alone."""

from dataclasses import replace

import numpy as np

from slicepilot.env.slices import SliceSet
from slicepilot.training.calibration import identify
from slicepilot.training.calibration.fitting import compare


def test_a_schedule_is_reproducible_and_differs_by_seed() -> None:
    start = identify.first_guess(100, 1000, 20, 10)
    first, again, other = (identify.draw_schedule("testbed-five", start, 6, seed) for seed in (0, 0, 1))
    assert [segment.scenario for segment in first] == [segment.scenario for segment in again]
    assert [segment.scenario for segment in first] != [segment.scenario for segment in other]


def test_the_fit_recovers_the_cost_of_a_packet_and_generalises() -> None:
    slices = SliceSet.from_yaml("testbed-five")
    start = identify.first_guess(100, 1000, 20, 10)
    truth = replace(start, upf_cost_us=140.0, rx_cost_us=8.0, n3_buffer_packets=60.0)
    fitted_on, unseen = (identify.draw_schedule("testbed-five", start, 16, seed) for seed in (0, 1))
    observed = identify.simulate(fitted_on, slices, truth, seed=5)
    result = identify.fit(fitted_on, observed, slices, start, generations=25)
    before, after = (
        compare(identify.simulate(unseen, slices, truth, 6), identify.simulate(unseen, slices, hardware, 7))
        for hardware in (start, result)
    )
    assert abs(result.upf_cost_us - 140.0) < 14.0
    assert np.median(after.throughput_pct) < np.median(before.throughput_pct)
    assert after.summary()["throughput_median_pct"] < 5.0
    assert after.summary()["delay_p99_median_factor"] < 1.3
