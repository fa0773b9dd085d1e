"""Knobs as one array with named rows."""

from __future__ import annotations

import numpy as np

from slicepilot.env.knobs import Knobs


def drawn(seed: int = 0) -> Knobs:
    return Knobs(np.random.default_rng(seed).uniform(1, 900, (3, 4, 2)).astype(np.float32))


def test_the_same_are_the_same_bit_for_bit() -> None:
    item = drawn()
    assert item.same_as(item)
    assert item.same_as(item.copy())
    assert not item.same_as(Knobs(item.values, "process"))
    for location in np.ndindex(item.values.shape):
        other = item.copy()
        other.values[location] = np.nextafter(other.values[location], np.float32(np.inf))
        assert not item.same_as(other)
    assert not item.same_as(Knobs(item.values.reshape(3, 2, 4)))
    unknown = Knobs(np.full((3, 1, 1), np.nan, np.float32))
    assert unknown.same_as(unknown.copy()), "what is not known stays unknown"


def test_between_groups_the_nice_of_processes_is_none() -> None:
    knobs = drawn()
    assert knobs.between_groups() is knobs
    own = Knobs(knobs.values, "process").between_groups()
    assert own.nice_scope == "group"
    assert (own.nice == 0).all()
    np.testing.assert_array_equal(own.values[[0, 2]], knobs.values[[0, 2]])
    assert (knobs.nice != 0).all(), "what was given is not written to"
