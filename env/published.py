"""The published settings as knobs and pod requests."""

from __future__ import annotations

import numpy as np

from slicepilot.data.reference import PublishedSetting

from .arrays import FloatArray
from .knobs import Knobs


def setting_knobs(setting: PublishedSetting, num_slices: int, priority: int = 0) -> Knobs:
    """One setting's knobs for S slices, (S, 1), nice of process scope."""
    first = (np.arange(num_slices) == priority)[:, None]

    def column(priority_value: float, others_value: float) -> FloatArray:
        return np.where(first, priority_value, others_value).astype(np.float32)

    return Knobs.of(
        cpu_limit_mcpu=column(setting.s1_cpu_mcpu, setting.others_cpu_mcpu),
        nice=column(setting.s1_nice, setting.others_nice),
        egress_mbps=column(setting.s1_egress_mbps, setting.others_egress_mbps),
        nice_scope="process",
    )


def requests_of(knobs: Knobs) -> FloatArray:
    """CPU requests (S, L) of pods created with these limits: Kubernetes sets a missing request to the limit."""
    limits = knobs.cpu_limit_mcpu
    return np.where(np.isfinite(limits), limits, 0.0).astype(np.float32)
