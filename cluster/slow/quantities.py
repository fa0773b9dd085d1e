"""Quantities of the API, checked before they are sent: some that are well formed are taken for nothing.

https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

from __future__ import annotations

import math

LEAST_BITS, MOST_BITS = 10**3, 10**15
"""Of a bandwidth, as Kubernetes takes it for reasonable (pkg/util/bandwidth, ``validateBandwidthIsReasonable``)."""
MOST_MCPU = 10**7


def cpu_text(mcpu: float) -> str:
    """Thousandths of a CPU as a quantity; raises ValueError where that is none."""
    if not (math.isfinite(mcpu) and 1 <= mcpu <= MOST_MCPU):
        raise ValueError(f"CPU = {mcpu:g} mCPU; accepted: 1 to {MOST_MCPU}")
    return f"{math.ceil(mcpu)}m"


def bandwidth_text(mbps: float) -> str:
    """Mbit/s as a quantity of bits a second, whole thousands of them; raises ValueError where that is none.

    ``100m`` would be a tenth of a bit a second, which is taken for 0, and that for no limit.
    """
    if not math.isfinite(mbps) or not LEAST_BITS <= round(mbps * 1e6) <= MOST_BITS:
        raise ValueError(f"bandwidth = {mbps:g} Mbit/s; accepted: {LEAST_BITS / 1e6:g} to {MOST_BITS / 1e6:g}")
    thousands = math.ceil(round(mbps * 1e3, 6))
    return f"{thousands // 1000}M" if thousands % 1000 == 0 else f"{thousands}k"
