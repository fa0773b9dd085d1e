"""Hostile models of policies: what a model may consist of, and what a trial of it can do to this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from slicepilot.agents.learned.bundle import PolicyBundle, TrainingRecord
from slicepilot.agents.runtime.allowed import MOST_ENTRIES, MOST_NODES, OnnxError, check_model
from slicepilot.agents.runtime.session import INPUT_NAME, OUTPUT_NAME
from slicepilot.configs import ConfigError
from slicepilot.controller.service.trial import Trial, try_out
from slicepilot.env.encoding import NUM_FEATURES
from slicepilot.env.knobs import NUM_KNOBS
from slicepilot.env.slices import SliceSet

ROOT = Path(__file__).parents[2]
SHIPPED = ["agents/learned/bundles/generalist", "tests/data/starves-priority"]


def model_of(nodes: Sequence[onnx.NodeProto], constants: Mapping[str, Any] | None = None, **fields: Any) -> bytes:
    """A model with the ports of a policy."""
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["lanes", "slices", width])]
        for name, width in ((INPUT_NAME, NUM_FEATURES), (OUTPUT_NAME, NUM_KNOBS))
    )
    initial = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(nodes, "policy", inputs, outputs, initial)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9, **fields)
    return model.SerializeToString()


def acting(*before: onnx.NodeProto) -> list[onnx.NodeProto]:
    """A policy that takes its first observations for an action, after some more nodes."""
    return [*before, helper.make_node("Slice", [INPUT_NAME, "from", "to", "axes"], [OUTPUT_NAME])]


CUT = {"from": np.asarray([0]), "to": np.asarray([NUM_KNOBS]), "axes": np.asarray([2])}


def endless() -> list[onnx.NodeProto]:
    """A loop whose condition stays true."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [
            helper.make_tensor_value_info("round", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, [])],
    )
    return acting(helper.make_node("Loop", ["", "true"], [], body=body))


def branching() -> list[onnx.NodeProto]:
    branch = helper.make_graph(
        [helper.make_node("Constant", [], ["c"], value_float=1.0)], "b", [], [helper.make_tensor_value_info("c", 1, [])]
    )
    return acting(helper.make_node("If", ["true"], ["c"], then_branch=branch, else_branch=branch))


def slow(products: int = 2000, size: int = 1000) -> bytes:
    """A straight line that takes minutes, or so many products of matrices of so many rows."""
    first = [
        helper.make_node("ReduceMax", [INPUT_NAME], ["largest"], keepdims=0),
        helper.make_node("Expand", ["largest", "shape"], ["m0"]),
        *(helper.make_node("MatMul", [f"m{k}", f"m{k}"], [f"m{k + 1}"]) for k in range(products)),
        helper.make_node("ReduceMax", [f"m{products}"], ["last"], keepdims=0),
        helper.make_node("Slice", [INPUT_NAME, "from", "to", "axes"], ["cut"]),
        helper.make_node("Add", ["cut", "last"], [OUTPUT_NAME]),
    ]
    return model_of(first, CUT | {"shape": np.asarray([size, size])})


def huge() -> bytes:
    """A straight line that takes 40 GB."""
    return slow(0, 100_000)


