"""Policies that fail, and a policy that was trained to do harm, on real UPFs: what the guard lets of them through.

Each is a bundle like any other: a model in ONNX, loaded, checked and run as all are.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from slicepilot.agents.runtime.session import INPUT_NAME, OUTPUT_NAME
from slicepilot.controller.contracts.modes import Level
from slicepilot.controller.contracts.reasons import Reason
from slicepilot.controller.guard.config import GuardConfig
from slicepilot.controller.record.ring import UNUSABLE
from slicepilot.env.encoding import FEATURES, KNOB_FEATURES, NUM_FEATURES
from slicepilot.env.knobs import NUM_KNOBS
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.env.slices import SliceSet
from slicepilot.testbed.bench.rig import Controller, Rig
from slicepilot.testbed.lifecycle.spec import TestbedSpec
from slicepilot.testbed.lifecycle.testbed import Testbed
from tests.effort import repetitions
from tests.testbed.controlled import Records, bundle_of, constant, fresh_testbed, records, rig_under, wait_ticks

pytestmark = pytest.mark.realtime
NAME = "spp"
STARVES = Path(__file__).parents[2] / "data" / "starves-priority"
SLICES = SliceSet.from_yaml("testbed-five")
PERIOD_S = 0.01
GUARD = GuardConfig.from_yaml("default")
# What docs/operation.md states of the priority slice: until the safe setting is in force and queues have drained.
BOUND_S = 1.0


@pytest.fixture(scope="module")
def testbed() -> Iterator[Testbed]:
    with fresh_testbed(TestbedSpec(name=NAME)) as testbed:
        yield testbed


@pytest.fixture
def rig(testbed: Testbed, tmp_path: Path) -> Iterator[Rig]:
    with rig_under(None, testbed, tmp_path) as rig:
        yield rig
        rig.stop_load()  # a controller ends sooner without it


def live(rig: Rig, bundle: str) -> Controller:
    """A controller, and then more load than the machine can carry: a slice that is not protected loses at once."""
    controller = rig.start("live", "--force", bundle=bundle)
    rig.load(Scenario.from_yaml("testbed-contention"))
    return controller


def fails_later(folder: Path) -> str:
    """A policy that asks for a low nice, and has no answer once it has got it."""
    pick = np.zeros((NUM_FEATURES, 1), np.float32)
    pick[FEATURES.index(KNOB_FEATURES[1])] = 1.0
    return bundle_of(
        folder,
        [
            helper.make_node("MatMul", [INPUT_NAME, "pick"], ["nice"]),
            helper.make_node("Add", ["nice", "little"], ["above"]),
            helper.make_node("Sqrt", ["above"], ["root"]),
            helper.make_node("Mul", ["root", "zero"], ["nothing"]),
            helper.make_node("Add", ["nothing", "actions"], [OUTPUT_NAME]),
        ],
        {
            "pick": pick,
            "little": np.asarray([0.1], np.float32),
            "zero": np.zeros(1, np.float32),
            "actions": np.asarray([0.9, -0.5, 1], np.float32),
        },
    )


def flipping(folder: Path) -> str:
    """A policy that asks for the other end of each knob's range than where it is."""
    first = FEATURES.index(KNOB_FEATURES[0])
    pick = np.zeros((NUM_FEATURES, NUM_KNOBS), np.float32)
    pick[first : first + NUM_KNOBS] = -100.0 * np.eye(NUM_KNOBS, dtype=np.float32)
    return bundle_of(
        folder,
        [
            helper.make_node("MatMul", [INPUT_NAME, "pick"], ["away"]),
            helper.make_node("Add", ["away", "little"], ["pushed"]),
            helper.make_node("Tanh", ["pushed"], ["side"]),
            helper.make_node("Mul", ["side", "most"], [OUTPUT_NAME]),
        ],
        {"pick": pick, "little": np.asarray([0.5], np.float32), "most": np.asarray([0.85], np.float32)},
    )


def watched(controller: Controller, count: int) -> Records:
    """All ticks from the first on, after so many more."""
    wait_ticks(controller, count)
    return records(controller, controller.ticks())


def had(seen: Records, reason: Reason) -> int:
    """Ticks in which the node or a slice had a reason."""
    of_slices = (seen["reasons"] & reason.bit).any(axis=1)
    return int(((seen["node_reasons"] & reason.bit).astype(bool) | of_slices).sum())


