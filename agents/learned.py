"""A trained policy as an agent."""

from __future__ import annotations

from typing import Any

import onnxruntime as ort

from ..env.backend import Context
from ..env.encoding import KnobDecoder, ObservationEncoder
from ..env.knobs import Knobs
from ..env.slices import FloatArray, SliceSet
from ..env.telemetry import Telemetry
from .bundle import INPUT_NAME, OUTPUT_NAME, PolicyBundle


class LearnedAgent:
    """Runs a bundle's policy over L lanes; deterministic.

    Args:
        bundle: a loaded policy.
        name: as in tables; else the training algorithm.
        transfer: serve slices other than the bundle's (see `PolicyBundle.for_slices`).
    """

    request_mcpu: FloatArray | None = None

    def __init__(self, bundle: PolicyBundle, name: str | None = None, transfer: bool = False) -> None:
        self.bundle, self.transfer = bundle, transfer
        self.name = name or bundle.training.algorithm
        self._session: ort.InferenceSession | None = None
        self._decided: tuple[Knobs, FloatArray] | None = None

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        """Start a run. Raises ConfigError if the bundle was not made for these slices."""
        fitted = self.bundle.for_slices(slices, self.transfer)
        self._encoder = ObservationEncoder(context)
        self._decoder = KnobDecoder(fitted.slices, fitted.nice_scope)
        self._session = self._session or fitted.session()
        self._decided = None

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """Knobs (S, L) for the next control period; raises RuntimeError before `reset`."""
        if self._session is None:
            raise RuntimeError("the agent has not been reset yet: call reset() first")
        if self._decided is not None and knobs is self._decided[0]:
            rows = self._decided[1]
        else:
            rows = self._decoder.encode(knobs)
        table = self._encoder.encode(telemetry, rows)
        action: Any = self._session.run([OUTPUT_NAME], {INPUT_NAME: table})[0]
        self._decided = self._decoder.decode(action)
        return self._decided[0]

    def __getstate__(self) -> dict[str, Any]:
        """Without the session, which cannot be pickled; the copy makes its own at its next reset."""
        return self.__dict__ | {"_session": None}
