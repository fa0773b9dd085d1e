"""CPU knobs of slices whose UPF is one process: each slice asks for its part, and the process gets all parts together.

A limit is the sum of the parts; a weight is the mean of what the slices' nice levels weigh, so that levels of 0 leave
the original weight. The process does not rank its packets: a larger part of one slice helps all packets.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from slicepilot.data.nice_weights import LOWEST_NICE, NICE_0_WEIGHT, PRIO_TO_WEIGHT, nearest_nice
from slicepilot.env.arrays import FloatArray
from slicepilot.env.knobs import CPU_LIMIT, NICE, KnobName

from .slice_knobs import SliceTargets


class SharedCpu:
    """Between what slices ask for and the group of the first of them, which holds it.

    Args:
        targets: order of all arrays; groups of which not all slices are here are left out.
    """

    def __init__(self, targets: Sequence[SliceTargets]) -> None:
        names = [target.name for target in targets]
        groups = dict.fromkeys(target.sharing for target in targets if target.sharing)
        self._groups = [[names.index(name) for name in sharing] for sharing in groups if set(sharing) <= set(names)]

    def __bool__(self) -> bool:
        return bool(self._groups)

    def join(self, limits: list[float], nices: list[float]) -> None:
        """Combine the wanted values of each group's slices, in place: the first slice gets the result, the others
        none."""
        for group in self._groups:
            limit, nice = sum(limits[index] for index in group), _nice([nices[index] for index in group])
            for index in group:
                limits[index], nices[index] = math.inf, 0.0
            limits[group[0]], nices[group[0]] = limit, nice

    def sums(self, requests: Sequence[float]) -> list[float | None]:
        """CPU requests by slice, with the sum of each group at the group's first slice."""
        result: list[float | None] = list(requests)
        for group in self._groups:
            result[group[0]] = sum(requests[index] for index in group)
        return result

    def part(self, held: FloatArray, wanted: FloatArray | None) -> None:
        """The inverse, in place: the value of the first slice of each group is split among its slices, in (3, S, 1).

        Parts are in proportion to ``wanted``, and equal where ``wanted`` says nothing.
        """
        for group in self._groups:
            limit, nice = held[CPU_LIMIT, group[0], 0].item(), held[NICE, group[0], 0].item()
            limits, nices = [limit / len(group)] * len(group), [nice] * len(group)
            if wanted is not None:
                wanted_limits, wanted_nices = (wanted[knob, group, 0].tolist() for knob in (CPU_LIMIT, NICE))
                total = sum(wanted_limits)
                if 0 < total < math.inf:
                    limits = (
                        wanted_limits
                        if math.isclose(limit, total, rel_tol=1e-6)
                        else [limit * wanted_limit / total for wanted_limit in wanted_limits]
                    )
                if _nice(wanted_nices) == nice:
                    nices = wanted_nices
            held[CPU_LIMIT, group, 0], held[NICE, group, 0] = limits, nices


def whole(targets: Sequence[SliceTargets]) -> list[SliceTargets]:
    """The same targets, with CPU knobs left alone where a slice outside of these shares them."""
    names = {target.name for target in targets}
    cpu: frozenset[KnobName] = frozenset({"cpu_limit_mcpu", "nice"})
    return [
        target if names.issuperset(target.sharing) else dataclasses.replace(target, left=target.left | cpu)
        for target in targets
    ]


def _nice(levels: Sequence[float]) -> float:
    weights = [PRIO_TO_WEIGHT[int(level) - LOWEST_NICE] for level in levels]
    return float(nearest_nice(sum(weights) / len(weights) / NICE_0_WEIGHT))
