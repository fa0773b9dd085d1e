"""A guided policy is shown the rule's decision and what it came from, and does what the rule does until it learns."""

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from slicepilot.agents.heuristics.queue_greedy import QueueGreedy
from slicepilot.agents.learned.agent import LearnedAgent
from slicepilot.agents.learned.bundle import PolicyBundle, TrainingRecord
from slicepilot.agents.learned.guide import (
    GUIDE_FEATURES,
    NUM_GUIDED,
    RULE_AT,
    Guide,
)
from slicepilot.agents.learned.guide_kernels import CORRECTIONS, FREE_ABOVE, LET_GO_ABOVE, NUM_CORRECTIONS, departed
from slicepilot.configs import ConfigError
from slicepilot.env.backend import PACERS
from slicepilot.env.encoding import NUM_FEATURES, KnobDecoder
from slicepilot.env.knobs import Knobs
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend
from slicepilot.env.simulator.mixture import MixtureEpisodes
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.env.slices import SliceSet
from slicepilot.training.networks import guided
from slicepilot.training.networks.export import to_onnx
from slicepilot.training.networks.slice_network import (
    CLIPPED_GAIN,
    ActionHead,
    DeterministicPolicy,
    NetworkConfig,
    SliceEncoder,
)
from slicepilot.training.online.references import some_lanes

RECORD = TrainingRecord(
    algorithm="ppo", seed=0, env_steps=0, train_s=0.0, source="", run_id=None, git_revision=None, versions={}, config={}
)


def column(name: str) -> int:
    return NUM_FEATURES + GUIDE_FEATURES.index(name)


@pytest.fixture(scope="module", name="untrained")
def _untrained() -> guided.GuidedPolicy:
    torch.manual_seed(0)
    encoder, actor, *_ = guided.network(NetworkConfig(width=16))
    with torch.no_grad():
        actor.out.weight.zero_()
    return guided.GuidedPolicy(encoder, actor)


def bundle_of(policy: guided.GuidedPolicy, slices: SliceSet) -> PolicyBundle:
    return PolicyBundle(slices, to_onnx(policy), RECORD, coding="guided")


@pytest.mark.parametrize("scenario", ["multi-promise", "link-degradation", "slice-churn"])
def test_before_it_learns_it_does_what_the_rule_does(scenario: str, untrained: guided.GuidedPolicy) -> None:
    spec = Scenario.from_yaml(scenario)
    learned = LearnedAgent(bundle_of(untrained, ScenarioRuns(spec).slices), transfer=True)
    backend = SimulatorBackend(ScenarioRuns(spec), 3)
    telemetry = backend.reset(0)
    rule = QueueGreedy()
    for agent in (rule, learned):
        agent.reset(backend.slices, backend.context, 0)
    knobs = Knobs.none(len(backend.slices), 3)
    for _ in range(60):
        wanted, done = rule.decide(telemetry, knobs), learned.decide(telemetry, knobs)
        np.testing.assert_array_equal(np.isinf(wanted.values), np.isinf(done.values))
        finite = np.isfinite(wanted.values)
        np.testing.assert_allclose(done.values[finite], wanted.values[finite], rtol=2e-3, atol=1e-3)
        knobs = backend.apply(wanted).applied
        telemetry = backend.observe()


def test_every_entry_is_a_finite_number_within_the_space() -> None:
    backend = SimulatorBackend(MixtureEpisodes.from_yaml("widest"), 64)
    telemetry = backend.reset(3)
    guide, rng, seen = Guide(backend.slices, backend.context), np.random.default_rng(0), []
    rows = KnobDecoder(backend.slices).encode(Knobs.none(len(backend.slices), 64))
    for _ in range(40):
        seen.append(guide.encode(telemetry, rows))
        knobs, rows = guide.decode(rng.uniform(-1, 1, (64, len(backend.slices), NUM_CORRECTIONS)).astype(np.float32))
        backend.apply(knobs)
        telemetry = backend.observe()
    tables = np.asarray(seen)
    assert tables.shape[-1] == NUM_GUIDED
    assert np.isfinite(tables).all()
    assert np.abs(tables).max() <= 1.0
    shown = tables.reshape(-1, NUM_GUIDED)[:, NUM_FEATURES:]
    still = {name for name, values in zip(GUIDE_FEATURES, shown.T, strict=True) if np.ptp(values) == 0}
    assert still == {"pacer_none"}  # the simulator always has a pacer


