"""Benches on real UPFs: their figures are for people; checked is only what must hold anywhere."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slicepilot.testbed.lifecycle.removal import running
from slicepilot.testbed.lifecycle.testbed import missing
from tests.command import slicepilot

pytestmark = [
    pytest.mark.realtime,
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=f"this machine lacks {'; '.join(missing())}"),
]


def bench(*arguments: str) -> dict[str, Any]:
    done = slicepilot("bench", *arguments, "--json", timeout=180)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.slow
def test_every_packet_of_a_real_upf_is_matched() -> None:
    result = bench("probe", "--pps", "20000", "--seconds", "0.3", "--repetitions", "2")
    assert result["match_ratio"] >= 0.999
    assert result["ns_per_packet"].keys() == {"n3", "tun", "n6"}
    assert all(cost_ns > result["ns_statistics"] > 0 for cost_ns in result["ns_per_packet"].values())
    assert result["saturated_packets_per_cpu_s"].keys() == {"without", "loop", "all"}
    for name in ("throughput_loss_pct", "throughput_loss_all_pct"):
        low, high = result[f"{name}_range"]
        assert low <= high < 100
        assert result[name] < 100
    assert "bupf" not in running()
