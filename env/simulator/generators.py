"""A random generator for each lane, behind the methods of NumPy's that the simulator calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from slicepilot.env.arrays import IntArray


class LaneGenerators:
    """Draws arrays (..., L) whose lane l is what generator l alone would draw as an array (..., 1).

    Args:
        generators: of the lanes. A generator draws for a single lane: it must not be in the list twice.
    """

    def __init__(self, generators: Sequence[np.random.Generator]) -> None:
        self.generators = list(generators)

    def of(self, lanes: IntArray) -> LaneGenerators:
        """The generators of some lanes, not copies."""
        return LaneGenerators([self.generators[lane] for lane in lanes])

    def replace(self, lanes: IntArray, others: LaneGenerators) -> None:
        """Draw from ``others`` in the lanes of these numbers."""
        for lane, generator in zip(lanes, others.generators, strict=True):
            self.generators[lane] = generator

    def spawn(self, n_children: int) -> list[LaneGenerators]:
        """Independent children, as `numpy.random.Generator.spawn`."""
        children = [generator.spawn(n_children) for generator in self.generators]
        return [LaneGenerators(lanes) for lanes in zip(*children, strict=True)]

    def uniform(self, low: float, high: float, size: tuple[int, ...]) -> npt.NDArray[np.float64]:
        """As `numpy.random.Generator.uniform`."""
        return self._draw(lambda generator, out: np.copyto(out, generator.uniform(low, high, out.shape)), size, float)

    def standard_normal(self, size: tuple[int, ...], dtype: type[np.float32]) -> npt.NDArray[np.float32]:
        """As `numpy.random.Generator.standard_normal`."""
        return self._draw(lambda generator, out: generator.standard_normal(dtype=dtype, out=out), size, dtype)

    def _draw(
        self, draw: Callable[[np.random.Generator, npt.NDArray[Any]], object], size: tuple[int, ...], dtype: type
    ) -> npt.NDArray[Any]:
        drawn: npt.NDArray[Any] = np.empty((len(self.generators), int(np.prod(size[:-1]))), dtype)
        for generator, row in zip(self.generators, drawn, strict=True):
            draw(generator, row)
        return np.ascontiguousarray(drawn.T).reshape(size)
