"""A policy's model in onnxruntime, checked: what it consists of, what goes in and what comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from slicepilot.env.arrays import FloatArray

from .allowed import OnnxError, check_model

if TYPE_CHECKING:
    import onnxruntime as ort

INPUT_NAME, OUTPUT_NAME = "observation", "action"
FLOAT_TENSOR = "tensor(float)"


@dataclass(frozen=True)
class Ports:
    """A model's input and output.

    A table has the shape (lanes, slices, columns). A flat port has the rows of a lane concatenated, as the environment
    gives them: (lanes, slices * columns).

    Attributes:
        input, output: their names.
        flat_input, flat_output: whether they are flat.
        num_slices: that the model is made for; None: any number.
        single_lane: whether it takes one lane at a time.
    """

    input: str
    output: str
    flat_input: bool = False
    flat_output: bool = False
    num_slices: int | None = None
    single_lane: bool = False

    def given(self, table: FloatArray) -> FloatArray:
        """A view of observations (L, S, D) as the model takes them."""
        return table.reshape(len(table), -1) if self.flat_input else table

    def taken(self, action: FloatArray) -> FloatArray:
        """A view of actions (L, S, A) as the model writes them."""
        return action.reshape(len(action), -1) if self.flat_output else action


def open_session(model: bytes, columns: int, actions: int) -> ort.InferenceSession:
    """A fresh session on one thread, of a model that `allowed` accepts.

    Args:
        model: serialised.
        columns: of an observation.
        actions: columns of an action.

    Raises:
        OnnxError: not such a model, or `ports_of` refuses it.
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
    ports_of(session, columns, actions)
    return session


def ports_of(session: ort.InferenceSession, columns: int, actions: int) -> Ports:
    """Which input and output of a model are the policy's: its only input; the output called ``action`` or its first.

    Raises:
        OnnxError: the input is neither (lanes, slices, columns) nor (lanes, slices * columns), the output neither
            (lanes, slices, actions) nor (lanes, slices * actions), both of 32-bit floats and of as many slices. Lanes
            are open or 1.
    """
    inputs, outputs = session.get_inputs(), session.get_outputs()
    named = [value for name in (OUTPUT_NAME, f"{OUTPUT_NAME}s") for value in outputs if value.name == name]
    result = (named or list(outputs))[0]
    lanes, slices_in, flat_input = _sizes("input", inputs, inputs[0], columns)
    lanes_out, slices_out, flat_output = _sizes("output", outputs, result, actions)
    if slices_in is not None and slices_out is not None and slices_in != slices_out:
        raise OnnxError(f"input of {slices_in} slices, output of {slices_out}: expected the same number")
    slices = slices_in if slices_out is None else slices_out
    single = lanes == 1 or lanes_out == 1
    return Ports(inputs[0].name, result.name, flat_input, flat_output, slices, single)


def _sizes(side: str, values: Any, value: Any, width: int) -> tuple[int | None, int | None, bool]:
    """Lanes and slices of a port, None where they are open, and whether it is flat; raises OnnxError."""
    shape = [size if isinstance(size, int) else None for size in value.shape]
    flat = len(shape) == 2
    slices = shape[1] // width if flat and shape[1] is not None else shape[1] if len(shape) == 3 else None
    fits = (slices is not None and shape[1] == slices * width > 0) if flat else len(shape) == 3 and shape[2] == width
    alone = side == "output" or len(values) == 1
    if not (fits and alone and value.type == FLOAT_TENSOR and shape[0] in (None, 1)):
        shown = {each.name: list(each.shape) for each in values}
        name = INPUT_NAME if side == "input" else OUTPUT_NAME
        raise OnnxError(
            f"{side} = {shown}: expected {name} of 32-bit floats and shape (lanes, slices, {width}) or "
            f"(lanes, slices * {width})"
        )
    return shape[0], slices, flat


class OnnxNetwork:
    """A model that onnxruntime runs on given arrays: a run neither allocates nor copies input and output."""

    def __init__(self, session: ort.InferenceSession) -> None:
        self._session = session
        self._bindings: list[Any] = []

    def bind(self, table: FloatArray, action: FloatArray) -> None:
        """Arrays that `run` reads and fills, (L, S, D) and (L, S, A)."""
        ports = ports_of(self._session, table.shape[2], action.shape[2])
        lanes = len(table)
        parts = [slice(lane, lane + 1) for lane in range(lanes)] if ports.single_lane else [slice(lanes)]
        self._bindings = [self._binding(ports, table[part], action[part]) for part in parts]

    def _binding(self, ports: Ports, table: FloatArray, action: FloatArray) -> Any:
        binding, given, taken = self._session.io_binding(), ports.given(table), ports.taken(action)
        binding.bind_input(ports.input, "cpu", 0, np.float32, given.shape, given.ctypes.data)
        binding.bind_output(ports.output, "cpu", 0, np.float32, taken.shape, taken.ctypes.data)
        return binding

    def run(self) -> None:
        """Decide."""
        for binding in self._bindings:
            self._session.run_with_iobinding(binding)
