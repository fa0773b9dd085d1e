"""Models in ONNX of other exporters: flat or tables, with any number of lanes or one, and further outputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from slicepilot.agents.learned.agent import LearnedAgent
from slicepilot.agents.learned.bundle import PolicyBundle
from slicepilot.agents.learned.onnx_files import read_onnx
from slicepilot.configs import ConfigError
from slicepilot.env.encoding import NUM_FEATURES
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.evaluation.rollouts import simulate_rollout
from slicepilot.training.policies.load import load_policy

SLICES = 5


def model(
    given: list[Any], taken: list[Any], weights: np.ndarray, outputs: tuple[str, ...] = ("action",), dtype: int = 1
) -> bytes:
    """A linear policy over flat observations, whatever the shapes of its ports are declared as."""
    nodes = [
        helper.make_node("Reshape", ["observation", "flat"], ["rows"]),
        helper.make_node("MatMul", ["rows", "weights"], ["product"]),
        helper.make_node("Tanh", ["product"], ["bounded"]),
        helper.make_node("Reshape", ["bounded", "shape"], [outputs[0]]),
        *(helper.make_node("ReduceMean", ["rows"], [name], keepdims=1) for name in outputs[1:]),
    ]
    shape = [size if isinstance(size, int) else -1 for size in taken]
    constants = {
        "flat": np.asarray([-1, len(weights)]),
        "weights": weights.astype(np.float32),
        "shape": np.asarray(shape),
    }
    graph = helper.make_graph(
        nodes,
        "policy",
        [helper.make_tensor_value_info("observation", dtype, given)],
        [helper.make_tensor_value_info(outputs[0], TensorProto.FLOAT, taken)]
        + [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1]) for name in outputs[1:]],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return made.SerializeToString()


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_every_shape_of_ports_decides_alike(tmp_path: Path) -> None:
    width, actions = SLICES * NUM_FEATURES, SLICES * 3
    weights = np.random.default_rng(0).normal(0, 0.3, (width, actions))
    ports: list[tuple[list[Any], list[Any]]] = [
        (["n", width], ["n", actions]),
        ([1, width], [1, actions]),
        (["n", width], ["n", SLICES, 3]),
        (["n", SLICES, NUM_FEATURES], ["n", SLICES, 3]),
        ([1, SLICES, NUM_FEATURES], [1, actions]),
    ]
    scenario = Scenario.from_yaml("andrade-ramp")
    quick = replace(scenario, control_period_s=30.0)
    runs = []
    for given, taken in ports:
        path = written(tmp_path / "mine.onnx", model(given, taken, weights, ("actions", "values")))
        agent = load_policy(f"onnx:{path}")
        assert agent.name == "mine"
        runs.append(simulate_rollout(agent, quick, 3, 1))
    assert np.ptp(runs[0].reward) > 0.01
    for run in runs[1:]:
        np.testing.assert_allclose(run.reward, runs[0].reward, rtol=0, atol=1e-4)


def test_a_flat_model_serves_as_many_slices_and_is_kept_byte_for_byte(tmp_path: Path) -> None:
    content = model(["n", 3 * NUM_FEATURES], ["n", 9], np.ones((3 * NUM_FEATURES, 9)))
    path = written(tmp_path / "three.onnx", content)
    bundle = read_onnx(path, "policy", "three")
    assert (len(bundle.slices), bundle.transfers) == (3, "same-number")
    bundle.save(tmp_path / "bundle")
    loaded = PolicyBundle.load(tmp_path / "bundle")
    assert loaded.model == content
    with pytest.raises(ConfigError, match=r"slices: 5 given; expected 3: its network is for as many"):
        loaded.for_slices(Scenario.from_yaml("andrade-ramp").slice_set(), transfer=True)
    with pytest.raises(ConfigError, match=r"is for 3 slices; expected 5, those of the scenario"):
        read_onnx(path, "policy", "three", Scenario.from_yaml("andrade-ramp").slice_set())
    description = tmp_path / "bundle" / "bundle.yaml"  # a bundle that says another number than its network has
    assert description.exists()
    agent = LearnedAgent(PolicyBundle(**{**vars(loaded), "transfers": True}), transfer=True)
    with pytest.raises(ConfigError, match=r"policy.onnx: is for 3 slices; expected 5"):
        simulate_rollout(agent, Scenario.from_yaml("andrade-ramp"), 1, 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (model(["n", 101], ["n", 15], np.ones((101, 15))), r"input = .*expected observation of 32-bit floats"),
        (model(["n", 100], ["n", 12], np.ones((100, 12))), r"input of 5 slices, output of 4: expected the same"),
        (model([4, 100], [4, 15], np.ones((100, 15))), r"input = .*\(lanes, slices \* 20\)"),
        (b"no model", "not a model"),
    ],
)
def test_other_models_say_what_is_expected(content: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        load_policy(f"onnx:{written(tmp_path / 'bad.onnx', content)}")
