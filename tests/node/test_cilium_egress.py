"""Which slices of a node have Cilium's entry for an egress rate."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicepilot.configs import ConfigError
from slicepilot.controller.actuators.cilium.choice import CiliumPaths
from slicepilot.controller.telemetry.points import NetPoint, SlicePoints
from slicepilot.node.authority.pacing import cilium_of, seen
from slicepilot.node.config.spec import EgressBy, NodeSpec
from tests.controller.namespaces import Namespace

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces")
OWN = Path("/proc/self/ns/net")


@pytest.fixture(name="spaces")
def _spaces() -> Iterator[tuple[Path, Path]]:
    """A pod's namespace, and one beyond the host's devices."""
    with contextlib.closing(Namespace()) as pod, contextlib.closing(Namespace()) as beyond:
        yield pod.path, beyond.path


def points(n6: NetPoint | None) -> SlicePoints:
    return SlicePoints("a", NetPoint(OWN, "n3"), None, n6)


def test_what_is_measured_before_it_leaves_the_host_is_not_seen(spaces: tuple[Path, Path]) -> None:
    pod, beyond = spaces
    for n6, is_seen in (
        (NetPoint(beyond, "far"), True),
        (NetPoint(OWN, "lxc1"), False),
        (NetPoint(pod, "eth0"), False),
        (NetPoint(pod, "eth0", "egress"), False),
        (NetPoint("/proc/self/nothing", "far"), False),
        (None, False),
    ):
        assert seen(points(n6), pod) is is_seen, n6


@pytest.mark.parametrize(
    ("wanted", "where_seen", "elsewhere"),
    [("auto", True, False), ("cilium", True, True), ("shaper", False, False)],
)
def test_ciliums_entry_is_the_knob_where_it_is_wanted(
    spaces: tuple[Path, Path], wanted: EgressBy, where_seen: bool, elsewhere: bool
) -> None:
    pod, beyond = spaces
    chosen = cilium_of(wanted, points(NetPoint(beyond, "far")), pod), cilium_of(wanted, points(NetPoint(OWN, "l")), pod)
    assert chosen == (CiliumPaths() if where_seen else None, CiliumPaths() if elsewhere else None)


NODE = """
name: edge
{node}
slices:
  - name: a
    s_nssai: {{sst: 1, sd: "000001"}}
    sla: {{committed_mbps: 10, delay_bound_ms: 50}}
    upf: {{pid: 1}}
    {slice}
"""


def test_what_is_declared_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text(NODE.format(node="drop_horizon_ms: 60", slice="egress_by: cilium"))
    spec = NodeSpec.from_yaml(str(file))
    assert (spec.drop_horizon_ms, spec.slices[0].egress_by) == (60, "cilium")
    for node, item, message in (
        ("", "egress_by: tc", r"egress_by.*'auto', 'cilium' or 'shaper'"),
        ("drop_horizon_ms: 3000", "", "drop_horizon_ms"),
        ("drop_horizon_ms: 1", "", "drop_horizon_ms"),
    ):
        file.write_text(NODE.format(node=node, slice=item))
        with pytest.raises(ConfigError, match=message):
            NodeSpec.from_yaml(str(file))
