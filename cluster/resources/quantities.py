"""Quantities of the API, read and written.

https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

from __future__ import annotations

import math
import re

LEAST_BITS, MOST_BITS = 10**3, 10**15
"""Bandwidths that Kubernetes accepts (pkg/util/bandwidth, ``validateBandwidthIsReasonable``)."""
MOST_MCPU = 10**7
_QUANTITY = re.compile(r"\+?([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:([eE][+-]?[0-9]{1,2})|([numkMGTPE]|[KMGTPE]i|))")
_DECIMAL = {"n": 1e-6, "u": 1e-3, "m": 1.0, "": 1e3, "k": 1e6, "M": 1e9, "G": 1e12, "T": 1e15, "P": 1e18, "E": 1e21}
_SCALES = _DECIMAL | {f"{letter}i": 1e3 * 1024.0**power for power, letter in enumerate("KMGTPE", 1)}


def mcpu(quantity: str | float) -> float:
    """A quantity in thousandths; 0 for anything else.

    The API server keeps the kind of suffix that an author has chosen, exponents as well: 2e0 stays that.
    """
    match = _QUANTITY.fullmatch(str(quantity))
    if match is None:
        return 0.0
    return 1e3 * float(match[1] + match[2]) if match[2] else float(match[1]) * _SCALES[match[3]]


def cpu_text(value_mcpu: float) -> str:
    """Thousandths of a CPU as a quantity; raises ValueError where the API would not accept it."""
    if not (math.isfinite(value_mcpu) and 1 <= value_mcpu <= MOST_MCPU):
        raise ValueError(f"CPU = {value_mcpu:g} mCPU: expected 1 to {MOST_MCPU}")
    return f"{math.ceil(value_mcpu)}m"


def bandwidth_text(mbps: float) -> str:
    """Mbit/s as a quantity of bits a second, in whole thousands; raises ValueError where the API would not accept it.

    ``100m`` would be a tenth of a bit a second, which is rounded to 0, and 0 means no limit.
    """
    if not math.isfinite(mbps) or not LEAST_BITS <= round(mbps * 1e6) <= MOST_BITS:
        raise ValueError(f"bandwidth = {mbps:g} Mbit/s: expected {LEAST_BITS / 1e6:g} to {MOST_BITS / 1e6:g}")
    thousands = math.ceil(round(mbps * 1e3, 6))
    return f"{thousands // 1000}M" if thousands % 1000 == 0 else f"{thousands}k"
