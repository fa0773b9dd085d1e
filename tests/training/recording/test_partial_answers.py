"""Ranges of a server that calls answers partial: nothing of their time is taken for measured."""

from __future__ import annotations

from typing import Any

import pytest

from slicepilot.configs import ConfigError, validate
from slicepilot.controller.telemetry.prometheus.config import PrometheusSpec
from slicepilot.env.reward import RewardWeights
from slicepilot.env.slices import SliceSet
from slicepilot.training.recording.prometheus import Imported, Range, to_episodes
from tests.controller.telemetry.prometheus.servers import compatible

START_S = 1_790_000_000


def imported(address: str, slices: SliceSet) -> Imported:
    labels = {
        name: {"namespace": "core", "pod": f"upf-{name}", "container": "upf", "ping": "a"} for name in slices.names
    }
    spec = validate(PrometheusSpec, {"url": f"http://{address}", "slices": labels}, "test")
    node = {"uplink_mbps": 100.0, "logical_cpus": 4.0}
    return to_episodes(spec, slices, node, Range(START_S, START_S + 600, 30, 20), RewardWeights.from_yaml("default"))


@pytest.fixture(name="slices")
def _slices() -> SliceSet:
    return SliceSet.from_yaml("testbed-five")


@pytest.mark.parametrize("row", ["quantile(0.99", "container_spec_cpu_quota"])
def test_a_partial_answer_of_a_row_or_a_knob_leaves_nothing_measured(row: str, slices: SliceSet) -> None:
    more: dict[str, Any] = {"warnings": ["a store is away"]}
    words = r"enough was measured for a reward: .* a partial answer: a store is away$"
    with compatible(more=more, partial_rows=(row,)) as (address, _), pytest.raises(ConfigError, match=words):
        imported(address, slices)


def test_remarks_are_handed_on_and_the_figures_used(slices: SliceSet) -> None:
    with compatible(more={"infos": ["not a counter"]}) as (address, _):
        made = imported(address, slices)
    assert made.partial == 0
    assert "offered_mbps: not a counter" in made.remarks
    assert made.episodes.num_steps == 20
