"""An uplink with a class for each slice on real UPFs: guarantee and priority hold, and the FIFO comes back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from slicepilot.env.knobs import Knobs
from slicepilot.env.simulator.scenario import Load, Scenario
from slicepilot.testbed.backend.backend import TestbedBackend
from slicepilot.testbed.lifecycle.removal import take_down
from slicepilot.testbed.lifecycle.spec import TestbedSpec
from slicepilot.testbed.lifecycle.testbed import Testbed, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"this machine lacks {'; '.join(missing())}")
NAME = "spuc"
UPLINK_MBPS = 10.0


@pytest.fixture
def testbed() -> Iterator[Testbed]:
    yield Testbed.up(TestbedSpec(slices="grosvik", uplink_mbps=UPLINK_MBPS, burn_us=0, name=NAME))
    take_down(NAME)


def played(backend: TestbedBackend) -> tuple[np.ndarray, np.ndarray]:
    """Mean rates that both slices carry, Mbit/s, and the medians of their delays, ms, of the last half of a run."""
    backend.reset(seed=1)
    knobs = Knobs.none(2)
    seen = []
    for _ in range(backend.context.num_steps):
        backend.apply(knobs)
        seen.append(backend.observe().slices[[1, 2], :, 0].copy())
    backend.stop_load()
    carried, delay_us = np.median(seen[len(seen) // 2 :], axis=0)
    return carried, delay_us / 1e3


def test_classes_isolate_on_the_testbed(testbed: Testbed) -> None:
    classes = Scenario.from_yaml("testbed-grosvik")
    loads = {name: (Load("cbr", rate, packet_bytes=1236),) for name, rate in (("critical", 4.0), ("best-effort", 12.0))}
    named = {name: replace(each, guarantee_mbps=1.0) for name, each in classes.uplink_classes.items()}
    short = replace(classes, duration_s=1.5, loads=loads, uplink_classes=named)
    backend = TestbedBackend(testbed, short, owned=True)
    try:
        carried, delay_ms = played(backend)
        assert carried[0] == pytest.approx(4.0, rel=0.05), "borrows before best effort, beyond its guarantee"
        assert 4.5 < carried[1] < 6.2
        assert delay_ms[0] < 5.0 < delay_ms[1]
        assert backend.context.traits is not None
        assert backend.context.traits.uplink_classes is not None
        assert backend.context.traits.uplink_classes.all()
        backend.play(replace(short, uplink_classes={}))
        assert not backend.context.traits.uplink_classes.any()
        fifo, fifo_ms = played(backend)
        assert fifo[0] < 3.5, "each loses alike"
        assert fifo_ms[0] > 10.0, "in a queue for all"
    finally:
        backend.close()
