"""Where the slices of a node are measured."""

from __future__ import annotations

from ...controller.telemetry.discover import Upf
from ...controller.telemetry.points import SlicePoints
from ..config.spec import NodeSpec
from .backend import find_all, firsts, measured_at


def points_of_node(name: str) -> list[SlicePoints]:
    """Points of all slices, by name or file of a node's configuration; raises ConfigError and ProbeError.

    Each is where the UPF was found: one that restarts in another namespace is not followed.
    """
    spec = NodeSpec.from_yaml(name)
    found = find_all(spec)
    same_netns = firsts(found)
    return [
        measured_at(one, Upf(one.name, found[same_netns[one.name]].netns, found[one.name].cgroup))
        for one in spec.slices
    ]
