"""Where a node's slices are measured and moved, and which of their knobs act: what each may have of what it shares."""

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
from slicepilot.node.authority.own_group import needs_one
from slicepilot.node.authority.pacing import cilium_of
from slicepilot.node.config.spec import NodeSlice, NodeSpec
from slicepilot.node.find.links import UpfLinks
from slicepilot.node.find.locate import Located

from .points import families_of, firsts, measured_at, n3_of, n6_of


@dataclass(frozen=True)
class Place:
    """Of one slice.

    Attributes:
        points: where it is measured; targets: where its knobs are.
        answers: which of them act on its packets, and why that is thought.
        n3: its UPF's own interface for N3, wherever it is measured.
        family: the slices that have its UPF, itself among them, in order.
        housed: whether mode ``live`` may give its UPF a group, and a knob would act in there.
    """

    points: SlicePoints
    targets: SliceTargets
    answers: dict[KnobName, Authority]
    n3: str
    family: tuple[str, ...]
    housed: bool = False


def places_of(spec: NodeSpec, found: Mapping[str, Located], links: UpfLinks) -> dict[str, Place]:
    """By slice.

    Args:
        found: each slice's UPF; links: by which its namespace and its group go.

    Raises:
        ConfigError, ProbeError: see `measured_at`.
    """
    families = {name: family for family in families_of(found) for name in family}
    allowed = {one.name for one in spec.slices if one.own_cgroup}
    places: dict[str, Place] = {}
    again: dict[str, Callable[[], Place]] = {}
    alone, moving = alone_in_pods(found), moving_pods(spec, found)
    for one, first in zip(spec.slices, firsts(found).values(), strict=True):
        family = families[one.name]
        label = f"{spec.name}-{family[0]}" if allowed.issuperset(family) else None
        placed = partial(
            _place,
            found=found[one.name],
            family=family,
            own_group=label,
            netns=links.netns(first),
            links=links,
            weighs_pod=one.name in alone,
            moves_pod=one.name in moving,
        )
        places[one.name] = placed(one)
        again[one.name] = partial(placed, dataclasses.replace(one, egress_by="shaper"))
    shared = Counter((one.targets.netns, one.targets.egress_device) for one in places.values())
    for name, place in list(places.items()):
        # Cilium has one rate for a pod, a shaper a class for each slice.
        if place.targets.cilium is not None and shared[place.targets.netns, place.targets.egress_device] > 1:
            places[name] = again[name]()
    housed = {
        name for name, one in places.items() if all(other in allowed and _acts(places[other]) for other in one.family)
    }
    mixed = _beside_services(list(places.values()))
    settled = {name: _settled(one, found[name], name in housed, mixed.get(name)) for name, one in places.items()}
    return {name: _of_family(one, settled) for name, one in settled.items()}


def moving_pods(spec: NodeSpec, found: Mapping[str, Located]) -> frozenset[str]:
    """Slices whose CPU limit may exceed the one found, and with it that of their pod, where no other slice has it."""
    return alone_in_pods(found) & {one.name for one in spec.slices if one.may_exceed_limit}


def alone_in_pods(found: Mapping[str, Located]) -> frozenset[str]:
    """Slices that have a pod to themselves, or the first of those that share a UPF in it; not those whose UPF is not
    alone in its container's group, which are at most given one below it."""
    firsts_of = [family[0] for family in families_of(found)]
    pods = {name: None if (group := found[name].cgroup) is None else pod_of(group) for name in firsts_of}
    alone = {name for name, pod in pods.items() if pod is not None and [*pods.values()].count(pod) == 1}
    return frozenset(name for name in alone if not needs_one(found[name]))


def in_parts(targets: Sequence[SliceTargets], classifier: int) -> list[SliceTargets]:
    """The same, with a class of the shaper for each slice that leaves by the same device as others.

    Args:
        classifier: descriptor of the BPF program that tells their packets apart.
    """
    places = [(one.netns, one.egress_device) for one in targets if "egress_mbps" not in one.left]
    return [
        dataclasses.replace(one, part=ShaperClass(SHAPER_FIRST + index, classifier))
        if one.egress_device is not None and places.count((one.netns, one.egress_device)) > 1
        else one
        for index, one in enumerate(targets)
    ]


