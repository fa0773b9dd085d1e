"""Benches on real UPFs: their figures are for people; checked is only what must hold anywhere."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from slicepilot.testbed.lifecycle.removal import running
from slicepilot.testbed.lifecycle.testbed import missing

pytestmark = [
    pytest.mark.realtime,
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=f"this machine lacks {'; '.join(missing())}"),
]


def bench(*arguments: str) -> dict[str, Any]:
    program = "from slicepilot.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "bench", *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_every_packet_of_a_real_upf_is_matched() -> None:
    found = bench("probe", "--pps", "20000", "--seconds", "0.3", "--repetitions", "2")
    assert found["match_ratio"] >= 0.999
    assert found["ns_per_packet"].keys() == {"n3", "tun", "n6"}
    assert all(cost_ns > found["ns_statistics"] > 0 for cost_ns in found["ns_per_packet"].values())
    assert found["saturated_packets_per_cpu_s"].keys() == {"without", "loop", "all"}
    for name in ("throughput_loss_pct", "throughput_loss_all_pct"):
        low, high = found[f"{name}_range"]
        assert low <= high < 100
        assert found[name] < 100
    assert "bupf" not in running()


def test_one_upf_at_its_capacity_and_below() -> None:
    found = bench("upf", "--seconds", "0.5", "--repetitions", "1")
    assert found["capacity_mbps"] > 300
    assert found["gigabit"]["reordered"] == found["below_capacity"]["reordered"] == 0
    assert 0 < found["gigabit"]["upf_cpus"] < 2.5
    assert 0 < found["pfcp_modification"]["p50_us"] <= found["pfcp_modification"]["p99_us"]


@pytest.mark.slow
def test_reaction_times_have_their_parts() -> None:
    found = bench("reaction", "--agents", "no-control,reactive-sla", "--repetitions", "1", "--bound-ms", "20")
    free, reactive = found["agents"]
    # Ten bursts; a stall of the machine may hide one.
    assert free["bursts"] >= 8
    assert reactive["bursts"] >= 8
    assert free["left"] > 0
    assert free["decision_ms"] is None
    assert 0 <= reactive["window_ms"] <= 20
    low, high = reactive["reaction_ms"]["ci95"]
    assert 0 <= low <= reactive["reaction_ms"]["median"] <= high <= 700
