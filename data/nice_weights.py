"""Weights of nice levels in the kernel, which the simulator models and the actuators scale by."""

from __future__ import annotations

import functools
import math

# Weight of nice -20..19 (kernel/sched/core.c, sched_prio_to_weight): about 1.25 a level, 1024 at nice 0.
PRIO_TO_WEIGHT = (
    *(88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916),
    *(9548, 7620, 6100, 4904, 3906, 3121, 2501, 1991, 1586, 1277),
    *(1024, 820, 655, 526, 423, 335, 272, 215, 172, 137),
    *(110, 87, 70, 56, 45, 36, 29, 23, 18, 15),
)
NICE_0_WEIGHT = 1024
LOWEST_NICE = -20


@functools.lru_cache(256)
def nearest_nice(ratio: float) -> int:
    """The level whose share of nice 0's weight is nearest to a ratio; the smallest of equals."""
    levels = range(LOWEST_NICE, LOWEST_NICE + len(PRIO_TO_WEIGHT))
    return min(
        levels, key=lambda nice: (abs(math.log(ratio * NICE_0_WEIGHT / PRIO_TO_WEIGHT[nice - LOWEST_NICE])), abs(nice))
    )
