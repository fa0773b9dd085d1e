"""The exported policy decides as the trained one does, whatever the number of lanes and slices."""

import math

import numpy as np
import onnx
import pytest
import torch

from slicepilot.agents.learned.deep_sets import ACTIVE, DeepSets
from slicepilot.agents.runtime.allowed import check_model
from slicepilot.env.knobs import NUM_KNOBS
from slicepilot.training.networks.export import (
    OPSET,
    SLICE_COUNTS,
    TOLERANCE,
    ExportError,
    check_agreement,
    random_observations,
    to_onnx,
)
from slicepilot.training.networks.slice_network import ActionHead, DeterministicPolicy, NetworkConfig, SliceEncoder


def policy(seed: int = 0) -> DeterministicPolicy:
    torch.manual_seed(seed)
    network = NetworkConfig(width=32)
    made = DeterministicPolicy(SliceEncoder(network), ActionHead(network, (1.0, 1.0, 1.25)))
    with torch.no_grad():  # away from the nearly constant start
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return made


@pytest.fixture(scope="module")
def exported() -> tuple[DeterministicPolicy, bytes]:
    made = policy()
    return made, to_onnx(made)


def test_onnx_and_torch_agree(exported: tuple[DeterministicPolicy, bytes]) -> None:
    recorded = [random_observations(slices, 7, np.random.default_rng(slices)) for slices in (1, 3, 33)]
    agreement = check_agreement(*exported, [*recorded, recorded[0][:1]])
    assert agreement.max_abs_error <= TOLERANCE
    assert set(SLICE_COUNTS) | {1, 3, 33} == set(agreement.slice_counts)
    assert agreement.observations == 1000 * len(SLICE_COUNTS) + 22


def test_weights_that_are_no_numbers_give_no_action() -> None:
    made = policy()
    with torch.no_grad():
        next(made.encoder.rows.parameters())[3, 0] = math.nan
    compiled = DeepSets.of(check_model(to_onnx(made)), made.columns, NUM_KNOBS)
    assert compiled is not None
    table = random_observations(5, 20, np.random.default_rng(0), made.columns)
    action = np.zeros((20, 5, NUM_KNOBS), np.float32)
    compiled.bind(table, action)
    compiled.run()
    assert not np.isfinite(action[table[..., ACTIVE] > 0.5]).any()


def test_another_network_does_not_pass_for_this_one(exported: tuple[DeterministicPolicy, bytes]) -> None:
    with pytest.raises(ExportError, match="actions differ by"):
        check_agreement(policy(seed=1), exported[1])


def test_the_model_is_one_file_of_a_fixed_opset_without_traces_of_the_machine(
    exported: tuple[DeterministicPolicy, bytes],
) -> None:
    model = onnx.load_from_string(exported[1])
    onnx.checker.check_model(model)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", OPSET)]
    assert all(t.data_location == onnx.TensorProto.DEFAULT for t in model.graph.initializer)
    assert b".py" not in exported[1]
