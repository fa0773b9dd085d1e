"""Configurations of the guard, and arrays of any layout."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from slicepilot.configs import ConfigError, available, load, validate
from slicepilot.controller.guard.config import GuardConfig
from slicepilot.controller.guard.guard import Guard
from slicepilot.env.knobs import Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

from .node import Node, column, config, context, knobs, slice_set

# -- configurations ------------------------------------------------------------------------------------------------


def test_shipped_configurations() -> None:
    assert load("guard", "default", GuardConfig) == GuardConfig()
    assert available("guard") == ["default", "prometheus"]
    for name in available("guard"):
        given = GuardConfig.from_yaml(name)
        assert validate(GuardConfig, dataclasses.asdict(given), "again") == given
        for slices in map(SliceSet.from_yaml, available("slices")):
            Guard(given, slices, context(slices))


def leaves(kind: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    result: list[tuple[str, ...]] = []
    for entry in dataclasses.fields(kind):
        value = getattr(kind, entry.name)
        inner = (*path, entry.name)
        result += leaves(value, inner) if dataclasses.is_dataclass(value) else [inner]
    return result


@pytest.mark.parametrize("value", ["often", -1e9, math.nan])
def test_every_field_is_checked(value: Any) -> None:
    for path in leaves(GuardConfig()):
        document: Any = value
        for name in reversed(path):
            document = {name: document}
        with pytest.raises(ConfigError, match=rf"^test: {'.'.join(path)} = "):
            validate(GuardConfig, document, "test")


def test_slices_take_from_the_default_what_they_do_not_say() -> None:
    given = config(
        safe={"default": {"nice": 3, "egress_mbps": 50}, "slices": {"s1": {"nice": -3}, "priority": {"egress_mbps": 0}}}
    )
    node = Node(given)
    node.guard.order_safe()
    node.tick(knobs())
    assert column(node.last, "nice") == [3, -3, 3]
    assert column(node.last, "egress_mbps") == [0, 50, 50]


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"floor": {"slices": {"s11": {}}}}, r"floor.slices = 's11': unknown slice; did you mean s1"),
        ({"safe": {"default": {"nice": 18}}}, "safe setting of s0: nice = 18: expected -15 to 15"),
        ({"safe": {"default": {"cpu_limit_mcpu": 20}}}, "cpu_limit_mcpu = 20: expected none, 50 to 1000"),
        ({"safe": {"slices": {"s2": {"egress_mbps": 1e4}}}}, "egress_mbps = 10000: expected none, 0, 1 to 1000"),
        (
            {"safe": {"default": {"cpu_limit_mcpu": 90}}, "floor": {"slices": {"s1": {"cpu_limit_mcpu": 100}}}},
            "of s1: cpu_limit_mcpu = 90: expected none, 100 to 1000",
        ),
        ({"floor": {"default": {"cpu_limit_mcpu": 700}}}, "floors of all slices = 2100 mCPU: expected at most 2000"),
        ({"floor": {"default": {"egress_mbps": 2000}}}, "egress_mbps = 2000: expected at most its bound 1000"),
        *(
            ({part: {"default": {"cpu_limit_mcpu": 400}}, "budget": {"cpu_limits_ratio": 0.5}}, "1200 mCPU")
            for part in ("floor", "safe")
        ),
        (
            {"safe": {"slices": {"s0": {"nice": 10}}}, "floor": {"slices": {"s0": {"cpu_share_mcpu": 200}}}},
            r"floor of s0: cpu_share_mcpu = 200: expected at most 101\.9",
        ),
    ],
)
def test_an_envelope_that_contradicts_itself_is_refused(sections: dict[str, Any], message: str) -> None:
    slices = slice_set()
    with pytest.raises(ConfigError, match=message):
        Guard(config(**sections), slices, context(slices))


def starve(node: Node) -> None:
    node.telemetry.carried_mbps[0] = 1.0
    node.tick(knobs(), 50)


def be_late(node: Node) -> None:
    for _ in range(20):
        node.guard.overran(node.now_ns)
    node.tick(knobs())


def turn_back(node: Node) -> None:
    for n in range(40):
        node.tick(knobs(nice=10 if n % 2 else -10))


@pytest.mark.parametrize(
    ("section", "given", "act", "reason"),
    [
        ("hysteresis", {"limit_ratio": 0.5}, lambda node: (node.tick(knobs(900)), node.tick(knobs(800))), "hysteresis"),
        ("dwell", {"cpu_limit_s": 1.0}, lambda node: (node.tick(knobs(900)), node.tick(knobs(300))), "dwell"),
        ("slew", {"cpu_limit_per_s": 1.0}, lambda node: node.tick(knobs(100)), "slew"),
        ("oscillation", {}, turn_back, "oscillation"),
        ("floor", {"default": {"cpu_limit_mcpu": 200}}, lambda node: node.tick(knobs(100)), "floor"),
        ("floor", {"default": {"cpu_share_mcpu": 200}}, lambda node: node.tick(knobs(nice=[15, -15, -15])), "floor"),
        ("budget", {"cpu_limits_ratio": 0.5}, lambda node: node.tick(knobs(900)), "budget"),
        ("sla_floor", {}, starve, "sla_floor"),
        ("overruns", {}, be_late, "overrun"),
    ],
)
def test_a_rule_can_be_switched_off(
    section: str, given: dict[str, Any], act: Callable[[Node], object], reason: str
) -> None:
    loose = {"dwell": {"enabled": False}, "slew": {"enabled": False}, "oscillation": {"enabled": False}}
    for enabled in (True, False):
        node = Node(config(**loose | {section: given | {"enabled": enabled}}))
        act(node)
        assert (reason in {given.label for given, _ in node.guard.counts}) == enabled


# -- arrays ----------------------------------------------------------------------------------------------------------


def test_arrays_of_any_layout_and_precision_are_judged_alike() -> None:
    node, odd = Node(), Node()
    rng = np.random.default_rng(3)
    for tick in range(9):
        wanted = knobs(rng.uniform(100, 900, 3).astype(np.float32), rng.integers(-9, 9, 3), 20)
        double: Any = wanted.values.astype(float)
        values = (double, np.repeat(wanted.values, 2, axis=1)[:, ::2], np.asfortranarray(wanted.values))[tick % 3]
        odd.telemetry = Telemetry(
            np.asfortranarray(odd.telemetry.slices), odd.telemetry.node, odd.telemetry.age_s, odd.telemetry.valid
        )
        first, second = node.tick(wanted), odd.tick(Knobs(values))
        assert (first.reasons == second.reasons).all()
        assert (first.allowed.values == second.allowed.values).all()


# -- by weight -----------------------------------------------------------------------------------------------------


def test_the_safe_setting_and_floors_follow_weights() -> None:
    slices = slice_set()
    node = Node(GuardConfig(), slices)
    node.guard.order_safe()
    node.tick(knobs())
    assert column(node.last, "nice") == [-10.0, 9.0, 9.0], "s0 weighs 3, the others 2"
    ratios = node.guard._state.slices["carried_ratio"].tolist()
    assert ratios == pytest.approx([0.5, 1 / 3, 1 / 3])
    assert node.guard._state.slices["patience_ns"].tolist() == pytest.approx([3e8, 4.5e8, 4.5e8])
    own = Node(validate(GuardConfig, {"sla_floor": {"slices": {"s1": {"carried_ratio": 0.8}}}}, "test"), slices)
    assert own.guard._state.slices["carried_ratio"].tolist() == pytest.approx([0.5, 0.8, 1 / 3])


def test_process_nice_has_no_order() -> None:
    slices = slice_set()
    guard = Guard(GuardConfig(), slices, context(slices), nice_scope="process")
    guard.order_safe()
    allowed = guard.judge(Telemetry.empty(3), knobs(scope="process"), knobs(scope="process"), 10**12).allowed
    assert allowed.nice[:, 0].tolist() == [0.0] * 3
