"""A trained policy as an agent."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from slicepilot.agents.runtime.onnx_file import OnnxError
from slicepilot.agents.runtime.session import INPUT_NAME, OUTPUT_NAME
from slicepilot.env.arrays import FloatArray
from slicepilot.env.backend import Context
from slicepilot.env.encoding import NUM_FEATURES, KnobDecoder, ObservationEncoder
from slicepilot.env.knobs import NUM_KNOBS, Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

from .bundle import PolicyBundle
from .guide import NUM_CORRECTIONS, NUM_GUIDED, Guide

if TYPE_CHECKING:
    import onnxruntime as ort

    from slicepilot.agents.runtime.policy import CompiledPolicy
    from slicepilot.agents.runtime.program import Program


class LearnedAgent:
    """Runs a bundle's policy over L lanes; deterministic.

    Many lanes go through onnxruntime. For a single one, a live node, the policy is compiled for its shape where numba
    is installed (`slicepilot.agents.runtime.policy`), which is several times faster; `compiled` says so after `reset`.
    It decides as onnxruntime does: that is tried first.

    Args:
        bundle: a loaded policy.
        name: as in tables; else the training algorithm.
        transfer: serve slices other than the bundle's (see `PolicyBundle.for_slices`).
        tried: shape of observations (L, S, D) for which that has been tried already, by another process: then this
            one needs no onnxruntime.
    """

    request_mcpu: FloatArray | None = None

    def __init__(
        self,
        bundle: PolicyBundle,
        name: str | None = None,
        transfer: bool = False,
        tried: tuple[int, int, int] | None = None,
    ) -> None:
        self.bundle, self.transfer, self._tried = bundle, transfer, tried
        self.name = name or bundle.training.algorithm
        self._session: ort.InferenceSession | None = None
        self._program: Program | None = None
        self._policy: CompiledPolicy | None = None
        self._shape: tuple[int, int, int] | None = None
        self._decided: tuple[Knobs, FloatArray] | None = None
        self._encoded: tuple[Knobs, FloatArray] | None = None

    @property
    def compiled(self) -> bool:
        """Whether decisions come from the compiled policy."""
        return self._program is not None

    def reset(self, slices: SliceSet, context: Context, seed: int) -> None:
        """Start a run. Raises ConfigError if the bundle was not made for these slices."""
        fitted = self.bundle.for_slices(slices, self.transfer)
        guided = self.bundle.guided
        self._rows_of = KnobDecoder(fitted.slices, fitted.nice_scope)
        self._encoder: ObservationEncoder | Guide = ObservationEncoder(context)
        self._decoder: KnobDecoder | Guide = self._rows_of
        if guided:
            self._encoder = self._decoder = Guide(fitted.slices, context, fitted.nice_scope)
        num_slices, lanes = context.promises.weight.shape
        shape = lanes, num_slices, NUM_GUIDED if guided else NUM_FEATURES
        if self._shape != shape:
            self._table = np.zeros(shape, np.float32)
            self._action = np.zeros((lanes, num_slices, NUM_CORRECTIONS if guided else NUM_KNOBS), np.float32)
            self._program = _compiled(fitted.model, shape) if lanes == 1 else None
            if self._program is None or shape != self._tried:
                self._session = self._session or fitted.session()
                self._binding = _bind(self._session, self._table, self._action)
                self._program = self._program and _if_it_agrees(self._program, self._session, shape, self._action)
            self._policy = None
            self._shape = shape
        if self._program is not None and isinstance(self._encoder, ObservationEncoder):
            from slicepilot.agents.runtime.codec import CompiledCodec
            from slicepilot.agents.runtime.policy import CompiledPolicy

            self._policy = CompiledPolicy(self._program, CompiledCodec(self._encoder, self._rows_of))
        self._decided = self._encoded = None

    def decide(self, telemetry: Telemetry, knobs: Knobs) -> Knobs:
        """Knobs (S, L) for the next control period; raises RuntimeError before `reset`."""
        self._decided = self._decide(telemetry, self._rows(knobs))
        return self._decided[0]

    def warm_up(self, telemetry: Telemetry) -> None:
        """Decide and forget it: brings code and data into caches shortly before a decision is due."""
        if self._program is not None and self.bundle.guided:  # its encoder has to see each period once
            self._program.run(self._table, np.empty_like(self._action))
        elif self._decided is not None:
            knobs, rows = self._decided
            self._decide(telemetry, rows if self._policy is None else self._policy.codec.knob_rows(knobs))

    def _decide(self, telemetry: Telemetry, rows: FloatArray) -> tuple[Knobs, FloatArray]:
        """Knobs, and what `KnobDecoder.encode` would say of them."""
        if self._policy is not None:
            return self._policy.decide(telemetry, rows)
        if self._shape is None:
            raise RuntimeError("the agent has not been reset yet: call reset() first")
        self._table[:] = self._encoder.encode(telemetry, rows)
        if self._program is not None:
            self._program.run(self._table, self._action)
            return self._decoder.decode(self._action)
        assert self._session is not None
        self._session.run_with_iobinding(self._binding)
        return self._decoder.decode(self._action)

    def _rows(self, knobs: Knobs) -> FloatArray:
        """What the encoder takes of the knobs that hold: mostly those decided last, or those that held last time."""
        if self._shape is None:
            raise RuntimeError("the agent has not been reset yet: call reset() first")
        if self._decided is not None and knobs.same_as(self._decided[0]):
            return self._decided[1]
        if self._encoded is None or not knobs.same_as(self._encoded[0]):
            rows = self._rows_of.encode(knobs) if self._policy is None else self._policy.codec.knob_rows(knobs)
            self._encoded = knobs, rows
        return self._encoded[1]

    def __getstate__(self) -> dict[str, Any]:
        """Without the session, which cannot be pickled; the copy makes its own at its next reset."""
        kept = {key: value for key, value in self.__dict__.items() if key != "_binding"}
        return kept | dict.fromkeys(("_session", "_program", "_policy", "_shape", "_decided", "_encoded"))


def _bind(session: ort.InferenceSession, table: FloatArray, action: FloatArray) -> ort.IOBinding:
    """Input and output in place: a run neither allocates nor copies what goes in and out."""
    binding = session.io_binding()
    for bind, name, array in ((binding.bind_input, INPUT_NAME, table), (binding.bind_output, OUTPUT_NAME, action)):
        bind(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
    return binding


def _compiled(model: bytes, shape: tuple[int, int, int]) -> Program | None:
    """The policy as a program, if it can be compiled."""
    try:
        from slicepilot.agents.runtime.program import compile_policy

        program = compile_policy(model, shape)
        program.ready()
    except (ImportError, OnnxError) as error:
        logging.getLogger(__name__).info("policy not compiled: %s", error)
        return None
    return program


def _if_it_agrees(
    program: Program, session: ort.InferenceSession, shape: tuple[int, int, int], action: FloatArray
) -> Program | None:
    from slicepilot.agents.runtime.agreement import agrees

    if agrees(program, session, shape, action.shape[-1]):
        return program
    logging.getLogger(__name__).warning("policy not compiled: it would decide otherwise than onnxruntime")
    return None
