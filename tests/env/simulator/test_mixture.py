"""What the mixture for any node draws: promises that fit, weights by tightness, nodes with or without the UEs' link."""

from dataclasses import replace

import numpy as np
import pytest

from slicepilot.env.simulator.backend import SimulatorRun
from slicepilot.env.simulator.mixture import MixtureEpisodes

LANES = 400


def drawn(seed: int = 0, **fields: float | tuple[float, float]) -> SimulatorRun:
    """A draw of `widest`, with some fields changed; what is not changed is drawn alike as far as it comes before."""
    episodes = MixtureEpisodes.from_yaml("widest")
    episodes.mixture = replace(episodes.mixture, **fields)  # type: ignore[arg-type]
    return episodes.draw(LANES, np.random.default_rng(seed))


def present(run: SimulatorRun) -> np.ndarray:
    return run.events.absent_from_s > 0


def uplink_promised(run: SimulatorRun) -> np.ndarray:
    """Committed rates over the uplink, (L,)."""
    return (run.promises.committed_mbps * present(run)).sum(axis=0) / run.hardware.uplink_mbps


def test_where_an_operator_admits_promises_they_fit() -> None:
    free, admitted = (uplink_promised(drawn(admitted_share=share)) for share in (0.0, 1.0))
    assert free.max() > 1.5
    assert admitted.max() <= 1.1 * 1.01
    assert (admitted <= free * 1.001 + 0.1).all()


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_tight_bounds_weigh_more_where_they_are_ranked(share: float) -> None:
    promises = drawn(ranked_share=share).promises
    order = np.argsort(promises.delay_bound_us, axis=0)
    by_bound = np.take_along_axis(promises.weight, order, axis=0)
    falls = (np.diff(by_bound, axis=0) <= 0).all(axis=0)
    assert falls.mean() == share


def test_the_widest_mixture_goes_to_32_slices_and_64_cpus() -> None:
    run = MixtureEpisodes.from_yaml("widest").draw(LANES, np.random.default_rng(0))
    count, cpus = present(run).sum(axis=0), run.hardware.logical_cpus
    assert present(run).shape == (32, LANES)
    assert count.min() <= 3
    assert count.max() >= 20
    assert cpus.min() < 1.5
    assert 40 < cpus.max() <= 64.01
