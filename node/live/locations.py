"""Where a node's slices are measured and their knobs are, and which of the knobs act, also where slices share UPFs,
pods and devices."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from slicepilot.configs import ConfigError
from slicepilot.controller.actuators.egress import ShaperClass
from slicepilot.controller.actuators.slice_knobs import CPU_KNOBS, SliceTargets
from slicepilot.controller.system.cgroup_paths import pod_of
from slicepilot.controller.telemetry.discover import Upf
from slicepilot.controller.telemetry.layout import SHAPER_FIRST
from slicepilot.controller.telemetry.points import SlicePoints
from slicepilot.env.knobs import KnobName
from slicepilot.node.authority.authority import Authority, authority, can_be_limited, without
from slicepilot.node.authority.cpu_group import needs_own_group
from slicepilot.node.authority.pacing import cilium_of
from slicepilot.node.config.spec import NodeSlice, NodeSpec
from slicepilot.node.find.links import UpfLinks
from slicepilot.node.find.locate import Located

from .points import families_of, firsts, measured_at, n3_of, n6_of


@dataclass(frozen=True)
class SliceLocation:
    """Where a slice is measured and its knobs are.

    Attributes:
        points: where it is measured; targets: where its knobs are.
        answers: which knobs act on its packets, and the evidence.
        n3: its UPF's own interface for N3, wherever it is measured.
        family: all slices of its UPF, itself among them, in order.
        housed: whether mode ``live`` may give its UPF a group, and a knob would act in there.
    """

    points: SlicePoints
    targets: SliceTargets
    answers: dict[KnobName, Authority]
    n3: str
    family: tuple[str, ...]
    housed: bool = False


def locations_of(spec: NodeSpec, located: Mapping[str, Located], links: UpfLinks) -> dict[str, SliceLocation]:
    """The locations of all slices, by name.

    Args:
        located: each slice's UPF.
        links: paths of the UPFs' namespaces and groups.

    Raises:
        ConfigError, ProbeError: see `measured_at`.
    """
    families = {name: family for family in families_of(located) for name in family}
    allowed = {item.name for item in spec.slices if item.own_cgroup}
    locations: dict[str, SliceLocation] = {}
    again: dict[str, Callable[[], SliceLocation]] = {}
    alone, moving = alone_in_pods(located), moving_pods(spec, located)
    for item, first in zip(spec.slices, firsts(located).values(), strict=True):
        family = families[item.name]
        label = f"{spec.name}-{family[0]}" if allowed.issuperset(family) else None
        located_alone = partial(
            _location,
            located=located[item.name],
            family=family,
            own_group=label,
            netns=links.netns(first),
            links=links,
            weighs_pod=item.name in alone,
            moves_pod=item.name in moving,
        )
        locations[item.name] = located_alone(item)
        again[item.name] = partial(located_alone, dataclasses.replace(item, egress_by="shaper"))
    shared = Counter((item.targets.netns, item.targets.egress_device) for item in locations.values())
    for name, location in list(locations.items()):
        # Cilium has a single rate for a pod, a shaper has a class for each slice.
        if location.targets.cilium is not None and shared[location.targets.netns, location.targets.egress_device] > 1:
            locations[name] = again[name]()
    housed = {
        name
        for name, item in locations.items()
        if all(other in allowed and _acts(locations[other]) for other in item.family)
    }
    mixed = _beside_services(list(locations.values()))
    settled = {name: _settled(item, located[name], name in housed, mixed.get(name)) for name, item in locations.items()}
    return {name: _of_family(item, settled) for name, item in settled.items()}


def moving_pods(spec: NodeSpec, located: Mapping[str, Located]) -> frozenset[str]:
    """Slices whose CPU limit may exceed the original, and with it the limit of their pod, which no other slice uses."""
    return alone_in_pods(located) & {item.name for item in spec.slices if item.may_exceed_limit}


def alone_in_pods(located: Mapping[str, Located]) -> frozenset[str]:
    """Slices that have a pod to themselves, or the first of the slices that share the pod's UPF. Slices whose UPF
    shares its container's group are left out: they may at most get a group below it."""
    firsts_of = [family[0] for family in families_of(located)]
    pods = {name: None if (group := located[name].cgroup) is None else pod_of(group) for name in firsts_of}
    alone = {name for name, pod in pods.items() if pod is not None and [*pods.values()].count(pod) == 1}
    return frozenset(name for name in alone if not needs_own_group(located[name]))


