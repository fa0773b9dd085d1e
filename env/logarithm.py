"""A logarithm that the compiler turns into SIMD code; the C library's is a call per number."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

ZERO, HALF, ONE, TWO = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2)
SQRT_2, LN_2 = np.float32(math.sqrt(2.0)), np.float32(math.log(2.0))
THIRD, FIFTH, SEVENTH = np.float32(1 / 3), np.float32(1 / 5), np.float32(1 / 7)
MANTISSA, ONE_BITS, EXPONENT_AT = np.int32(0x7FFFFF), np.int32(0x3F800000), np.int32(23)


@njit(cache=True, error_model="numpy", inline="always")
def natural_log(x: float | np.float32) -> np.float32:
    """ln(x) of a positive finite float32, to its precision."""
    bits = np.float32(x).view(np.int32)
    exponent = np.float32((bits - ONE_BITS) >> EXPONENT_AT)
    mantissa = np.int32((bits & MANTISSA) | ONE_BITS).view(np.float32)
    exponent += ONE if mantissa > SQRT_2 else ZERO
    mantissa *= HALF if mantissa > SQRT_2 else ONE
    # ln m = 2 artanh((m - 1) / (m + 1)), of which |argument| < 0.172 here.
    ratio = (mantissa - ONE) / (mantissa + ONE)
    square = ratio * ratio
    return exponent * LN_2 + TWO * ratio * (ONE + square * (THIRD + square * (FIFTH + square * SEVENTH)))