@pytest.mark.parametrize("odd", [np.nan, np.inf, -1.0])
def test_figures_that_are_no_numbers_are_forgotten(odd: float) -> None:
    backend = SimulatorBackend(MixtureEpisodes.from_yaml("widest"), 4)
    telemetry = backend.reset(0)
    rows = KnobDecoder(backend.slices).encode(Knobs.none(len(backend.slices), 4))
    encoder = Guide(backend.slices, backend.context)
    broken = telemetry.copy()
    broken.slices[:] = odd
    broken.node[:] = odd
    for shown in (telemetry, broken, telemetry):
        table = encoder.encode(shown, rows)
        assert np.isfinite(table).all()
        assert np.abs(table).max() <= 1.0


def shares_policy() -> DeterministicPolicy:
    network = NetworkConfig(width=16)
    return DeterministicPolicy(SliceEncoder(network), ActionHead(network, CLIPPED_GAIN))


@pytest.mark.parametrize("coding", ["guided", "shares"])
def test_a_lane_is_decided_for_as_if_it_were_alone(coding: Any, untrained: guided.GuidedPolicy) -> None:
    torch.manual_seed(0)
    policy = copy.deepcopy(untrained) if coding == "guided" else shares_policy()
    with torch.no_grad():  # away from the nearly constant start
        for parameter in policy.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    spec = Scenario.from_yaml("multi-promise")
    backend, single = (SimulatorBackend(ScenarioRuns(spec), lanes) for lanes in (3, 1))
    bundle = PolicyBundle(backend.slices, to_onnx(policy), RECORD, coding=coding)
    together, alone = LearnedAgent(bundle), LearnedAgent(bundle)
    telemetry, _ = backend.reset(1), single.reset(1)
    together.reset(backend.slices, backend.context, 0)
    alone.reset(single.slices, single.context, 0)
    knobs = Knobs.none(len(backend.slices), 3)
    for _ in range(30):
        lane = some_lanes(telemetry, slice(1))
        alone.warm_up(lane)  # looks at nothing that the decision would miss
        expected = alone.decide(lane, Knobs(some_lanes(knobs.values, slice(1))))
        decided = together.decide(telemetry, knobs)
        np.testing.assert_allclose(decided.values[..., :1], expected.values, rtol=1e-4)
        knobs = backend.apply(decided).applied
        telemetry = backend.observe()


def test_a_guide_that_shows_something_else_is_refused(untrained: guided.GuidedPolicy, tmp_path: Any) -> None:
    folder = tmp_path / "bundle"
    bundle_of(untrained, SliceSet.from_yaml("five-video")).save(folder)
    description = folder / "bundle.yaml"
    description.write_text(description.read_text().replace("- trend", "- fashion"))
    import hashlib

    sums = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in ("policy.onnx", "bundle.yaml")}
    (folder / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()))
    with pytest.raises(ConfigError, match=r"encoder\.features.*'fashion'"):
        PolicyBundle.load(folder)


# -- corrections ---------------------------------------------------------------------------------------------------


def limits(departures: Any, rule: float) -> np.ndarray:
    """Where limits come to be, for departures from one rule and a share of 0.1."""
    at, share, reach = np.float32(rule), np.float32(0.1), np.float32(0.3)
    return np.asarray([departed(np.float32(departure), at, share, reach) for departure in departures])


@pytest.mark.parametrize("rule", [0.1, -0.5, 1.0])
def test_no_departure_is_the_rule(rule: float) -> None:
    np.testing.assert_allclose(limits([0.0], rule), [rule], atol=1e-6)


