"""An actuator that acts on some slices and only reads the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Receipt
from slicepilot.env.knobs import KnobName, Knobs

from .node import NodeActuator
from .shadow import ShadowActuator


class CanaryActuator:
    """Applies the rows of the slices it acts on; the others' rows of a receipt say what others have set.

    Args:
        controlled: over the slices it acts on, in their order; owned.
        watching: over all slices; owned.
        indices: of the slices it acts on.
    """

    def __init__(self, controlled: NodeActuator, watching: ShadowActuator, indices: Sequence[int]) -> None:
        self._controlled, self._watching = controlled, watching
        self._indices: npt.NDArray[np.int64] = np.asarray(indices, np.int64)
        self._parts = controlled.receipt, watching.receipt
        self.receipt = self._merged()

    def apply(self, knobs: Knobs) -> Receipt:
        rows = Knobs(knobs.values[:, self._indices], knobs.nice_scope)
        parts = self._controlled.apply(rows), self._watching.receipt
        if not all(new.same_as(old) for new, old in zip(parts, self._parts, strict=True)):
            self._parts = parts
            self.receipt = self._merged()
        return self.receipt

    @property
    def powerless(self) -> bool:
        """Whether no knob of the slices that it acts on can be moved."""
        return self._controlled.powerless

    @property
    def not_moved(self) -> dict[tuple[str, KnobName], str]:
        """Why knobs of the slices that it acts on cannot be moved."""
        return self._controlled.not_moved

    def rehearse(self) -> None:
        self._controlled.rehearse()

    def deploy(self, request_mcpu: FloatArray | None) -> None:
        self._controlled.deploy(None if request_mcpu is None else request_mcpu[self._indices])

    def refresh(self) -> list[str]:
        """The reports of both parts; a slice that both have lost is named once."""
        return list(dict.fromkeys([*self._controlled.refresh(), *self._watching.refresh()]))

    def close(self) -> None:
        try:
            self._controlled.close()
        finally:
            self._watching.close()

    def _merged(self) -> Receipt:
        own, watched = self._parts
        merged = watched.applied.values.copy()
        merged[:, self._indices] = own.applied.values
        return Receipt(Knobs(merged, own.applied.nice_scope), own.error)