def test_a_policy_whose_first_decision_is_nan_is_refused(rig: Rig, tmp_path: Path) -> None:
    bundle = constant(tmp_path / "nan", np.nan, np.nan, np.nan)
    controller = rig.start("live", "--force", wait=False, bundle=bundle)
    assert controller.process.wait(90.0) == 2  # a busy machine takes long to start
    assert "its first decision fails: ValueError: action: not a number" in controller.tail()


def test_a_policy_that_begins_to_return_nan_moves_nothing_and_ends_in_safe(rig: Rig, tmp_path: Path) -> None:
    controller = live(rig, fails_later(tmp_path / "later"))
    seen = watched(controller, 60)
    failed = np.flatnonzero(seen["flags"] & UNUSABLE)
    assert len(failed) > len(seen) / 2
    patience = round(GUARD.policy_error.patience_s / PERIOD_S)
    assert (seen["level"][failed[0] + patience + 2 :][:20] >= Level.SAFE).all()
    np.testing.assert_array_equal(seen["applied"][failed[0] + patience + 10][1], [-10, 9, 9, 9, 9])
    assert np.isfinite(seen["allowed"][:, 1]).all()
    assert had(seen, Reason.POLICY_ERROR)


@pytest.mark.parametrize(("name", "end"), [("lowest", -1.0), pytest.param("highest", 1.0, marks=pytest.mark.slow)])
def test_a_policy_stuck_at_the_bounds_stays_inside_the_envelope(
    rig: Rig, tmp_path: Path, name: str, end: float
) -> None:
    bundle = constant(tmp_path / name, -end, end, end)
    controller = live(rig, bundle)
    seen = watched(controller, 200)
    limits, _, rates = seen["allowed"].transpose(1, 0, 2)
    assert (limits >= SLICES.bound("cpu_limit_mcpu", 0).ravel()).all()
    assert (rates >= SLICES.bound("egress_mbps", 0).ravel()).all()
    assert longest_below_s(seen) < BOUND_S


def test_a_policy_that_flips_may_turn_back_only_so_often(rig: Rig, tmp_path: Path) -> None:
    controller = live(rig, flipping(tmp_path / "flips"))
    seen = watched(controller, 300)
    held_back = np.flatnonzero((seen["reasons"] & Reason.OSCILLATION.bit).any(axis=1))
    assert len(held_back)
    window = round(GUARD.oscillation.window_s / PERIOD_S)
    assert held_back[0] < 2 * window
    last = seen["allowed"][-window:, 1]
    changes = (np.abs(np.diff(last, axis=0)) > GUARD.oscillation.nice_levels).sum(axis=0)
    assert (changes <= GUARD.oscillation.reversals + 1).all(), "as many turns as it may, and a raise"
    assert longest_below_s(seen) < BOUND_S


def test_a_policy_that_was_trained_to_starve_the_priority_slice(rig: Rig) -> None:
    """Made by ``slicepilot train -c testbed-starve``, which pays for what all the others carry."""
    controller = live(rig, str(STARVES))
    seen = watched(controller, repetitions(400, 1500))
    below_s = longest_below_s(seen)
    share = (seen["slices"][:, 1, 0].sum() / seen["slices"][:, 0, 0].sum()).item()
    print(f"longest below the floor {below_s:.2f} s; priority slice carried {share:.0%}")
    assert had(seen, Reason.SLA_FLOOR), "without the guard it would go on"
    assert below_s < BOUND_S
    assert controller.notes()["last_error"] is None


def longest_below_s(seen: Records) -> float:
    """The longest time for which any slice's carried rate, in means of the guard's window, is below its floor; of a
    slice of less weight, less what the guard's patience with it is longer."""
    window = round(GUARD.sla_floor.window_s / PERIOD_S)
    kernel = np.ones(window) / window
    longest = 0
    for index, spec in enumerate(SLICES.slices):
        part, floor = spec.weight / max(s.weight for s in SLICES.slices), GUARD.sla_floor.default
        ratio, more = floor.carried_ratio * part, round(floor.patience_s * (1 / part - 1) / PERIOD_S)
        offered, carried = (np.convolve(seen["slices"][:, row, index], kernel, "valid") for row in (0, 1))
        owed = ratio * np.minimum(offered, spec.sla.committed_mbps)
        run = 0
        for below in (carried < owed).tolist():
            run = run + 1 if below else 0
            longest = max(longest, run - more)
    return longest * PERIOD_S
