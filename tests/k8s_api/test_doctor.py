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


def kubelet(folder: Path) -> dict[str, tuple[bool, str]]:
    return {check.name: (check.ok, check.found) for check in kubelet_checks(ClusterReader(None), "edge", folder)}


@pytest.mark.skipif(os.geteuid() != 0, reason="reads as the kubelet's user")
def test_the_policies_of_the_kubelet_are_read_from_its_files(tmp_path: Path) -> None:
    (tmp_path / "cpu_manager_state").write_text(json.dumps(STATIC))
    (tmp_path / "config.yaml").write_text("cgroupDriver: systemd\ncpuManagerPolicy: none\n")
    report = kubelet(tmp_path)
    assert report["CPU manager"] == (False, "static"), "what it does counts for more than its configuration"
    (tmp_path / "cpu_manager_state").write_text(json.dumps(STATIC | {"policyName": "none"}))
    assert kubelet(tmp_path)["CPU manager"] == (True, "none")


@pytest.mark.parametrize("state", ["", "[]", "{", '{"policyName": 3}', "[" * 100_000])
def test_files_that_are_none_leave_it_open(tmp_path: Path, state: str) -> None:
    (tmp_path / "cpu_manager_state").write_text(state)
    (tmp_path / "config.yaml").write_text("[]")
    assert kubelet(tmp_path)["CPU manager"] == (False, "no API server to ask (--kubeconfig)")


def test_without_a_server_the_node_is_described(tmp_path: Path) -> None:
    paths = CiliumPaths(tmp_path / "bpf" / "tc" / "globals" / "cilium_throttle", tmp_path / "state")
    report = {check.name: check for check in checks(None, "edge", paths, tmp_path)}
    assert not report["API server"].ok
    assert report["Cilium"].found.endswith("none: pods are shaped where they send")
    assert "map of rates" not in report
    paths.state.mkdir()
    report = {check.name: check for check in checks(None, "edge", paths, tmp_path)}
    assert report["Cilium"].found.endswith("state of its agent is on this node")
    assert (report["map of rates"].ok, report["map of rates"].found) == (False, "none")
    assert not report["bpffs"].ok
    assert all(check.hint for check in report.values() if not check.ok), "each says what to do"


def test_a_busy_server_gets_another_request(tmp_path: Path) -> None:
    answers = iter([429, 429, 200])

    def script(method: str, path: str, query: dict[str, str], body: Any) -> Answer:
        del method, path, query, body
        return next(answers), {"Retry-After": "0"}, [{"kind": "Status", "message": "storage is (re)initializing"}]

    with serving(tmp_path, script) as (api, server):
        assert ClusterReader(api).get("/version").document is not None
        assert len(server.requests) == 3


@pytest.mark.parametrize("spec", [None, 3, "a", [], {"egress": "a"}, {"egress": [3, {"toPorts": 7}, {"toPorts": [1]}]}])
def test_a_policy_of_whatever_shape_is_no_failure(tmp_path: Path, spec: Any) -> None:
    """Whoever writes policies of a namespace writes them without Cilium's schema where that is not installed whole."""
    report = doctored(tmp_path, spec, "net1")
    assert (report["L7 egress policies"].ok, report["L7 egress policies"].found) == (True, "none")


def test_what_others_write_is_printed_as_text(tmp_path: Path) -> None:
    report = doctored(tmp_path, {"egress": [{"toPorts": [{"rules": {"http": []}}]}]}, "net1\x1b[2J[red]")
    assert (report["L7 egress policies"].ok, report["L7 egress policies"].found) == (False, "core/p")
    name = "core/video/a: networks"
    assert "\x1b" not in report[name].found


def doctored(folder: Path, spec: Any, networks: str) -> dict[str, Check]:
    """A server with Cilium, a policy and a pod of a slice."""
    pod = {"name": "upf-0", "namespace": "core", "labels": {"app": "a"}, "annotations": {MULTUS: networks}}
    shaped = slice_document(podSelector={"matchLabels": {"app": "a"}})
    answers: dict[str, dict[str, Any]] = {
        "/version": {"gitVersion": "v1.35.3"},
        CONFIG: {"data": {"enable-bandwidth-manager": "true"}},
        POLICIES[0]: {"items": [{"metadata": {"name": "p", "namespace": "core"}, "spec": spec, "specs": spec}]},
        "/api/v1/pods": {"items": [{"metadata": pod}]},
        path_of("slicesets"): {"items": [set_document(slices=[shaped])]},
    }

    def script(method: str, path: str, query: dict[str, str], body: Any) -> Answer:
        del method, query, body
        return (200, {}, [answers[path]]) if path in answers else (404, {}, [{"message": "none"}])

    paths = CiliumPaths(folder / "bpf" / "tc" / "globals" / "cilium_throttle", folder / "state")
    with serving(folder, script):
        return {check.name: check for check in checks(folder / "config.yaml", "edge", paths, folder)}