@pytest.mark.parametrize("rule", [0.1, 1.0])
def test_more_departure_is_never_a_tighter_limit(rule: float) -> None:
    positions = limits(np.linspace(-1, 1, 81), rule)
    assert (np.diff(positions) >= -1e-6).all()
    assert positions[0] < 0.1 < positions[-1] == 1.0


def test_a_free_slice_stays_free_and_a_limited_one_limited_for_small_departures() -> None:
    assert limits([FREE_ABOVE + 0.01], 1.0)[0] == 1.0
    assert limits([LET_GO_ABOVE - 0.01], 0.1)[0] <= 0.9


class OneStep:
    """A guide that has seen a mixture's first period, to be corrected."""

    def __init__(self, lanes: int = 64, **traits: Any) -> None:
        self.backend = SimulatorBackend(MixtureEpisodes.from_yaml("widest"), lanes)
        telemetry = self.backend.reset(1)
        slices, context = self.backend.slices, self.backend.context
        assert context.traits is not None
        context = dataclasses.replace(context, traits=dataclasses.replace(context.traits, **traits))
        self.valid, self.lanes = telemetry.valid, lanes
        limit, nice, rate = (np.full(self.valid.shape, value, np.float32) for value in (700.0, 3.0, 20.0))
        self.held = KnobDecoder(slices).encode(Knobs.of(limit, nice, rate))
        self.guide = Guide(slices, context)
        self.table = self.guide.encode(telemetry, self.held)

    def corrected(self, **by: float) -> tuple[Knobs, np.ndarray]:
        action = np.zeros((self.lanes, self.valid.shape[0], NUM_CORRECTIONS), np.float32)
        for name, value in by.items():
            action[..., CORRECTIONS.index(name)] = value
        return self.guide.decode(action)


def test_where_nothing_paces_egress_is_left_alone() -> None:
    none = np.full(64, PACERS.index("none"), np.float32)
    step = OneStep(pacer=none)
    assert np.isinf(step.corrected(egress=-1.0)[0].egress_mbps[step.valid]).all()
    assert np.isfinite(OneStep().corrected(egress=-1.0)[0].egress_mbps[step.valid]).all()


def test_an_absent_slice_keeps_its_knobs() -> None:
    step = OneStep()
    assert not step.valid.all()
    _, rows = step.corrected(cpu_limit=1.0, nice=-1.0, egress=-1.0)
    np.testing.assert_allclose(rows[:, ~step.valid], step.held[:, ~step.valid], atol=2e-3)


def test_a_bid_moves_capacity_from_one_slice_to_another() -> None:
    """With every other slice bid down, a slice is granted its promise wherever that alone fits."""
    step = OneStep(256)
    kept = RULE_AT + GUIDE_FEATURES.index("kept")
    action = np.full((256, step.valid.shape[0], NUM_CORRECTIONS), 0.0, np.float32)
    action[..., 0] = -1.0
    action[:, 0, 0] = 1.0
    step.guide.decode(action)
    before, after = step.table[:, 0, kept] > 0, step.guide._rule.state["kept"][0]
    assert (after | ~before).mean() > 0.99
    assert (after & ~before).sum() > 0


def test_who_is_taken_to_need_less_is_kept_beside_more_others() -> None:
    kept = []
    for need in (-1.0, 0.0, 1.0):
        step = OneStep(256)
        step.corrected(need=need)
        kept.append(int(step.guide._rule.state["kept"][step.valid].sum()))
    assert kept[0] > kept[1] > kept[2]


@pytest.mark.parametrize("bad", [np.zeros((2, 3, NUM_CORRECTIONS)), np.full((64, 12, NUM_CORRECTIONS), np.nan)])
def test_corrections_of_another_shape_or_no_numbers_are_refused(bad: np.ndarray) -> None:
    with pytest.raises(ValueError, match="expected"):
        OneStep().guide.decode(bad)
