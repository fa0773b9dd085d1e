"""A policy's model in onnxruntime, checked: what it consists of, what goes in and what comes out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from slicepilot.env.arrays import FloatArray

from .allowed import OnnxError, check_model

if TYPE_CHECKING:
    import onnxruntime as ort

INPUT_NAME, OUTPUT_NAME = "observation", "action"


def open_session(model: bytes, columns: int, actions: int) -> ort.InferenceSession:
    """A fresh session on one thread, of a model that `allowed` accepts.

    Args:
        model: serialised.
        columns: of an observation.
        actions: columns of an action.

    Raises:
        OnnxError: not such a model, or its input is not ``observation`` (L, S, columns), its output not ``action``
            (L, S, actions), with L and S open.
    """
    check_model(model)
    import onnxruntime as ort  # some 20 MiB, which only a process that runs policies needs

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3
    try:
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises a dozen types of its own
        first_line = str(error).splitlines()[0][:200]
        raise OnnxError(f"not a model that onnxruntime {ort.__version__} can run: {first_line}") from error
    sides: tuple[tuple[Literal["input", "output"], Any, str, int], ...] = (
        ("input", session.get_inputs(), INPUT_NAME, columns),
        ("output", session.get_outputs(), OUTPUT_NAME, actions),
    )
    for side, values, name, width in sides:
        shapes = {value.name: list(value.shape) for value in values}
        shape = shapes.get(name)
        dynamic = shape is not None and len(shape) == 3 and not any(isinstance(n, int) for n in shape[:2])
        if len(shapes) != 1 or not dynamic or shape is None or shape[2] != width:
            raise OnnxError(f"{side} = {shapes}: expected {name} of shape (lanes, slices, {width})")
    return session


class OnnxNetwork:
    """A model that onnxruntime runs on given arrays: a run neither allocates nor copies input and output."""

    def __init__(self, session: ort.InferenceSession) -> None:
        self._session = session

    def bind(self, table: FloatArray, action: FloatArray) -> None:
        """Arrays that `run` reads and fills, (L, S, D) and (L, S, A)."""
        self._binding = self._session.io_binding()
        self._binding.bind_input(INPUT_NAME, "cpu", 0, np.float32, table.shape, table.ctypes.data)
        self._binding.bind_output(OUTPUT_NAME, "cpu", 0, np.float32, action.shape, action.ctypes.data)

    def run(self) -> None:
        """Decide."""
        self._session.run_with_iobinding(self._binding)
