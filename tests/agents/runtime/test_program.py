"""A compiled policy decides as onnxruntime does, operator by operator and for whole networks."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from slicepilot.agents.learned.agent import LearnedAgent
from slicepilot.agents.learned.bundle import PolicyBundle, TrainingRecord
from slicepilot.agents.runtime.codec import CompiledCodec
from slicepilot.agents.runtime.onnx_file import OnnxError, read_graph
from slicepilot.agents.runtime.policy import CompiledPolicy
from slicepilot.agents.runtime.program import compile_graph, compile_policy
from slicepilot.env.backend import Context
from slicepilot.env.encoding import NUM_FEATURES, KnobDecoder, ObservationEncoder
from slicepilot.env.knobs import KNOB_FIELDS, Knobs
from slicepilot.env.slices import Promises, SliceSet
from slicepilot.env.telemetry import Telemetry
from slicepilot.training.networks.export import random_observations, to_onnx
from slicepilot.training.networks.slice_network import ActionHead, DeterministicPolicy, NetworkConfig, SliceEncoder

SHAPE = (1, 5, 4)


def model_of(nodes: list[Any], constants: dict[str, Any], inputs: tuple[int, ...] = SHAPE) -> bytes:
    """A model from ``x`` to ``y``."""
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(inputs))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return bytes(model.SerializeToString())


def both(model: bytes, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the compiled program and onnxruntime make of an input."""
    reference: Any = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    ours = np.zeros_like(reference)
    compile_graph(read_graph(model), x.shape).run(x, ours)
    return ours, reference


