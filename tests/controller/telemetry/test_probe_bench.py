"""``slicepilot bench probe`` on a real UPF; its figures are for people, so only what must hold anywhere is checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slicepilot.configs import ConfigError
from slicepilot.testbed.processes import binary


@pytest.fixture
def user_plane() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespaces")
    try:
        binary("upf")
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.mark.slow
def test_every_packet_of_a_real_upf_is_matched(user_plane: None) -> None:
    arguments = ["bench", "probe", "--pps", "20000", "--seconds", "0.3", "--repetitions", "2", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", "from slicepilot.controller.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["match_ratio"] >= 0.999
    assert found["ns_per_packet"].keys() == {"n3", "tun", "n6"}
    assert all(cost_ns > found["ns_statistics"] > 0 for cost_ns in found["ns_per_packet"].values())
    assert found["saturated_packets_per_cpu_s"].keys() == {"without", "loop", "all"}
    for name in ("throughput_loss_pct", "throughput_loss_all_pct"):
        low, high = found[f"{name}_range"]
        assert low <= high < 100
        assert found[name] < 100
    assert not Path("/run/netns/bprobe-ran").exists()
