"""Slice sets, scenarios and hardware come in validated; what is wrong is named with its value and what is accepted."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from slicepilot.configs import ConfigError, available, validate
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.hardware import Hardware
from slicepilot.env.simulator.mixture import MixtureEpisodes
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.env.slices import Promises, SliceSet

GOOD: dict[str, Any] = {
    "slices": [
        {"name": "a", "s_nssai": {"sst": 1, "sd": "0000aa"}, "sla": {"committed_mbps": 10, "delay_bound_ms": 5}},
        {"name": "b", "s_nssai": {"sst": 1}, "sla": {"committed_mbps": 20, "delay_bound_ms": 50}, "weight": 3},
    ]
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The good set with one value replaced, e.g. ``slices.0.weight``; ``None`` removes it."""
    document = copy.deepcopy(GOOD)
    *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
    at: Any = document
    for part in parents:
        at = at[part] if isinstance(part, int) else at.setdefault(part, {})
    if value is None:
        del at[last]
    else:
        at[last] = value
    return document


def test_a_slice_set_in_order() -> None:
    slices = validate(SliceSet, GOOD, "good")
    assert slices.names == ("a", "b")
    assert [str(s.s_nssai) for s in slices.slices] == ["1-0000AA", "1"]
    assert slices.priority_index == 1
    assert slices.index("b") == 1
    np.testing.assert_array_equal(slices.column("sla.committed_mbps"), [[10], [20]])
    np.testing.assert_array_equal(slices.bound("cpu_limit_mcpu", 1), [[1000], [1000]])
    promises = Promises.of(slices, 3)
    assert promises.delay_bound_us.shape == (2, 3)
    np.testing.assert_array_equal(promises.delay_bound_us[:, 0], [5000, 50_000])
    with pytest.raises(KeyError, match="unknown slice 'c'; expected a, b"):
        slices.index("c")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("slices", [], "slices = list: .*at least 1"),
        ("slices.1.s_nssai", {"sst": 1, "sd": "0000AA"}, "slices = list: duplicate s_nssai 1-0000AA"),
        ("slices.0.name", "no spaces", "slices.0.name = 'no spaces': "),
        ("slices.0.s_nssai.sd", "12345", "slices.a.s_nssai.sd = '12345': expected six hexadecimal digits in quotes"),
        (
            "slices.0.s_nssai.sd",
            1,
            "slices.a.s_nssai.sd = 1: a number, since YAML drops leading zeros without quotes; expected six hex",
        ),
        ("slices.0.sla.committed_mbps", float("nan"), "slices.a.sla.committed_mbps = nan: .*finite"),
        ("slices.0.sla.delay_bound_ms", float("inf"), "slices.a.sla.delay_bound_ms = inf: .*finite"),
        ("slices.0.weight", 0, "slices.a.weight = 0: .*greater than 0"),
        (
            "slices.0.wieght",
            2,
            "slices.a.wieght = 2: unknown field; did you mean weight. expected one of name, s_nssai",
        ),
        ("slices.0.bounds.nice", [5, -5], "slices.a.bounds.nice = list: lower bound 5 must be below upper bound -5"),
        ("slices.0.bounds.nice", [-21, 0], "slices.a.bounds.nice.0 = -21: .*-20"),
        ("slices.0.bounds.egress_mbps", [10, 10], "slices.a.bounds.egress_mbps = list: lower bound 10 must be below"),
    ],
)
def test_what_is_wrong_is_named(path: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        validate(SliceSet, changed(path, value), "mine.yaml")
    text = str(error.value)
    assert "\n" not in text
    assert re.match(f"mine.yaml: {message}", text), text


def test_everything_shipped_is_valid() -> None:
    for name in available("slices"):
        assert len(SliceSet.from_yaml(name)) >= 1
    for name in available("hardware"):
        Hardware.from_yaml(name)
    for name in available("scenarios"):
        assert Scenario.from_yaml(name).name == name
    for name in available("reward"):
        RewardWeights.from_yaml(name)
    for name in available("mixtures"):
        MixtureEpisodes.from_yaml(name)


SCENARIO: dict[str, Any] = {
    "name": "mine",
    "description": "one slice",
    "slices": "five-video",
    "hardware": "andrade",
    "duration_s": 10,
    "control_period_s": 1,
    "loads": {"slice1": [{"kind": "video", "rate_mbps": 45}]},
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hardware": "andrada"}, "hardware: unknown name 'andrada'; did you mean andrade"),
        ({"loads": {"slice9": []}}, "scenario mine: loads: unknown slice 'slice9'; expected slice1, slice2"),
        ({"absent": {"slice0": [1, 2]}}, "scenario mine: absent: unknown slice 'slice0'; expected slice1"),
        ({"loads": {"slice1": [{"kind": "quic"}]}}, "s.yaml: loads.slice1.0.kind = 'quic': .*'video'"),
        ({"loads": {"slice1": [{"kind": "cbr", "rate_mbps": -1}]}}, "s.yaml: loads.slice1.0.rate_mbps = -1: "),
        ({"control_period_s": 0.001}, "s.yaml: control_period_s = 0.001: .*0.002"),
        ({"uplink_profile": [[5, 1], [5, 2]]}, "s.yaml: uplink_profile = list: times must increase"),
    ],
)
def test_scenarios_are_validated(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump(SCENARIO | change))
    with pytest.raises(ConfigError) as error:
        Scenario.from_yaml(str(file))
    text = str(error.value)
    assert "\n" not in text
    assert re.match(message, text), text