F = np.float32
AXIS1 = np.asarray([1], np.int64)
CASES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    **{
        op: ([helper.make_node(op, ["x"], ["y"])], {})
        for op in ("Relu", "Tanh", "Exp", "Neg", "Sigmoid", "Identity", "Transpose")
    },
    "Log": ([helper.make_node("Sigmoid", ["x"], ["s"]), helper.make_node("Log", ["s"], ["y"])], {}),
    **{
        f"{op}, broadcast": (
            [helper.make_node(op, ["x", "c"], ["y"])],
            {"c": np.asarray([[0.5], [-0.3], [2], [1], [0.1]], F)},
        )
        for op in ("Add", "Sub", "Mul", "Div", "Max", "Min")
    },
    **{
        f"{op}, then a choice": (
            [helper.make_node(op, ["x", "c"], ["t"]), helper.make_node("Where", ["t", "x", "c"], ["y"])],
            {"c": F(0.1)},
        )
        for op in ("Greater", "Less", "GreaterOrEqual", "LessOrEqual")
    },
    "logic": (
        [
            helper.make_node("Greater", ["x", "c"], ["a"]),
            helper.make_node("Less", ["x", "d"], ["b"]),
            helper.make_node("And", ["a", "b"], ["both"]),
            helper.make_node("Not", ["both"], ["no"]),
            helper.make_node("Or", ["no", "a"], ["or"]),
            helper.make_node("Cast", ["or"], ["y"], to=TensorProto.FLOAT),
        ],
        {"c": F(-0.5), "d": F(0.5)},
    ),
    **{
        f"{op} {'keeps' if keep else 'drops'} its axis": (
            [helper.make_node(op, ["x", "axes"], ["y"], keepdims=keep)],
            {"axes": AXIS1},
        )
        for op in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean")
        for keep in (0, 1)
    },
    "sum over two axes": ([helper.make_node("ReduceSum", ["x", "axes"], ["y"])], {"axes": np.asarray([-1, 1])}),
    "sum over all": ([helper.make_node("ReduceSum", ["x"], ["y"])], {}),
    "Slice": (
        [helper.make_node("Slice", ["x", "from", "to", "axes", "steps"], ["y"])],
        {
            "from": np.asarray([1, -3]),
            "to": np.asarray([5, 4]),
            "axes": np.asarray([1, 2]),
            "steps": np.asarray([2, 1]),
        },
    ),
    "Gather": ([helper.make_node("Gather", ["x", "i"], ["y"], axis=2)], {"i": np.asarray([3, 0, -1])}),
    "GatherND": ([helper.make_node("GatherND", ["x", "i"], ["y"])], {"i": np.asarray([[0, 3], [0, 1]])}),
    "Split": (
        [
            helper.make_node("Split", ["x", "sizes"], ["a", "b"], axis=2),
            helper.make_node("Concat", ["b", "a", "x"], ["y"], axis=2),
        ],
        {"sizes": np.asarray([1, 3])},
    ),
    "reshaping": (
        [
            helper.make_node("Reshape", ["x", "shape"], ["a"]),
            helper.make_node("Transpose", ["a"], ["b"], perm=[1, 0]),
            helper.make_node("Unsqueeze", ["b", "axes"], ["c"]),
            helper.make_node("Squeeze", ["c", "axes"], ["d"]),
            helper.make_node("Mul", ["d", "b"], ["y"]),
        ],
        {"shape": np.asarray([5, -1]), "axes": AXIS1},
    ),
    "Clip": ([helper.make_node("Clip", ["x", "low", "high"], ["y"])], {"low": F(-0.2), "high": F(0.4)}),
    "Clip, no lower bound": ([helper.make_node("Clip", ["x", "", "high"], ["y"])], {"high": F(0.4)}),
    "MatMul": ([helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": np.arange(24, dtype=F).reshape(4, 6) / 10}),
    "Gemm": (
        [
            helper.make_node("Reshape", ["x", "shape"], ["rows"]),
            helper.make_node("Gemm", ["rows", "w", "b"], ["y"], transB=1),
        ],
        {"shape": np.asarray([5, 4]), "w": np.arange(24, dtype=F).reshape(6, 4) / 10, "b": np.arange(6, dtype=F)},
    ),
    "two layers, of six and of seven inputs": (
        [
            helper.make_node("MatMul", ["x", "w"], ["p"]),
            helper.make_node("Add", ["p", "b"], ["q"]),
            helper.make_node("Relu", ["q"], ["r"]),
            helper.make_node("MatMul", ["r", "v"], ["s"]),
            helper.make_node("Relu", ["s"], ["t"]),
            helper.make_node("Concat", ["t", "x"], ["u"], axis=2),
            helper.make_node("MatMul", ["u", "z"], ["y"]),
        ],
        {
            "w": np.cos(np.arange(24, dtype=F)).reshape(4, 6),
            "b": np.sin(np.arange(6, dtype=F)),
            "v": np.sin(np.arange(18, dtype=F)).reshape(6, 3),
            "z": np.cos(np.arange(14, dtype=F)).reshape(7, 2),
        },
    ),
    "a product that is taken before and after bias and ReLU": (
        [
            helper.make_node("MatMul", ["x", "w"], ["p"]),
            helper.make_node("Add", ["p", "b"], ["q"]),
            helper.make_node("Relu", ["q"], ["r"]),
            helper.make_node("Mul", ["q", "r"], ["s"]),
            helper.make_node("Add", ["p", "s"], ["y"]),
        ],
        {"w": np.cos(np.arange(24, dtype=F)).reshape(4, 6), "b": np.sin(np.arange(6, dtype=F))},
    ),
    "float64 inside": (
        [
            helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.DOUBLE),
            helper.make_node("Add", ["wide", "big"], ["sum"]),
            helper.make_node("Sub", ["sum", "big"], ["back"]),
            helper.make_node("Cast", ["back"], ["y"], to=TensorProto.FLOAT),
        ],
        {"big": np.asarray(1e7)},
    ),
    "constants are folded": (
        [
            helper.make_node("Mul", ["two", "two"], ["four"]),
            helper.make_node("Shape", ["x"], ["shape"]),
            helper.make_node("Expand", ["four", "shape"], ["fours"]),
            helper.make_node("Sub", ["fours", "x"], ["y"]),
        ],
        {"two": F(2)},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_operator_does_what_onnxruntime_does(case: str) -> None:
    nodes, constants = CASES[case]
    x = np.random.default_rng(0).uniform(-1, 1, SHAPE).astype(F)
    ours, reference = both(model_of(nodes, constants), x)
    np.testing.assert_allclose(ours, reference, rtol=1e-6, atol=1e-6)


@pytest.fixture(scope="module")
def policy() -> bytes:
    return untrained(0)


def untrained(seed: int) -> bytes:
    """A policy that decides something at random, as a model."""
    torch.manual_seed(seed)
    made = DeterministicPolicy(
        SliceEncoder(NetworkConfig(width=16)), ActionHead(NetworkConfig(width=16), (1.0, 1.0, 1.25))
    )
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return to_onnx(made)


@pytest.mark.parametrize("num_slices", [1, 2, 5, 64])
def test_a_policy_decides_as_onnxruntime_does(policy: bytes, num_slices: int) -> None:
    program = compile_policy(policy, (1, num_slices, NUM_FEATURES))
    session = ort.InferenceSession(policy, providers=["CPUExecutionProvider"])
    action = np.zeros((1, num_slices, 3), np.float32)
    for table in random_observations(num_slices, 200, np.random.default_rng(num_slices)):
        program.run(table[None], action)
        reference: Any = session.run(None, {"observation": table[None]})[0]
        np.testing.assert_allclose(action, reference, atol=1e-5)


@pytest.mark.parametrize("num_slices", [1, 5, 64])
def test_in_one_call_the_same_is_decided(policy: bytes, num_slices: int) -> None:
    slices = SliceSet.from_yaml("five-video").repeated(num_slices)
    one = np.ones(1, np.float32)
    context = Context(one, 4 * one, 1000 * one, Promises.of(slices, 1), slices.column("upf_threads"), 1)
    shape = (1, num_slices, NUM_FEATURES)
    encoder, decoder = ObservationEncoder(context), KnobDecoder(slices)
    program, codec = compile_policy(policy, shape), CompiledCodec(encoder, decoder)
    together = CompiledPolicy(compile_policy(policy, shape), CompiledCodec(encoder, decoder))
    action, rng, decided = np.zeros((1, num_slices, 3), np.float32), np.random.default_rng(num_slices), []
    rows = decoder.encode(Knobs.none(num_slices))
    for _ in range(20):
        telemetry = Telemetry.empty(num_slices)
        telemetry.slices[:] = rng.exponential(100.0, telemetry.slices.shape)
        telemetry.node[:], telemetry.valid[:] = rng.random((2, 1)), rng.random((num_slices, 1)) < 0.9
        program.run(codec.encode(telemetry, rows), action)
        expected, expected_rows = codec.decode(action)
        knobs, rows = together.decide(telemetry, rows)
        decided.append((knobs, knobs.copy()))
        np.testing.assert_array_equal(rows, expected_rows)
        for name in KNOB_FIELDS:
            np.testing.assert_array_equal(getattr(knobs, name), getattr(expected, name))
    for knobs, copy in decided:  # decisions are the caller's to keep
        np.testing.assert_array_equal(knobs.cpu_limit_mcpu, copy.cpu_limit_mcpu)


def test_a_policy_that_says_no_number_is_refused(policy: bytes) -> None:
    slices = SliceSet.from_yaml("five-video")
    one = np.ones(1, np.float32)
    context = Context(one, 4 * one, 1000 * one, Promises.of(slices, 1), slices.column("upf_threads"), 1)
    decoder, program = KnobDecoder(slices), compile_policy(policy, (1, 5, NUM_FEATURES))
    program.weights[:] = np.nan
    broken = CompiledPolicy(program, CompiledCodec(ObservationEncoder(context), decoder))
    with pytest.raises(ValueError, match="not a number"):
        broken.decide(Telemetry.empty(5), decoder.encode(Knobs.none(5)))


def test_a_single_node_is_decided_by_the_compiled_policy(policy: bytes) -> None:
    slices = SliceSet.from_yaml("five-video")
    bundle = PolicyBundle(slices, policy, TrainingRecord("ppo", 0))
    decided = []
    for lanes in (1, 2):
        agent, ones = LearnedAgent(bundle), np.ones(lanes, np.float32)
        threads = slices.column("upf_threads") * ones
        agent.reset(slices, Context(0.005 * ones, 2 * ones, 1000 * ones, Promises.of(slices, lanes), threads, 10), 0)
        assert agent.compiled is (lanes == 1)
        telemetry = Telemetry.empty(5, lanes)
        telemetry.slices[:] = np.random.default_rng(0).uniform(0, 50, (len(telemetry.slices), 5, 1))
        decided.append(agent.decide(telemetry, Knobs.none(5, lanes)).cpu_limit_mcpu[:, :1])
        agent.warm_up(telemetry)
        again = agent.decide(telemetry, Knobs.none(5, lanes)).cpu_limit_mcpu[:, :1]
        np.testing.assert_array_equal(decided[-1], again)
    np.testing.assert_allclose(*decided, rtol=1e-4)


def test_what_another_process_has_compared_needs_no_onnxruntime_here(
    policy: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    slices, one = SliceSet.from_yaml("five-video"), np.ones(1, np.float32)
    context = Context(0.005 * one, 2 * one, 1000 * one, Promises.of(slices, 1), slices.column("upf_threads"), 10)
    bundle = PolicyBundle(slices, policy, TrainingRecord("ppo", 0))
    compared, otherwise = (LearnedAgent(bundle, tried=(1, count, NUM_FEATURES)) for count in (5, 4))
    expected = LearnedAgent(bundle)
    expected.reset(slices, context, 0)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    compared.reset(slices, context, 0)
    assert compared.compiled
    telemetry = Telemetry.empty(5)
    first, second = (agent.decide(telemetry, Knobs.none(5)).values for agent in (expected, compared))
    np.testing.assert_array_equal(first, second)
    with pytest.raises(ImportError):  # for another number of slices nobody has compared anything
        otherwise.reset(slices, context, 0)


def test_what_is_not_supported_is_named() -> None:
    softmax = model_of([helper.make_node("Softmax", ["x"], ["y"])], {})
    with pytest.raises(OnnxError, match="operator Softmax; accepted: Add, And"):
        compile_graph(read_graph(softmax), SHAPE)
    computed = [helper.make_node("Relu", ["x"], ["w"]), helper.make_node("MatMul", ["x", "w"], ["y"])]
    with pytest.raises(OnnxError, match="'w' is computed; accepted: a constant"):
        compile_graph(read_graph(model_of(computed, {}, (4, 4))), (4, 4))


@given(st.binary(max_size=200))
def test_bytes_that_are_no_model_are_refused(data: bytes) -> None:
    with pytest.raises(OnnxError):
        read_graph(data)


def test_a_damaged_model_is_read_or_refused_but_never_anything_else() -> None:
    nodes, constants = CASES["Gemm"]
    model = bytearray(model_of(nodes, constants))
    rng = np.random.default_rng(0)
    for _ in range(500):
        damaged = bytearray(model)
        damaged[int(rng.integers(len(model)))] = int(rng.integers(256))
        try:
            read_graph(bytes(damaged))
        except OnnxError:
            continue
