"""What `doctor --kubernetes` reads on the node itself; with a server to ask it is tests/cluster/test_doctor.py."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from slicepilot.cluster.doctor.checks import checks
from slicepilot.cluster.doctor.cilium import CONFIG, MULTUS, POLICIES
from slicepilot.cluster.doctor.node import kubelet_checks
from slicepilot.cluster.doctor.reader import ClusterReader
from slicepilot.cluster.resources.names import path as path_of
from slicepilot.configs.backends import Check
from slicepilot.controller.actuators.cilium.choice import CiliumPaths

from .documents import set_document, slice_document
from .test_client import Answer, serving

STATIC: dict[str, Any] = {"policyName": "static", "defaultCpuSet": "0-1", "checksum": 1}


def found(folder: Path) -> dict[str, tuple[bool, str]]:
    return {one.name: (one.ok, one.found) for one in kubelet_checks(ClusterReader(None), "edge", folder)}


@pytest.mark.skipif(os.geteuid() != 0, reason="reads as the kubelet's user")
def test_the_kubelets_own_files_tell_its_policies(tmp_path: Path) -> None:
    (tmp_path / "cpu_manager_state").write_text(json.dumps(STATIC))
    (tmp_path / "config.yaml").write_text("cgroupDriver: systemd\ncpuManagerPolicy: none\n")
    told = found(tmp_path)
    assert told["CPU manager"] == (False, "static"), "what it does counts for more than what it was told"
    (tmp_path / "cpu_manager_state").write_text(json.dumps(STATIC | {"policyName": "none"}))
    assert found(tmp_path)["CPU manager"] == (True, "none")


@pytest.mark.parametrize("state", ["", "[]", "{", '{"policyName": 3}', "[" * 100_000])
def test_files_that_are_none_leave_it_open(tmp_path: Path, state: str) -> None:
    (tmp_path / "cpu_manager_state").write_text(state)
    (tmp_path / "config.yaml").write_text("[]")
    assert found(tmp_path)["CPU manager"] == (False, "no API server to ask (--kubeconfig)")


def test_without_a_server_the_node_is_told(tmp_path: Path) -> None:
    places = CiliumPaths(tmp_path / "bpf" / "tc" / "globals" / "cilium_throttle", tmp_path / "state")
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


def test_a_server_that_is_busy_is_asked_again(tmp_path: Path) -> None:
    answers = iter([429, 429, 200])

    def script(method: str, path: str, query: dict[str, str], body: Any) -> Answer:
        del method, path, query, body
        return next(answers), {"Retry-After": "0"}, [{"kind": "Status", "message": "storage is (re)initializing"}]

    with serving(tmp_path, script) as (api, server):
        assert ClusterReader(api).get("/version").document is not None
        assert len(server.asked) == 3


@pytest.mark.parametrize("spec", [None, 3, "a", [], {"egress": "a"}, {"egress": [3, {"toPorts": 7}, {"toPorts": [1]}]}])
def test_a_policy_of_whatever_shape_is_no_failure(tmp_path: Path, spec: Any) -> None:
    """Whoever writes policies of a namespace writes them without Cilium's schema where that is not installed whole."""
    told = doctored(tmp_path, spec, "net1")
    assert (told["L7 egress policies"].ok, told["L7 egress policies"].found) == (True, "none")


def test_what_others_write_is_printed_as_text(tmp_path: Path) -> None:
    told = doctored(tmp_path, {"egress": [{"toPorts": [{"rules": {"http": []}}]}]}, "net1\x1b[2J[red]")
    assert (told["L7 egress policies"].ok, told["L7 egress policies"].found) == (False, "core/p")
    name = "core/video/a: networks"
    assert "\x1b" not in told[name].found


def doctored(folder: Path, spec: Any, networks: str) -> dict[str, Check]:
    """A server with Cilium, a policy and a pod of a slice."""
    pod = {"name": "upf-0", "namespace": "core", "labels": {"app": "a"}, "annotations": {MULTUS: networks}}
    one = slice_document(podSelector={"matchLabels": {"app": "a"}})
    answers: dict[str, dict[str, Any]] = {
        "/version": {"gitVersion": "v1.35.3"},
        CONFIG: {"data": {"enable-bandwidth-manager": "true"}},
        POLICIES[0]: {"items": [{"metadata": {"name": "p", "namespace": "core"}, "spec": spec, "specs": spec}]},
        "/api/v1/pods": {"items": [{"metadata": pod}]},
        path_of("slicesets"): {"items": [set_document(slices=[one])]},
    }

    def script(method: str, path: str, query: dict[str, str], body: Any) -> Answer:
        del method, query, body
        return (200, {}, [answers[path]]) if path in answers else (404, {}, [{"message": "none"}])

    places = CiliumPaths(folder / "bpf" / "tc" / "globals" / "cilium_throttle", folder / "state")
    with serving(folder, script):
        return {one.name: one for one in checks(folder / "config.yaml", "edge", places, folder)}
