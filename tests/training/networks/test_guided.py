"""A policy of corrections: equivariant, none for the absent, and its weights come back from its export."""

import numpy as np
import torch

from slicepilot.agents.learned.bundle import PolicyBundle, TrainingRecord
from slicepilot.agents.learned.guide import NUM_GUIDED
from slicepilot.env.encoding import FEATURES
from slicepilot.env.slices import SliceSet
from slicepilot.training.networks import guided
from slicepilot.training.networks.export import check_agreement, to_onnx
from slicepilot.training.networks.importing import load_weights
from slicepilot.training.networks.slice_network import NetworkConfig
from slicepilot.training.online.config import TrainingConfig

RECORD = TrainingRecord(
    algorithm="ppo", seed=0, env_steps=0, train_s=0.0, source="", run_id=None, git_revision=None, versions={}, config={}
)
ACTIVE = FEATURES.index("active")


def policy(seed: int, width: int = 16) -> guided.GuidedPolicy:
    torch.manual_seed(seed)
    encoder, actor, *_ = guided.network(NetworkConfig(width=width))
    with torch.no_grad():  # biases too: the exporter merges equal tensors, which no trained network has
        for parameter in (*encoder.parameters(), *actor.parameters()):
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return guided.GuidedPolicy(encoder, actor)


def test_the_order_of_slices_does_not_matter() -> None:
    made, rng = policy(0), np.random.default_rng(0)
    tables = torch.from_numpy(rng.uniform(0, 1, (8, 6, NUM_GUIDED)).astype(np.float32))
    order = torch.from_numpy(rng.permutation(6))
    with torch.no_grad():
        torch.testing.assert_close(made(tables)[:, order], made(tables[:, order]))


def test_weights_come_back_from_the_export() -> None:
    first, second = policy(0), policy(1)
    bundle = PolicyBundle(SliceSet.from_yaml("five-video"), to_onnx(first), RECORD, coding="guided")
    load_weights(second, bundle)
    for ours, theirs in zip(second.parameters(), first.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert check_agreement(second, bundle.model).max_abs_error <= 1e-5


def test_an_absent_slice_is_not_corrected_and_influences_nobody() -> None:
    table, others, made = torch.rand(4, 6, NUM_GUIDED), [0, 1, 3, 4, 5], policy(0)
    table[..., ACTIVE] = 1.0
    table[:, 2, ACTIVE] = 0.0
    with torch.no_grad():
        corrections = made(table)
        torch.testing.assert_close(corrections[:, others], made(table[:, others]))
    assert (corrections[:, 2] == 0).all()
    assert (corrections[:, others] != 0).any()


def test_a_policy_for_a_node_starts_from_the_shipped_policy() -> None:
    encoder, actor, *_ = guided.network(TrainingConfig.from_yaml("node").network)
    load_weights(guided.GuidedPolicy(encoder, actor), PolicyBundle.load("generalist"))
