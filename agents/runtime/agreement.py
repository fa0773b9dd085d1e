"""A compiled policy decides as onnxruntime does, or it is not used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from slicepilot.env.encoding import FEATURES

from .program import Program
from .session import INPUT_NAME, OUTPUT_NAME

if TYPE_CHECKING:
    import onnxruntime as ort

TOLERANCE, OBSERVATIONS = 1e-5, 16
"""Of each figure of an action; random observations that are tried."""

_ACTIVE = FEATURES.index("active")


def agrees(program: Program, session: ort.InferenceSession, shape: tuple[int, ...], actions: int) -> bool:
    """Whether both decide the same for observations of a shape (L, S, D), with so many figures for a slice."""
    rng = np.random.default_rng(0)
    action = np.zeros((*shape[:2], actions), np.float32)
    for _ in range(OBSERVATIONS):
        table = rng.uniform(0.0, 1.0, shape).astype(np.float32)
        table[..., _ACTIVE] = table[..., _ACTIVE] > 0.2
        program.run(table, action)
        reference: Any = session.run([OUTPUT_NAME], {INPUT_NAME: table})[0]
        if not np.allclose(action, reference, rtol=0.0, atol=TOLERANCE, equal_nan=True):  # no number: both say so
            return False
    return True
