"""What the guard is given: configurations that hold together, arrays of any kind, kernels compiled or not."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
from numba.core import config as numba_config

from slicepilot.configs import ConfigError, available, load, validate
from slicepilot.controller.contracts.reasons import Reason
from slicepilot.controller.guard import capacity as guard_capacity
from slicepilot.controller.guard import floors as guard_floors
from slicepilot.controller.guard import guard
from slicepilot.controller.guard import moves as guard_moves
from slicepilot.controller.guard import node as guard_node
from slicepilot.controller.guard import telemetry as guard_telemetry
from slicepilot.controller.guard import trips as guard_trips
from slicepilot.controller.guard import watch as guard_watch
from slicepilot.controller.guard import work as guard_work
from slicepilot.controller.guard.config import GuardConfig
from slicepilot.controller.guard.guard import Guard
from slicepilot.env.knobs import KNOB_FIELDS, Knobs
from slicepilot.env.slices import SliceSet
from slicepilot.env.telemetry import Telemetry

from .node import NONE, Node, column, config, context, knobs, slice_set

# -- configurations ------------------------------------------------------------------------------------------------


def test_shipped_configurations() -> None:
    assert load("guard", "default", GuardConfig) == GuardConfig()
    assert available("guard") == ["default", "prometheus", "testbed"]
    for name in available("guard"):
        given = GuardConfig.from_yaml(name)
        assert validate(GuardConfig, dataclasses.asdict(given), "again") == given
        for slices in map(SliceSet.from_yaml, available("slices")):
            Guard(given, slices, context(slices))


def test_the_testbed_is_safe_with_nine_to_one_for_the_priority_slice() -> None:
    slices = SliceSet.from_yaml("testbed-five")
    guard = Guard(GuardConfig.from_yaml("testbed"), slices, context(slices))
    guard.order_safe()
    verdict = guard.judge(Telemetry.empty(5), knobs(count=5), knobs(count=5), 0)
    assert column(verdict, "nice") == [-10, 0, 0, 0, 0]
    assert column(verdict) == [NONE] * 5


def leaves(kind: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for entry in dataclasses.fields(kind):
        value = getattr(kind, entry.name)
        inner = (*path, entry.name)
        found += leaves(value, inner) if dataclasses.is_dataclass(value) else [inner]
    return found


@pytest.mark.parametrize("path", leaves(GuardConfig()), ids=".".join)
@pytest.mark.parametrize("value", ["often", -1e9, math.nan])
def test_every_field_is_checked(path: tuple[str, ...], value: Any) -> None:
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
        (
            {"floor": {"slices": {"s11": {}}}},
            r"floor.slices = 's11': unknown slice; did you mean s1\? expected s0, s1, s2, pri",
        ),
        ({"safe": {"slices": {"video": {}}}}, "safe.slices = 'video': unknown slice; expected s0"),
        ({"sla_floor": {"slices": {"S0": {}}}}, "sla_floor.slices = 'S0'"),
        ({"safe": {"default": {"nice": 18}}}, "safe setting of s0: nice = 18: accepted: -15 to 15"),
        ({"safe": {"default": {"cpu_limit_mcpu": 20}}}, "of s0: cpu_limit_mcpu = 20: accepted: none, 50 to 1000"),
        (
            {"safe": {"slices": {"s2": {"egress_mbps": 1e4}}}},
            "of s2: egress_mbps = 10000: accepted: none, 0, 1 to 1000",
        ),
        (
            {"safe": {"default": {"cpu_limit_mcpu": 90}}, "floor": {"slices": {"s1": {"cpu_limit_mcpu": 100}}}},
            "of s1: cpu_limit_mcpu = 90: accepted: none, 100 to 1000",
        ),
        ({"floor": {"default": {"cpu_limit_mcpu": 700}}}, "floors of all slices = 2100 mCPU: accepted: at most 2000"),
        (
            {"floor": {"default": {"egress_mbps": 2000}}},
            "floor of s0: egress_mbps = 2000: accepted: at most its bound 1000",
        ),
        (
            {"floor": {"default": {"cpu_limit_mcpu": 400}}, "budget": {"cpu_limits_ratio": 0.5}},
            "floors of all slices = 1200 mCPU: accepted: at most 1000",
        ),
        (
            {"safe": {"default": {"cpu_limit_mcpu": 400}}, "budget": {"cpu_limits_ratio": 0.5}},
            "safe: CPU limits of all slices = 1200 mCPU: accepted: at most 1000",
        ),
        (
            {"safe": {"slices": {"s0": {"nice": 10}}}, "floor": {"slices": {"s0": {"cpu_share_mcpu": 200}}}},
            r"floor of s0: cpu_share_mcpu = 200: accepted: at most 101\.9",
        ),
    ],
)
def test_an_envelope_that_contradicts_itself_is_refused(sections: dict[str, Any], message: str) -> None:
    slices = slice_set()
    with pytest.raises(ConfigError, match=message):
        Guard(config(**sections), slices, context(slices))


# -- what a tick costs and leaves ----------------------------------------------------------------------------------


def test_arrays_of_any_layout_and_precision_are_judged_alike() -> None:
    node, odd = Node(GuardConfig()), Node(GuardConfig())
    rng = np.random.default_rng(3)
    for tick in range(100):
        node.telemetry.slices[0] = odd.telemetry.slices[0] = 10 + rng.random()
        wanted = knobs(rng.uniform(100, 900, 3).astype(np.float32), rng.integers(-9, 9, 3), 20)
        double: Any = wanted.values.astype(float)
        frozen = wanted.values.copy()
        frozen.flags.writeable = False
        values = (double, np.repeat(wanted.values, 2, axis=1)[:, ::2], frozen)[tick % 3]
        odd.telemetry = Telemetry(
            np.asfortranarray(odd.telemetry.slices), odd.telemetry.node, odd.telemetry.age_s, odd.telemetry.valid
        )
        first, second = node.tick(wanted), odd.tick(Knobs(values))
        assert (first.reasons == second.reasons).all()
        for name in KNOB_FIELDS:
            assert column(first, name) == column(second, name)
    assert node.guard.counts == odd.guard.counts


def test_telemetry_of_other_slices_is_refused() -> None:
    guard = Node().guard
    with pytest.raises(ValueError, match=r"another shape; accepted: \(3, 1\)"):
        guard.judge(Telemetry.empty(2), knobs(), knobs(), 0)
    with pytest.raises(ValueError, match="another shape"):
        guard.judge(Telemetry.empty(3), knobs(), knobs(count=4), 0)


def interpreted(module: ModuleType) -> ModuleType:
    """The same source without a compiler."""
    assert module.__file__ is not None
    spec = importlib.util.spec_from_file_location(
        f"slicepilot.controller.guard.plain_{Path(module.__file__).stem}", module.__file__
    )
    assert spec is not None
    assert spec.loader is not None
    plain = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plain)
    return plain


def random_run(seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    given = validate(
        GuardConfig, {"floor": {"default": {"cpu_share_mcpu": 50}}, "budget": {"cpu_limits_ratio": 0.9}}, ""
    )
    node, told = Node(given), []
    for tick in range(400):
        node.telemetry.slices[:2] = rng.uniform(0, 20, (2, 3, 1))
        node.telemetry.carried_mbps[0] *= 0.2 if tick > 150 and not node.guard.trips else 1.0
        node.telemetry.runqueue_delay_us[:] = rng.uniform(0, 5000, (3, 1))
        node.telemetry.age_s[0] = rng.choice([0, 0.2], p=[0.95, 0.05])
        node.telemetry.valid[1] = rng.random() < 0.9
        wanted = knobs(rng.choice([40, 60, 300, 900, NONE], 3), rng.integers(-16, 16, 3), rng.choice([0, 5, 900], 3))
        verdict = node.tick(None if rng.random() < 0.02 else wanted)
        told.append(
            (verdict.level, verdict.node_reasons, verdict.reasons.tolist(), column(verdict), column(verdict, "nice"))
        )
    return [*told, node.guard.counts]


@pytest.mark.parametrize("seed", range(3))
def test_compiled_and_interpreted_they_say_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = random_run(seed)
    assert len({level for level, *_ in compiled[:-1]}) > 1
    assert (Reason.SLA_FLOOR, 0) in compiled[-1]
    monkeypatch.setattr(numba_config, "DISABLE_JIT", True)
    kernels = guard_telemetry, guard_capacity, guard_floors, guard_trips, guard_watch, guard_moves, guard_node
    plain = [interpreted(module) for module in kernels]
    for user in (guard_work, *plain):
        for maker in plain:
            for name, thing in vars(maker).items():
                if isinstance(thing, FunctionType) and thing.__module__ == maker.__name__ and hasattr(user, name):
                    monkeypatch.setattr(user, name, thing)
    monkeypatch.setattr(guard_work, "judge", guard_work.judge_of("interpreted"))
    monkeypatch.setattr(guard, "never_compile_again", lambda _: None)
    assert random_run(seed) == compiled