def in_parts(targets: Sequence[SliceTargets], classifier: int) -> list[SliceTargets]:
    """The same targets, with a class of the shaper for each slice that leaves by the same device as others.

    Args:
        classifier: descriptor of the BPF program that assigns their packets.
    """
    locations = [(item.netns, item.egress_device) for item in targets if "egress_mbps" not in item.left]
    return [
        dataclasses.replace(item, part=ShaperClass(SHAPER_FIRST + index, classifier))
        if item.egress_device is not None and locations.count((item.netns, item.egress_device)) > 1
        else item
        for index, item in enumerate(targets)
    ]


def check_apart(targets: Sequence[SliceTargets], families: Sequence[tuple[str, ...]]) -> None:
    """Refuse slices that differ only by their packets where no packet is read; raises ConfigError."""
    for family in families:
        if len(family) > 1:
            raise ConfigError(
                f"telemetry.prometheus: {', '.join(family)} have one UPF; expected each slice its own, since pods are "
                "measured and no packets"
            )
    devices: dict[object, str] = {}
    for item in targets:
        if item.egress_device is None or "egress_mbps" in item.left:
            continue
        other = devices.setdefault((item.netns, item.egress_device), item.name)
        if other != item.name:
            raise ConfigError(
                f"telemetry.prometheus: {other} and {item.name} leave by the same {item.egress_device}; expected each "
                "slice by its own, or leave: [egress_mbps]"
            )


def _location(
    item: NodeSlice,
    located: Located,
    family: tuple[str, ...],
    own_group: str | None,
    netns: Path,
    links: UpfLinks,
    weighs_pod: bool,
    moves_pod: bool,
) -> SliceLocation:
    """The location of a slice as if there were no other slices.

    Args:
        own_group: see `authority`.
        weighs_pod, moves_pod: see `alone_in_pods` and `moving_pods`.
    """
    cgroup = links.cgroup(family[0]) if located.cgroup is not None or own_group is not None else None
    upf = Upf(item.name, netns, cgroup)
    points, n3 = measured_at(item, upf), n3_of(item, upf)
    limited = cgroup if own_group is not None or can_be_limited(located.cgroup) else None
    targets = SliceTargets(
        item.name,
        limited,
        n6_of(item, upf),
        netns,
        frozenset(item.leave),
        within_original=not item.may_exceed_limit,
        cilium=cilium_of(item.egress_by, points, netns),
        ceiling_mcpu=math.inf if item.ceiling_mcpu is None else item.ceiling_mcpu,
        moves_pod=moves_pod,
        weighs_pod=weighs_pod,
        request_mcpu=item.cpu_request_mcpu,
    )
    answers = authority(targets, located, points, n3, own_group, item.bounds.nice)
    return SliceLocation(points, targets, answers, n3, family)


def _acts(item: SliceLocation) -> bool:
    return any(item.answers[knob].moves for knob in CPU_KNOBS)


def _beside_services(locations: Sequence[SliceLocation]) -> dict[str, str]:
    """Slices that share their interface with other slices, services among them, with the reason why they have no egress
    rate of their own."""
    users: dict[tuple[Path | None, str | None], list[SliceLocation]] = {}
    for item in locations:
        users.setdefault((item.targets.netns, item.targets.egress_device), []).append(item)
    return {
        user.targets.name: f"{device} is used by other slices too, and a shaper cannot distinguish their answers"
        for (_, device), sharers in users.items()
        if device is not None and len(sharers) > 1 and any(item.points.ports is not None for item in sharers)
        for user in sharers
    }


def _settled(item: SliceLocation, located: Located, housed: bool, mixed: str | None) -> SliceLocation:
    """A location with its group, if it has or is to get a group, and without knobs that do not act.

    Args:
        mixed: why it has no egress rate of its own, if so.
    """
    points, answers = item.points, dict(item.answers)
    if mixed is not None and answers["egress_mbps"].moves:
        answers["egress_mbps"] = Authority(False, mixed)
    targets = dataclasses.replace(item.targets, left=without(answers))
    if located.cgroup is None and not housed:
        points, targets = dataclasses.replace(points, cgroup=None), dataclasses.replace(targets, cgroup=None)
    return SliceLocation(points, targets, answers, item.n3, item.family, housed)


def _of_family(item: SliceLocation, locations: Mapping[str, SliceLocation]) -> SliceLocation:
    """Of slices that share a UPF only the first has the cgroup, and CPU knobs that one leaves alone all leave alone."""
    targets = item.targets
    if len(item.family) == 1 or targets.cgroup is None:
        return item
    left = {knob for name in item.family for knob in locations[name].targets.left if knob in CPU_KNOBS}
    first = targets.name == item.family[0]
    cgroup = targets.cgroup if first else None
    targets = dataclasses.replace(targets, sharing=item.family, cgroup=cgroup, left=targets.left | left)
    return dataclasses.replace(item, targets=targets)
