"""What is written into a ring, and what comes out of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slicepilot.controller.record.ring import Tick, TickRing
from slicepilot.controller.record.ring_reader import TickReader
from slicepilot.env.knobs import KNOB_FIELDS, Knobs
from slicepilot.env.telemetry import Telemetry
from tests.effort import examples

SLOTS = 4


def random_knobs(rng: np.random.Generator, count: int) -> Knobs:
    return Knobs(rng.uniform(1, 900, (3, count, 1)).astype(np.float32))


def same(record: np.ndarray, knobs: Knobs) -> None:
    for row, name in enumerate(KNOB_FIELDS):
        np.testing.assert_array_equal(record[row], getattr(knobs, name)[:, 0])


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(count=st.integers(1, 20), ticks=st.integers(1, 2 * SLOTS), seed=st.integers(0, 1000))
def test_a_record_holds_what_was_written(tmp_path: Path, count: int, ticks: int, seed: int) -> None:
    rng, written = np.random.default_rng(seed), []
    ring = TickRing(tmp_path / "ticks", count, SLOTS)
    reader = TickReader(ring.path)
    assert not len(reader.new()), "nothing has been written yet"
    for number in range(ticks):
        telemetry = Telemetry.empty(count)
        telemetry.slices[:], telemetry.node[:] = rng.random(telemetry.slices.shape), rng.random((2, 1))
        telemetry.age_s[0], telemetry.valid[:] = rng.random(), rng.random((count, 1)) < 0.5
        knobs = random_knobs(rng, count), random_knobs(rng, count), random_knobs(rng, count)
        reasons = rng.integers(0, 1 << 32, count, np.uint32)
        tick = Tick(number, number + 1, 2, 3, 5, 7, 11, *range(20, 25), log_density=-0.5 * number)
        drawn = rng.normal(size=(count, 3)).astype(np.float32) if number % 2 else None
        ring.write(tick, telemetry, *knobs, reasons, drawn)
        written.append((tick, telemetry, knobs, reasons, drawn))
    records = reader.new()
    assert records["sequence"].tolist() == list(range(1, ticks + 1))[-SLOTS:]
    assert reader.beat_ns == ticks
    for record, (tick, telemetry, knobs, reasons, drawn) in zip(records, written[-SLOTS:], strict=True):
        assert [record[name] for name in Tick._fields] == list(tick)
        np.testing.assert_array_equal(record["slices"], telemetry.slices[..., 0])
        np.testing.assert_array_equal(record["node"], telemetry.node[:, 0])
        assert record["age_s"] == telemetry.age_s[0]
        np.testing.assert_array_equal(record["valid"][:count].astype(bool), telemetry.valid[:, 0])
        np.testing.assert_array_equal(record["reasons"], reasons)
        for stage, given_knobs in zip(("wanted", "allowed", "applied"), knobs, strict=True):
            same(record[stage], given_knobs)
        np.testing.assert_array_equal(record["drawn"], np.full((count, 3), np.nan) if drawn is None else drawn)
    reader.close()
    ring.close()


def test_wishes_of_any_kind_are_written(tmp_path: Path) -> None:
    ring = TickRing(tmp_path / "ticks", 3, SLOTS)
    reader = TickReader(ring.path)
    telemetry, plain, nothing = Telemetry.empty(3), Knobs.none(3), np.zeros(3, np.uint32)
    table = np.arange(9, dtype=np.float32).reshape(3, 3)
    strided: Any = np.repeat(table, 2, axis=1)[:, ::2]
    for values in (table.astype(int), table.astype(float), strided, np.asfortranarray(table)):
        ring.write(Tick(), telemetry, Knobs(values[..., None]), plain, plain, nothing, values)
        [record] = reader.new()
        assert record["wanted"].tolist() == record["drawn"].tolist() == table.tolist()
    for shape in ((3, 2, 1), (3, 3), (3, 3, 2), (3, 0, 1), (2, 3, 1), (1,)):
        misfit: Any = np.ones(shape, np.float32)
        ring.write(Tick(), telemetry, Knobs(misfit), plain, plain, nothing, np.ones((2, 3), np.float32))
        [record] = reader.new()
        assert np.isnan(record["wanted"]).all()
        assert np.isnan(record["drawn"]).all()
        same(record["allowed"], plain)
    with pytest.raises(ValueError, match="another shape"):
        ring.write(Tick(), telemetry, plain, Knobs.none(2), plain, nothing)
    reader.close()
    ring.close()