def check_apart(targets: Sequence[SliceTargets], families: Sequence[tuple[str, ...]]) -> None:
    """Refuse slices that nothing but their packets tells apart, where no packet is looked at; raises ConfigError."""
    for family in families:
        if len(family) > 1:
            raise ConfigError(
                f"telemetry.prometheus: {', '.join(family)} have one UPF; accepted: each slice its own, since pods are "
                "measured and no packets"
            )
    devices: dict[object, str] = {}
    for one in targets:
        if one.egress_device is None or "egress_mbps" in one.left:
            continue
        other = devices.setdefault((one.netns, one.egress_device), one.name)
        if other != one.name:
            raise ConfigError(
                f"telemetry.prometheus: {other} and {one.name} leave by the same {one.egress_device}; accepted: each "
                "slice by its own, or leave: [egress_mbps]"
            )


def _place(
    one: NodeSlice,
    found: Located,
    family: tuple[str, ...],
    own_group: str | None,
    netns: Path,
    links: UpfLinks,
    weighs_pod: bool,
    moves_pod: bool,
) -> Place:
    """As if there were no other slices.

    Args:
        own_group: as `authority` has it.
        weighs_pod, moves_pod: see `alone_in_pods` and `moving_pods`.
    """
    cgroup = links.cgroup(family[0]) if found.cgroup is not None or own_group is not None else None
    upf = Upf(one.name, netns, cgroup)
    points, n3 = measured_at(one, upf), n3_of(one, upf)
    limited = cgroup if own_group is not None or can_be_limited(found.cgroup) else None
    targets = SliceTargets(
        one.name,
        limited,
        n6_of(one, upf),
        netns,
        frozenset(one.leave),
        within_found=not one.may_exceed_limit,
        cilium=cilium_of(one.egress_by, points, netns),
        ceiling_mcpu=math.inf if one.ceiling_mcpu is None else one.ceiling_mcpu,
        moves_pod=moves_pod,
        weighs_pod=weighs_pod,
    )
    return Place(points, targets, authority(targets, found, points, n3, own_group), n3, family)


def _acts(one: Place) -> bool:
    return any(one.answers[knob].moves for knob in CPU_KNOBS)


def _beside_services(places: Sequence[Place]) -> dict[str, str]:
    """Slices whose interface others send by as well, services among them: why no egress rate is their own."""
    users: dict[tuple[Path | None, str | None], list[Place]] = {}
    for one in places:
        users.setdefault((one.targets.netns, one.targets.egress_device), []).append(one)
    return {
        user.targets.name: f"{device} is that of other slices too, and a shaper does not tell answers apart"
        for (_, device), sharers in users.items()
        if device is not None and len(sharers) > 1 and any(one.points.ports is not None for one in sharers)
        for user in sharers
    }


def _settled(one: Place, found: Located, housed: bool, mixed: str | None) -> Place:
    """With its group, if it has one or is to get one, and without knobs that do not act.

    Args:
        mixed: why it has no egress rate of its own, if so.
    """
    points, answers = one.points, dict(one.answers)
    if mixed is not None and answers["egress_mbps"].moves:
        answers["egress_mbps"] = Authority(False, mixed)
    targets = dataclasses.replace(one.targets, left=without(answers))
    if found.cgroup is None and not housed:
        points, targets = dataclasses.replace(points, cgroup=None), dataclasses.replace(targets, cgroup=None)
    return Place(points, targets, answers, one.n3, one.family, housed)


def _of_family(one: Place, places: Mapping[str, Place]) -> Place:
    """Of slices that have one UPF the first has its cgroup, and what one of them leaves alone there all do."""
    targets = one.targets
    if len(one.family) == 1 or targets.cgroup is None:
        return one
    left = {knob for name in one.family for knob in places[name].targets.left if knob in CPU_KNOBS}
    first = targets.name == one.family[0]
    cgroup = targets.cgroup if first else None
    targets = dataclasses.replace(targets, sharing=one.family, cgroup=cgroup, left=targets.left | left)
    return dataclasses.replace(one, targets=targets)
