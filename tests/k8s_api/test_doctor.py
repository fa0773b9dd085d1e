"""What `doctor --kubernetes` reads on the node itself; with a server to ask it is tests/cluster/test_doctor.py."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from slicepilot.cluster.doctor.asked import Asked
from slicepilot.cluster.doctor.checks import checks
from slicepilot.cluster.doctor.node import kubelet_checks
from slicepilot.configs import ConfigError
from slicepilot.controller.actuators.cilium.choice import CiliumPlaces

STATIC: dict[str, Any] = {"policyName": "static", "defaultCpuSet": "0-1", "checksum": 1}


def found(folder: Path) -> dict[str, tuple[bool, str]]:
    return {one.name: (one.ok, one.found) for one in kubelet_checks(Asked(None), "edge", folder)}


@pytest.mark.skipif(os.geteuid() != 0, reason="reads as the kubelet's user")
def test_the_kubelets_own_files_tell_its_policies(tmp_path: Path) -> None:
    (tmp_path / "cpu_manager_state").write_text(json.dumps(STATIC))
    (tmp_path / "config.yaml").write_text("cgroupDriver: systemd\ncpuManagerPolicy: none\n")
    told = found(tmp_path)
    assert told["CPU manager"] == (False, "static"), "what it does counts for more than what it was told"
    assert told["cgroup driver"] == (True, "systemd")
    (tmp_path / "cpu_manager_state").write_text(json.dumps(STATIC | {"policyName": "none"}))
    assert found(tmp_path)["CPU manager"] == (True, "none")


@pytest.mark.parametrize("state", ["", "[]", "{", '{"policyName": 3}', "[" * 100_000])
def test_files_that_are_none_leave_it_open(tmp_path: Path, state: str) -> None:
    (tmp_path / "cpu_manager_state").write_text(state)
    (tmp_path / "config.yaml").write_text("[]")
    assert found(tmp_path)["CPU manager"] == (False, "no API server to ask (--kubeconfig)")


def test_without_a_server_the_node_is_told(tmp_path: Path) -> None:
    places = CiliumPlaces(tmp_path / "bpf" / "tc" / "globals" / "cilium_throttle", tmp_path / "state")
    told = {one.name: one for one in checks(None, "edge", places, tmp_path)}
    assert not told["API server"].ok
    assert told["Cilium"].found.endswith("none: pods are shaped where they send")
    assert "map of rates" not in told
    places.state.mkdir()
    told = {one.name: one for one in checks(None, "edge", places, tmp_path)}
    assert told["Cilium"].found.endswith("state of its agent is on this node")
    assert (told["map of rates"].ok, told["map of rates"].found) == (False, "none")
    assert not told["bpffs"].ok
    assert all(one.hint for one in told.values() if not one.ok), "each says what to do"


def test_a_kubeconfig_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"kubeconfig = .*none\.yaml.*accepted"):
        checks(tmp_path / "none.yaml", "edge")
