"""Where the slices of a node are found, and measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from slicepilot.configs import ConfigError, FailureError
from slicepilot.controller.telemetry.discover import Devices, Upf, n3_device, n6_device, points_of, points_of_service
from slicepilot.controller.telemetry.points import SlicePoints
from slicepilot.node.config.spec import NodeSlice, NodeSpec
from slicepilot.node.find.discover import devices_of
from slicepilot.node.find.locate import Finder, Located
from slicepilot.node.find.permitted import check_permitted


def find_all(spec: NodeSpec) -> dict[str, Located]:
    """Every slice's UPF, in order.

    Raises:
        FailureError: this process may not look.
        ConfigError: one is not there, or not told from others; or two UPFs are in the same cgroup.
    """
    check_permitted()
    finder = Finder()
    selectors = {one.name: one.selector for one in spec.slices}
    found = {name: finder.find(name, selector) for name, selector in selectors.items()}
    movable = {one.name for one in spec.slices if one.own_cgroup}
    groups: dict[Path, str] = {}
    for name, one in found.items():
        if one.cgroup is None:
            continue
        other = groups.setdefault(one.cgroup, name)
        if found[other].process.pid != one.process.pid and not movable.issuperset({name, other}):
            raise ConfigError(
                f"slices.{name}.{selectors[name].role}: the same cgroup as that of {other}; accepted: each UPF and "
                "service in one of its own, or own_cgroup: true in both"
            )
    return found


def completed(spec: NodeSpec, found: Mapping[str, Located]) -> NodeSpec:
    """The same with the interfaces of pods where they are not given: whoever describes pods sees none of them.

    Raises:
        FailureError: the network namespace of one cannot be entered.
    """
    slices = []
    for one in spec.slices:
        if one.upf is not None and one.upf.pod is not None:
            try:
                one = dataclasses.replace(one, devices=devices_of(found[one.name].process, one.devices))  # noqa: PLW2901
            except OSError as error:
                raise FailureError(f"slices.{one.name}: its network namespace: {error.strerror or error}") from error
        slices.append(one)
    return dataclasses.replace(spec, slices=tuple(slices))


def families_of(found: Mapping[str, Located]) -> list[tuple[str, ...]]:
    """Slices by UPF, in order."""
    families: dict[int, list[str]] = {}
    for name, one in found.items():
        families.setdefault(one.process.pid, []).append(name)
    return [tuple(names) for names in families.values()]


def firsts(found: Mapping[str, Located]) -> dict[str, str]:
    """By slice the first one in the same network namespace: a namespace goes by one path, for points to be the same."""
    known: dict[object, str] = {}
    return {name: known.setdefault(one.process.netns, name) for name, one in found.items()}


def measured_at(one: NodeSlice, upf: Upf) -> SlicePoints:
    """Where a slice's packets are measured; raises as `points_of` and `points_of_service`."""
    if (at := one.listens) is not None:
        return points_of_service(upf, at.device, at.far_netns, at.selected, f"slices.{one.name}.listens.")
    names = one.devices
    far = names.n6 if names.n6_netns is None else names.n6_far
    devices = Devices(names.n3, names.tun, far, names.n6_netns, names.n4, names.n6, names.n3_netns, names.n3_far)
    points = points_of(upf, devices, f"slices.{one.name}.devices.")
    return dataclasses.replace(points, traffic=None if one.traffic is None else one.traffic.selected(one.s_nssai))


def n3_of(one: NodeSlice, upf: Upf) -> str:
    """A slice's own interface for N3, wherever it is measured; raises as `measured_at`."""
    if one.listens is not None:
        return one.listens.device
    return n3_device(upf, one.devices.n3, f"slices.{one.name}.devices.")


def n6_of(one: NodeSlice, upf: Upf) -> str | None:
    """The interface by which it sends towards N6, if any; raises as `measured_at`."""
    if one.listens is not None:
        return one.listens.device
    return n6_device(upf, one.devices.n6, f"slices.{one.name}.devices.")


def points_of_node(name: str) -> list[SlicePoints]:
    """Points of all slices, by name or file of a node's configuration; raises ConfigError and ProbeError.

    Each is where the UPF was found: one that restarts in another namespace is not followed.
    """
    spec = NodeSpec.from_yaml(name)
    spec.require_probe("probe")
    found = find_all(spec)
    spec = completed(spec, found)
    same_netns = firsts(found)
    return [
        measured_at(one, Upf(one.name, found[same_netns[one.name]].netns, found[one.name].cgroup))
        for one in spec.slices
    ]