def observed_shape() -> list[onnx.NodeProto]:
    """As large as an observation says: small when it is tried out, large when it matters."""
    return acting(
        helper.make_node("ReduceMax", [INPUT_NAME], ["largest"], keepdims=0),
        helper.make_node("Cast", ["largest"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Unsqueeze", ["whole", "zero"], ["size"]),
        helper.make_node("Expand", ["largest", "size"], ["large"]),
    )


def in_another_file() -> bytes:
    model = onnx.load_from_string(model_of(acting(), CUT))
    tensor = model.graph.initializer.add()
    tensor.name, tensor.data_type, tensor.data_location = "secret", TensorProto.FLOAT, TensorProto.EXTERNAL
    tensor.dims.append(4)
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "/etc/shadow"
    return model.SerializeToString()


def message(key: bytes, data: bytes) -> bytes:
    """A field of protobuf."""
    size, length = len(data), b""
    while size > 0x7F:
        length, size = length + bytes([size & 0x7F | 0x80]), size >> 7
    return key + length + bytes([size]) + data


def merged() -> bytes:
    """Two graphs, which a parser of protobuf merges: a look at the first alone would miss the loop."""
    graph = onnx.load_from_string(model_of(endless(), CUT | {"true": np.asarray(True)})).graph
    return model_of(acting(), CUT) + message(b"\x3a", graph.SerializeToString())


def two_operators() -> bytes:
    """A node that says twice what it is; the last counts."""
    node = helper.make_node("Relu", [INPUT_NAME], ["r"]).SerializeToString() + message(b"\x22", b"Loop")
    return model_of(acting(), CUT) + message(b"\x3a", message(b"\x0a", node))


def own_function() -> bytes:
    function = helper.make_function(
        "", "Relu", ["x"], ["y"], [helper.make_node("Neg", ["x"], ["y"])], [helper.make_opsetid("", 18)]
    )
    return model_of(acting(helper.make_node("Relu", [INPUT_NAME], ["r"])), CUT, functions=[function])


REFUSED = {
    "loop": (lambda: model_of(endless(), CUT | {"true": np.asarray(True)}), "a graph inside of a node"),
    "branch": (lambda: model_of(branching(), CUT | {"true": np.asarray(True)}), "a graph inside of a node"),
    "merged": (merged, "a graph inside of a node"),
    "renamed": (two_operators, "operator 'Loop, Relu'"),
    "scan": (lambda: model_of(acting(helper.make_node("Scan", [INPUT_NAME], ["x"])), CUT), "operator 'Scan'"),
    "recurrent": (lambda: model_of(acting(helper.make_node("LSTM", [INPUT_NAME], ["x"])), CUT), "operator 'LSTM'"),
    "domain": (
        lambda: model_of(acting(helper.make_node("Relu", [INPUT_NAME], ["x"], domain="evil")), CUT),
        "an operator of another domain",
    ),
    "function": (own_function, "functions of its own"),
    "file": (in_another_file, "data in another file"),
    "shape": (lambda: model_of(observed_shape(), CUT | {"zero": np.asarray([0])}), "a shape that depends on"),
    "constants": (
        lambda: model_of(acting(), CUT | {"much": np.zeros(MOST_ENTRIES + 1, np.int8)}),
        f"constants of more than {MOST_ENTRIES} entries",
    ),
    "nodes": (
        lambda: model_of(acting(*[helper.make_node("Relu", [INPUT_NAME], [f"x{k}"]) for k in range(MOST_NODES)]), CUT),
        f"more than {MOST_NODES} operators",
    ),
    "fields": (lambda: b"\x08\x01" * 300_000, "more than 200000 fields"),
    "cut": (lambda: model_of(acting(), CUT)[:-3], "it ends inside a field"),
    "endless number": (lambda: b"\xff" * 100, "a number of more than ten bytes"),
    "group": (lambda: b"\x3b" + model_of(acting(), CUT), "wire type 3"),
    "number": (lambda: b"\x38\x01", "a number instead of a message"),
    "nothing": (lambda: b"", "0 graphs"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_straight_line_is_refused_before_a_runtime_sees_it(name: str) -> None:
    make, message = REFUSED[name]
    model, start_s = make(), time.process_time()
    with pytest.raises(OnnxError, match=message) as caught:
        check_model(model)
    assert time.process_time() - start_s < 2.0
    assert "\n" not in str(caught.value)


def test_what_training_exports_is_accepted() -> None:
    for folder in SHIPPED:
        check_model((ROOT / folder / "policy.onnx").read_bytes())
        PolicyBundle.load(ROOT / folder)


def bundle(model: bytes) -> PolicyBundle:
    return PolicyBundle(SliceSet.from_yaml("testbed-five"), model, TrainingRecord("hostile", seed=0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: model_of(endless(), CUT | {"true": np.asarray(True)}), "a graph inside of a node"),
        (slow, "takes more CPU time, or memory, than a policy may"),
        (huge, "policy.onnx: "),
        (lambda: b"\x3a\x04abcd", "policy.onnx: "),
    ],
    ids=["endless", "slow", "huge", "garbage"],
)
def test_a_trial_of_a_hostile_model_ends(make: Callable[[], bytes], message: str) -> None:
    start_s = time.monotonic()
    with pytest.raises(ConfigError, match=message):
        try_out(bundle(make()), Trial(5, 0.01))
    assert time.monotonic() - start_s < 40.0


def test_a_decision_that_takes_longer_than_a_control_period_is_refused() -> None:
    policy = PolicyBundle.load(ROOT / SHIPPED[1])
    try_out(policy, Trial(5, 0.1))
    with pytest.raises(ConfigError, match=r"s of CPU time to decide; expected at most a control period \(1e-06 s\)"):
        try_out(policy, Trial(5, 1e-6))
