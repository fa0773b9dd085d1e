"""The compiled codec says what encoder and decoder say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from slicepilot.agents.runtime.codec import CompiledCodec
from slicepilot.env.backend import Context
from slicepilot.env.encoding import KnobDecoder, ObservationEncoder
from slicepilot.env.knobs import KNOB_FIELDS, NUM_KNOBS, Knobs
from slicepilot.env.slices import Promises, SliceSet
from slicepilot.env.telemetry import NODE_FIELDS, SLICE_FIELDS, Telemetry

SLICES = SliceSet.from_yaml("campus-mixed")
S = len(SLICES)
ONE = np.ones(1, np.float32)
CONTEXT = Context(ONE, 4 * ONE, 1000 * ONE, Promises.of(SLICES, 1), np.ones((S, 1), np.float32), 1)
figures = st.one_of(st.floats(0, 1e7, width=32), st.sampled_from([0.0, -1.0, np.nan, np.inf, -np.inf, 1e-6]))
actions = st.one_of(st.floats(-2, 2, width=32), st.sampled_from([-1.0, 0.875, 0.9, 0.9000001, 1.0, 0.025, 0.475]))


def parts() -> tuple[ObservationEncoder, KnobDecoder, CompiledCodec]:
    encoder, decoder = ObservationEncoder(CONTEXT), KnobDecoder(SLICES)
    return encoder, decoder, CompiledCodec(encoder, decoder)


@given(
    measured=arrays.arrays(np.float32, (len(SLICE_FIELDS), S, 1), elements=figures),
    node=arrays.arrays(np.float32, (len(NODE_FIELDS), 1), elements=figures),
    valid=arrays.arrays(np.bool_, (S, 1)),
    action=arrays.arrays(np.float32, (1, S, NUM_KNOBS), elements=actions),
)
def test_it_encodes_and_decodes_alike(
    measured: np.ndarray, node: np.ndarray, valid: np.ndarray, action: np.ndarray
) -> None:
    encoder, decoder, codec = parts()
    (knobs, rows), (reference, reference_rows) = codec.decode(action), decoder.decode(action)
    for name in KNOB_FIELDS:
        np.testing.assert_allclose(getattr(knobs, name), getattr(reference, name), rtol=1e-6, err_msg=name)
    assert knobs.nice_scope == reference.nice_scope
    np.testing.assert_allclose(rows, reference_rows, atol=1e-6)
    np.testing.assert_allclose(codec.knob_rows(knobs), decoder.encode(knobs), atol=2e-6)
    telemetry = Telemetry(measured, node, np.zeros(1, np.float32), valid)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = encoder.encode(telemetry, rows)
    np.testing.assert_allclose(codec.encode(telemetry, rows), expected, atol=1e-6)


@given(
    limit=st.sampled_from([0.0, 1.0, 49.0, 50.0, 333.0, 1000.0, 5000.0, np.inf]),
    nice=st.integers(-25, 25),
    egress=st.sampled_from([0.0, 0.5, 1.0, 75.0, 1e4, 1e6, np.inf]),
)
def test_knobs_that_somebody_else_set_are_encoded_alike(limit: float, nice: int, egress: float) -> None:
    _, decoder, codec = parts()
    limits, levels, rates = (np.full((S, 1), value, np.float32) for value in (limit, nice, egress))
    knobs = Knobs.of(limits, levels, rates)
    np.testing.assert_allclose(codec.knob_rows(knobs), decoder.encode(knobs), atol=2e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_action_that_is_not_a_number_is_refused(value: float) -> None:
    action = np.zeros((1, S, NUM_KNOBS), np.float32)
    action[0, -1, 1] = value
    with pytest.raises(ValueError, match="not a number"):
        parts()[2].decode(action)
