"""Figures of delays can be drawn whatever the delays are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from slicepilot.data.tables.tidy import Stream
from slicepilot.training.statistics.analysis import Analysis, analyse
from slicepilot.training.statistics.collect import Source, collect
from slicepilot.training.statistics.figures import (
    MAX_SERIES,
    series,
    write_figures,
)

RNG = np.random.default_rng(0)


def analysed(values: np.ndarray, groups: np.ndarray, **more: np.ndarray) -> Analysis:
    table = pa.table({"slice": groups.astype(str), "delay_us": values, **more})
    return analyse(collect([Source("table", Stream(table.schema, iter(table.to_batches())))]), resamples=100)


def some(groups: int = 3, rows: int = 600) -> Analysis:
    names = np.asarray([f"slice{n + 1}" for n in range(groups)])
    own = np.arange(rows) % groups
    return analysed(RNG.lognormal(3 + 0.1 * own, 0.6), names[own], offered_mbps=RNG.uniform(0, 100, rows))


@pytest.mark.parametrize(
    "make",
    [
        lambda: some(12),
        lambda: some(1),
        lambda: analysed(np.full(60, 5.0), np.arange(60) % 2),
        lambda: analysed(RNG.normal(0, 1, 200), np.arange(200) % 2, offered_mbps=np.arange(200) % 2.0),
        lambda: analysed(np.asarray([1e-3, 1e6, 2.0, 4.0]), np.asarray([0, 0, 1, 1])),
        lambda: analysed(np.arange(100.0), np.arange(100) % 2, offered_mbps=np.where(np.arange(100) < 50, np.nan, 3.0)),
    ],
    ids=["many", "one group", "no spread", "negative", "two values each", "load unknown"],
)
def test_all_that_there_may_be_is_drawn(make: Callable[[], Analysis], tmp_path: Path) -> None:
    paths = write_figures(make(), tmp_path)
    assert {path.stem for path in paths} >= {"ecdf", "violin"}
    for path in paths:
        start = path.read_bytes()[:200]
        assert start.startswith(b"\x89PNG") if path.suffix == ".png" else b"<?xml" in start
    assert not [path for path in tmp_path.iterdir() if path not in paths]


def test_of_many_groups_those_that_differ_most_are_drawn() -> None:
    shown = series(some(12, 2400))
    names = [name for name, _, _ in shown]
    assert len(names) == MAX_SERIES
    assert names[0] == "slice1"
    assert "slice12" in names
    assert "slice2" not in names
    assert len({colour for _, colour, _ in shown}) == MAX_SERIES
