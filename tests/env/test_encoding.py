"""What an agent sees stays bounded whatever was measured; what it says comes back as it was said."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicepilot.env.backend import Context
from slicepilot.env.encoding import (
    FEATURES,
    NODE_FEATURES,
    NUM_FEATURES,
    TELEMETRY_SCALE,
    KnobDecoder,
    ObservationEncoder,
    scaled,
    unscaled,
)
from slicepilot.env.knobs import Knobs
from slicepilot.env.slices import KnobBounds, Promises, Sla, SliceSet, SliceSpec, SNssai
from slicepilot.env.telemetry import NODE_FIELDS, SLICE_FIELDS, Telemetry
from tests.effort import examples
from tests.loads import slice_set


def ranges(lowest: float, highest: float) -> st.SearchStrategy[tuple[float, float]]:
    """Lower and upper bounds that differ by 1.2 to 1000 times."""
    return st.builds(lambda low, factor: (low, low * factor), st.floats(lowest, highest), st.floats(1.2, 1000))


nice_ranges = st.builds(lambda low, span: (low, min(low + span, 19)), st.integers(-20, 18), st.integers(1, 39))
bounds = st.builds(KnobBounds, ranges(1, 1000), nice_ranges, ranges(0.1, 1000))


@st.composite
def slice_sets(draw: st.DrawFn) -> SliceSet:
    """1 to 64 slices of two different kinds of bounds."""
    kinds = (draw(bounds), draw(bounds))
    count = draw(st.integers(1, 64))
    return SliceSet(
        tuple(
            SliceSpec(f"s{i}", SNssai(i % 256, f"{i:06X}"), Sla(10.0, 10.0), 1.0 + i, bounds=kinds[i % 2])
            for i in range(count)
        )
    )


def filled(shape: tuple[int, ...], values: list[float], seed: int) -> np.ndarray:
    """An array of the values at random indices."""
    return np.random.default_rng(seed).choice(np.asarray(values, np.float32), shape)


seeds = st.integers(0, 2**32 - 1)


def context_of(slices: SliceSet, lanes: int = 1, period_s: float = 1.0) -> Context:
    ones, threads = np.ones(lanes, np.float32), np.ones((len(slices), lanes), np.float32)
    return Context(period_s * ones, 4 * ones, 1000 * ones, Promises.of(slices, lanes), threads, 1)


@settings(max_examples=examples(60))
@given(slices=slice_sets(), seed=seeds, lanes=st.integers(1, 3))
def test_knobs_survive_encoding_and_decoding(slices: SliceSet, seed: int, lanes: int) -> None:
    """Limits to the precision of their logarithmic axis, nice exactly, "none" and the bounds themselves as they are."""
    rng = np.random.default_rng(seed)
    shape = (len(slices), lanes)

    def limit(name: str) -> np.ndarray:
        low, high = slices.bound(name, 0), slices.bound(name, 1)
        value = low * (high / low) ** rng.random(shape)
        pick = rng.integers(0, 5, shape)
        value = np.where(pick == 0, low, np.where(pick == 1, high, value))
        return np.where(pick == 2, np.inf, value).astype(np.float32)

    low, high = slices.bound("nice", 0), slices.bound("nice", 1)
    nice = np.floor(low + rng.random(shape) * (high - low + 1)).astype(np.float32)
    knobs = Knobs.of(limit("cpu_limit_mcpu"), nice, limit("egress_mbps"))
    decoder = KnobDecoder(slices)
    rows = decoder.encode(knobs)
    assert np.abs(rows).max() <= 1
    decoded, rows_again = decoder.decode(rows.transpose(2, 1, 0))
    np.testing.assert_allclose(decoded.cpu_limit_mcpu, knobs.cpu_limit_mcpu, rtol=2e-5)
    np.testing.assert_allclose(decoded.egress_mbps, knobs.egress_mbps, rtol=2e-5)
    np.testing.assert_array_equal(decoded.nice, knobs.nice)
    np.testing.assert_allclose(rows_again, rows, atol=1e-4)


@settings(max_examples=examples(60))
@given(slices=slice_sets(), values=st.lists(st.floats(-1.2, 1.2) | st.floats(-1e6, 1e6), min_size=1), seed=seeds)
def test_any_action_decodes_to_knobs_inside_the_bounds(slices: SliceSet, values: list[float], seed: int) -> None:
    action = filled((len(slices), 3), values, seed)
    knobs, rows = KnobDecoder(slices).decode(action)
    assert np.abs(rows).max() <= 1
    for name in ("cpu_limit_mcpu", "egress_mbps"):
        value = getattr(knobs, name)
        low, high = slices.bound(name, 0), slices.bound(name, 1)
        assert np.all((value >= low * (1 - 1e-5)) & (value <= high * (1 + 1e-5)) | np.isinf(value))
    assert np.all((knobs.nice >= slices.bound("nice", 0)) & (knobs.nice <= slices.bound("nice", 1)))
    assert np.all(knobs.nice == np.rint(knobs.nice))
    np.testing.assert_allclose(KnobDecoder(slices).encode(knobs), rows, atol=1e-4)


def test_an_action_means_the_same_whatever_the_bounds() -> None:
    """A policy trained with some bounds serves slices with others: they only clip."""

    def knobs(low: float, high: float, threads: float = 1.0) -> Knobs:
        bounds = KnobBounds(cpu_limit_mcpu=(low, high), nice=(-10, 10), egress_mbps=(5, 500))
        sla = Sla(committed_mbps=10, delay_bound_ms=10)
        spec = SliceSpec("a", SNssai(1), sla, bounds=bounds, upf_threads=threads)
        return KnobDecoder(SliceSet((spec,))).decode(np.asarray([[0.3, 0.3, 0.3]], np.float32))[0]

    assert knobs(50, 1000).cpu_limit_mcpu == knobs(100, 900).cpu_limit_mcpu
    assert knobs(50, 2000, threads=2).cpu_limit_mcpu == pytest.approx(2 * knobs(50, 1000).cpu_limit_mcpu)
    assert knobs(400, 1000).cpu_limit_mcpu == pytest.approx(400)
    assert knobs(50, 1000).nice == 6


@pytest.mark.parametrize("shape", [(2, 3), (3, 2), (3,), (4, 2, 3), (1, 1, 3, 3)])
def test_an_action_of_another_shape_is_refused_with_the_accepted_one(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"action: shape .*expected \(3, 3\)"):
        KnobDecoder(slice_set(3)).decode(np.zeros(shape, np.float32))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_action_that_is_not_a_number_is_refused(value: float) -> None:
    action = np.zeros((3, 3), np.float32)
    action[1, 2] = value
    with pytest.raises(ValueError, match="action: not a number"):
        KnobDecoder(slice_set(3)).decode(action)


odd = st.sampled_from([0.0, -1.0, np.nan, np.inf, -np.inf])


@settings(max_examples=examples(80))
@given(
    count=st.integers(1, 64),
    lanes=st.integers(1, 3),
    values=st.lists(st.floats(-1e34, 1e34) | odd, min_size=1),
    seed=seeds,
)
def test_observations_are_bounded_whatever_was_measured(count: int, lanes: int, values: list[float], seed: int) -> None:
    slices = slice_set(count)
    telemetry = Telemetry(
        filled((len(SLICE_FIELDS), count, lanes), values, seed),
        filled((len(NODE_FIELDS), lanes), values, seed),
        np.zeros(lanes, np.float32),
        filled((count, lanes), [0, 1], seed) > 0,
    )
    encoder = ObservationEncoder(context_of(slices, lanes))
    knobs = Knobs.none(count, lanes)
    table = encoder.encode(telemetry, KnobDecoder(slices).encode(knobs))
    assert table.shape == (lanes, count, NUM_FEATURES)
    assert table.dtype == np.float32
    assert np.all(np.abs(table) <= 1)  # NaN would fail
    active = table[..., FEATURES.index("active")]
    np.testing.assert_array_equal(active, telemetry.valid.T)


def test_what_is_encoded_is_what_was_measured_row_by_row() -> None:
    slices, telemetry = slice_set(3), Telemetry.empty(3)
    rng = np.random.default_rng(0)
    for row, name in enumerate(TELEMETRY_SCALE):
        telemetry.slices[row] = TELEMETRY_SCALE[name][1] * rng.random((3, 1))
    telemetry.node[:] = [[0.25], [0.75]]
    table = ObservationEncoder(context_of(slices)).encode(telemetry, KnobDecoder(slices).encode(Knobs.none(3)))[0]
    for row, name in enumerate(TELEMETRY_SCALE):
        column = table[:, FEATURES.index(name)]
        np.testing.assert_allclose(column, scaled(name, telemetry.slices[row, :, 0]), atol=2e-6)
    assert np.all(table[:, FEATURES.index("cpu_idle_ratio")] == 0.25)
    assert np.all(table[:, FEATURES.index("uplink_use_ratio")] == 0.75)


def test_fields_without_a_scale_leave_observations_as_they_are() -> None:
    assert SLICE_FIELDS[: len(TELEMETRY_SCALE)] == tuple(TELEMETRY_SCALE)
    assert NODE_FIELDS[: len(NODE_FEATURES)] == NODE_FEATURES
    slices, telemetry = slice_set(3), Telemetry.empty(3)
    telemetry.slices[:] = telemetry.node[:] = 0.5
    more = dataclasses.replace(
        telemetry, slices=np.concatenate([telemetry.slices] * 2), node=np.concatenate([telemetry.node] * 2)
    )
    encoder, rows = ObservationEncoder(context_of(slices)), KnobDecoder(slices).encode(Knobs.none(3))
    np.testing.assert_array_equal(encoder.encode(telemetry, rows), encoder.encode(more, rows))


@given(name=st.sampled_from(list(TELEMETRY_SCALE)), share=st.floats(0, 1))
def test_unscaled_inverts_scaled(name: str, share: float) -> None:
    reference, full = TELEMETRY_SCALE[name]
    value = np.asarray([full * share, full * share**4], np.float32)
    back = unscaled(name, scaled(name, value))
    np.testing.assert_allclose(back, value, rtol=1e-4, atol=2e-5 * reference)
