"""Where the slices of a node are, and where they are measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from slicepilot.configs import ConfigError, FailureError
from slicepilot.controller.system.privileges import lacking
from slicepilot.controller.telemetry.discover import Devices, Upf, n3_device, n6_device, points_of, points_of_service
from slicepilot.controller.telemetry.points import SlicePoints
from slicepilot.node.config.spec import NodeSlice, NodeSpec
from slicepilot.node.find.discover import devices_of
from slicepilot.node.find.locate import Finder, Located

NEEDED = {
    "CAP_SYS_PTRACE": "see which network namespace a process is in",
    "CAP_SYS_ADMIN": "enter it and measure there (CAP_BPF and CAP_PERFMON alone do not let into it)",
}
REST = "without it: slicepilot simulate, train, evaluate and dataset record in the simulator"


def check_permitted() -> None:
    """Raises FailureError, which says what is missing, what for, and what works without it."""
    missing = lacking(NEEDED)
    if missing:
        text = "; ".join(f"{name} to {NEEDED[name]}" for name in missing)
        raise FailureError(f"not permitted, needs root or {text}; {REST}")


def find_all(spec: NodeSpec) -> dict[str, Located]:
    """Every slice's UPF, in order.

    Raises:
        FailureError: this process may not look.
        ConfigError: a UPF does not exist or is ambiguous; or two UPFs are in the same cgroup.
    """
    check_permitted()
    finder = Finder()
    selectors = {node_slice.name: node_slice.selector for node_slice in spec.slices}
    located = {name: finder.find(name, selector) for name, selector in selectors.items()}
    movable = {node_slice.name for node_slice in spec.slices if node_slice.own_cgroup}
    groups: dict[Path, str] = {}
    for name, node_slice in located.items():
        if node_slice.cgroup is None:
            continue
        other = groups.setdefault(node_slice.cgroup, name)
        if located[other].process.pid != node_slice.process.pid and not movable.issuperset({name, other}):
            raise ConfigError(
                f"slices.{name}.{selectors[name].role}: the same cgroup as that of {other}; expected each UPF and "
                "service in a cgroup of its own, or own_cgroup: true in both"
            )
    return located


def completed(spec: NodeSpec, located: Mapping[str, Located]) -> NodeSpec:
    """The same, with interfaces of pods completed where they are not given, since selectors of pods do not name them.

    Raises:
        FailureError: the network namespace of a pod cannot be entered.
    """
    slices = []
    for node_slice in spec.slices:
        if node_slice.upf is not None and node_slice.upf.pod is not None:
            try:
                devices = devices_of(located[node_slice.name].process, node_slice.devices)
            except OSError as error:
                raise FailureError(
                    f"slices.{node_slice.name}: its network namespace: {error.strerror or error}"
                ) from error
            slices.append(dataclasses.replace(node_slice, devices=devices))
        else:
            slices.append(node_slice)
    return dataclasses.replace(spec, slices=tuple(slices))


def families_of(located: Mapping[str, Located]) -> list[tuple[str, ...]]:
    """Slices by UPF, in order."""
    families: dict[int, list[str]] = {}
    for name, node_slice in located.items():
        families.setdefault(node_slice.process.pid, []).append(name)
    return [tuple(names) for names in families.values()]


def firsts(located: Mapping[str, Located]) -> dict[str, str]:
    """By slice the first slice in the same network namespace. Its link is the path of the namespace for all of them, so
    that equal points compare equal."""
    known: dict[object, str] = {}
    return {name: known.setdefault(node_slice.process.netns, name) for name, node_slice in located.items()}


def measured_at(node_slice: NodeSlice, upf: Upf) -> SlicePoints:
    """Where a slice's packets are measured; raises as `points_of` and `points_of_service`."""
    if (at := node_slice.listens) is not None:
        return points_of_service(upf, at.device, at.far_netns, at.selected, f"slices.{node_slice.name}.listens.")
    names = node_slice.devices
    far = names.n6 if names.n6_netns is None else names.n6_far
    devices = Devices(names.n3, names.tun, far, names.n6_netns, names.n4, names.n6, names.n3_netns, names.n3_far)
    points = points_of(upf, devices, f"slices.{node_slice.name}.devices.")
    return dataclasses.replace(
        points, traffic=None if node_slice.traffic is None else node_slice.traffic.selected(node_slice.s_nssai)
    )


def n3_of(node_slice: NodeSlice, upf: Upf) -> str:
    """A slice's own interface for N3, wherever it is measured; raises as `measured_at`."""
    if node_slice.listens is not None:
        return node_slice.listens.device
    return n3_device(upf, node_slice.devices.n3, f"slices.{node_slice.name}.devices.")


def n6_of(node_slice: NodeSlice, upf: Upf) -> str | None:
    """The interface by which it sends towards N6, if any; raises as `measured_at`."""
    if node_slice.listens is not None:
        return node_slice.listens.device
    return n6_device(upf, node_slice.devices.n6, f"slices.{node_slice.name}.devices.")


def points_of_node(name: str) -> list[SlicePoints]:
    """Points of all slices, by name or file of a node's configuration; raises ConfigError and ProbeError.

    The points are not updated when a UPF restarts in another namespace.
    """
    spec = NodeSpec.from_yaml(name)
    spec.require_probe("probe")
    located = find_all(spec)
    spec = completed(spec, located)
    same_netns = firsts(located)
    return [
        measured_at(
            node_slice,
            Upf(node_slice.name, located[same_netns[node_slice.name]].netns, located[node_slice.name].cgroup),
        )
        for node_slice in spec.slices
    ]
