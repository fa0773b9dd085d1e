"""Runs whose every cause is set by the test: a quiet node, constant loads, fixed knobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from slicepilot.env.arrays import FloatArray
from slicepilot.env.knobs import KNOB_FIELDS, Knobs, NiceScope
from slicepilot.env.simulator import kernels
from slicepilot.env.simulator.backend import RunSource, SimulatorBackend
from slicepilot.env.simulator.hardware import Hardware
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import SLICE_FIELDS
from tests.loads import QUIET, Loads, slice_set


@dataclass
class Record:
    """A run: telemetry (T, F, S, L) by field name, and per period what was arriving, leaving, dropped and queued."""

    slices: FloatArray
    node: FloatArray
    valid: np.ndarray
    left_mbit: FloatArray  # (T, S, L)
    dropped_mbit: FloatArray  # (T, 3, S, L)
    queues_mbit: FloatArray  # (T + 1, 3, S, L), before the first period and after each
    period_s: FloatArray

    def __getitem__(self, name: str) -> FloatArray:
        return self.slices[:, SLICE_FIELDS.index(name)]

    def end(self, name: str, periods: int = 5) -> FloatArray:
        """Mean over the last periods of lane 0, (S,)."""
        return self[name][-periods:, :, 0].mean(axis=0)


QUEUES = [kernels.N3_MBIT, kernels.PACER_MBIT, kernels.UPLINK_MBIT]


def play(
    episodes: RunSource,
    knobs: Knobs | Callable[[int], Knobs] | None = None,
    *,
    lanes: int = 1,
    seed: int = 0,
    steps: int | None = None,
) -> Record:
    """Play a run to its end, or ``steps`` periods of it, under fixed knobs or those that ``knobs(step)`` gives."""
    backend = SimulatorBackend(episodes, lanes)
    backend.reset(seed)
    engine, period_s = backend.engine, backend.context.period_s
    queues, rows = [engine.state[QUEUES].copy()], []
    for step in range(steps or backend.context.num_steps):
        if knobs is not None:
            backend.apply(knobs(step) if callable(knobs) else knobs)
        telemetry = backend.observe().copy()
        queues.append(engine.state[QUEUES].copy())
        left = engine.state[kernels.TX_MBPS] * period_s
        rows.append((telemetry.slices, telemetry.node, telemetry.valid, left, engine.dropped_mbit.copy()))
    slices, node, valid, left_mbit, dropped = (np.stack(column) for column in zip(*rows, strict=True))
    return Record(slices, node, valid, left_mbit, dropped, np.stack(queues), period_s)


def knobs_of(count: int, scope: NiceScope = "group", **columns: Any) -> Knobs:
    """Knobs of one lane: named columns with a value per slice or one for all, nothing set elsewhere."""
    knobs = Knobs.none(count, nice_scope=scope)
    for name, column in columns.items():
        knobs.values[KNOB_FIELDS.index(name), :, 0] = column
    return knobs


@pytest.fixture(scope="session", name="slice_set")
def _slice_set() -> Callable[..., SliceSet]:
    return slice_set


@pytest.fixture(scope="session", name="Loads")
def _loads() -> type[Loads]:
    return Loads


@pytest.fixture(scope="session", name="play")
def _play() -> Callable[..., Record]:
    return play


@pytest.fixture(scope="session", name="knobs_of")
def _knobs_of() -> Callable[..., Knobs]:
    return knobs_of


@pytest.fixture(scope="session")
def quiet() -> Hardware:
    return QUIET
