"""Departures: nothing at 0, limits that go from a slice's share both ways, and pacers that are not there left alone."""

import numpy as np
import pytest
import torch

from slicepilot.agents.learned.bundle import PolicyBundle, TrainingRecord
from slicepilot.agents.learned.guide import GUIDE_FEATURES, NUM_GUIDED, RULE_AT
from slicepilot.env.encoding import FEATURES, NUM_FEATURES
from slicepilot.env.slices import SliceSet
from slicepilot.training.networks import guided
from slicepilot.training.networks.export import check_agreement, to_onnx
from slicepilot.training.networks.guided import FREE_ABOVE, LET_GO_ABOVE, knob_action
from slicepilot.training.networks.importing import load_weights
from slicepilot.training.networks.slice_network import NetworkConfig

RECORD = TrainingRecord(
    algorithm="ppo", seed=0, env_steps=0, train_s=0.0, source="", run_id=None, git_revision=None, versions={}, config={}
)
ACTIVE = FEATURES.index("active")


def table(**fields: float) -> torch.Tensor:
    """One slice of one node, (1, 1, D)."""
    made = torch.zeros(1, 1, NUM_GUIDED)
    made[..., ACTIVE] = 1.0
    for name, value in fields.items():
        at = RULE_AT + GUIDE_FEATURES.index(name) if name in GUIDE_FEATURES else FEATURES.index(name)
        made[..., at] = value
    return made


def action(limit: float, nice: float, egress: float, shown: torch.Tensor) -> np.ndarray:
    return knob_action(torch.tensor([[[limit, nice, egress]]]), shown)[0, 0].numpy()


LIMITED = {"rule_cpu_limit": 0.1, "share_cpu": 0.1, "rule_nice": -0.25, "rule_egress": 0.2, "share_egress": 0.2}
FREE = LIMITED | {"rule_cpu_limit": 1.0, "rule_egress": 1.0}


def test_no_departure_is_the_rule() -> None:
    np.testing.assert_allclose(action(0, 0, 0, table(**LIMITED)), [0.1, -0.25, 0.2], atol=1e-6)
    np.testing.assert_allclose(action(0, 0, 0, table(**FREE)), [1.0, -0.25, 1.0], atol=1e-6)


@pytest.mark.parametrize("rule", [LIMITED, FREE])
def test_more_departure_is_never_a_tighter_limit(rule: dict[str, float]) -> None:
    course = np.asarray([action(d, d, d, table(**rule)) for d in np.linspace(-1, 1, 81)])
    assert (np.diff(course, axis=0) >= -1e-6).all()
    assert course[0, 0] < rule["share_cpu"] < course[-1, 0] == 1.0
    assert course[0, 2] < rule["share_egress"] < course[-1, 2] == 1.0


def test_a_free_slice_stays_free_and_a_limited_one_limited_for_small_departures() -> None:
    assert action(FREE_ABOVE + 0.01, 0, FREE_ABOVE + 0.01, table(**FREE))[[0, 2]].tolist() == [1.0, 1.0]
    assert (action(LET_GO_ABOVE - 0.01, 0, LET_GO_ABOVE - 0.01, table(**LIMITED))[[0, 2]] <= 0.9).all()


def test_where_nothing_paces_egress_is_left_alone() -> None:
    assert action(-1, 0, -1, table(**LIMITED, pacer_none=1.0))[2] == 1.0


def test_an_absent_slice_keeps_its_knobs() -> None:
    shown = table(**LIMITED, cpu_limit=0.3, nice=0.5, egress=-0.2)
    shown[..., ACTIVE] = 0.0
    np.testing.assert_allclose(action(1, 1, 1, shown), [0.3, 0.5, -0.2], atol=1e-6)


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
    bundle = PolicyBundle(SliceSet.from_yaml("five-video"), to_onnx(first), RECORD, guided=True)
    load_weights(second, bundle)
    for ours, theirs in zip(second.parameters(), first.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert check_agreement(second, bundle.model).max_abs_error <= 1e-5


def test_the_plain_table_comes_first() -> None:
    assert RULE_AT == NUM_FEATURES
