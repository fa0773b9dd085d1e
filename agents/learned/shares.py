"""Features that relate slices to each other: each slice's needs as shares of the node's present resources.

First what a slice asks for (`shares_kernel.ASKED`). Then what its promise needs now, of the uplink and of the CPUs: the
lesser of offered and committed rate, and that rate at the CPU time it takes for what it carries (a slice that
carries nothing: at what the slices take together). Then how much of either is needed by the slices that outrank it,
which have more weight for what their whole promise takes: the order in which the greedy solution of the knapsack
problem (Dantzig 1957) would keep promises. By what a slice needs now, the silent would outrank all. Slices of the same
rank count half. Last, the part of its need that this order leaves room for, of what the node has now and of all its
CPUs; as CPU limits on their axis, the CPU for either part, for all that it needs now and for its whole promise; and its
share of the weight, alone and for each CPU that its promise takes, logarithmic.

Observations are logarithmic, which suits a slice's own figures; whether all of them fit is a matter of sums. What the
node has now is what the slices use over its utilisation, so that a link that has lost capacity shows, and of the CPUs
what softirqs and other work leave: work that would yield to the slices looks like CPUs that are not there, which is why
all of them count too. Figures beyond the encoder's full scale (10 Gbit/s, 16 CPUs a slice) count as that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.encoding import NUM_FEATURES, ObservationEncoder, encoder_layout
from slicepilot.env.telemetry import Telemetry

SHARE_FEATURES = (
    *(f"{name}_share" for name in ("offered", "committed", "carried", "cpu_use")),
    *("need_uplink", "need_cpu", "outranking_uplink", "outranking_cpu"),
    *("granted", "granted_of_all", "granted_limit", "granted_of_all_limit", "need_limit", "promise_limit"),
    *("weight_share", "weight_per_cpu"),
)
NUM_INPUTS = NUM_FEATURES + len(SHARE_FEATURES)


class SharesEncoder:
    """`ObservationEncoder`'s table with `SHARE_FEATURES` behind it: float32 (L, S, D + 16)."""

    def __init__(self, context: Context) -> None:
        self._plain = ObservationEncoder(context)
        self._shape = *context.promises.weight.shape[::-1], NUM_INPUTS

    def encode(self, telemetry: Telemetry, knob_rows: FloatArray, out: FloatArray | None = None) -> FloatArray:
        """As `ObservationEncoder.encode`."""
        if out is None:
            out = np.empty(self._shape, np.float32)
        self._plain.encode(telemetry, knob_rows, out)
        add_shares(out)
        return out


def add_shares(table: FloatArray) -> None:
    """Fill in the last 16 columns of a table (L, S, D + 16) by the others; zeros where a slice is absent."""
    from .shares_kernel import add_shares  # numba, which who only reads layouts does without

    add_shares(table)


def shares_layout() -> dict[str, Any]:
    """`slicepilot.env.encoding.encoder_layout` for the wider table."""
    plain = encoder_layout()
    return plain | {"features": [*plain["features"], *SHARE_FEATURES]}
