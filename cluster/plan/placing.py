"""Which pods of this node are which slices' UPFs: by selectors, and by who came first where two want one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slicepilot.cluster.resources.pod import Pod
from slicepilot.cluster.resources.slice_set import DeclaredSet, DeclaredSlice

AWAY_S = 60.0
"""How long a slice keeps its place while its pod is away and the next one will have its name: the loop finds that one
by itself, and the other slices need not notice."""

CONFLICT, AMBIGUOUS, NO_CONTAINER, NOT_RUNNING, AWAY = (
    "PodConflict",
    "PodAmbiguous",
    "ContainerMissing",
    "PodNotRunning",
    "PodAway",
)


@dataclass(frozen=True)
class Place:
    """Where a slice's UPF is.

    Attributes:
        pod: as it was when it was last there.
        container: which of its containers.
        away_since_s: when its pod was first found missing; None: it is there.
    """

    pod: Pod
    container: str
    away_since_s: float | None = None


@dataclass(frozen=True)
class Trouble:
    """Why a slice that has pods here is not as it should be: a reason of conditions, and a line."""

    slice: str
    reason: str
    message: str


@dataclass(frozen=True)
class Placing:
    """What a SliceSet has on this node."""

    places: Mapping[str, Place] = field(default_factory=dict)
    troubles: tuple[Trouble, ...] = ()


Before = Mapping[str, Mapping[str, Place]]
"""Places by the SliceSet's uid and the slice's name, as they were."""


def place(
    sets: Iterable[DeclaredSet],
    pods: Iterable[Pod],
    before: Before,
    now_s: float,
) -> dict[str, Placing]:
    """Places of the slices of all SliceSets that concern this node, by the SliceSet's uid.

    A pod is one SliceSet's: the older one's. Within one it is one slice's, unless all its slices say which packets are
    theirs.

    Args:
        sets: valid, and meant for this node.
        pods: of this node.
        before: where slices were.
        now_s: by the monotonic clock.
    """
    there = list(pods)
    taken: dict[tuple[str, str], tuple[DeclaredSet, DeclaredSlice]] = {}
    found: dict[str, Placing] = {}
    for one in sorted(sets, key=lambda each: each.age):
        places: dict[str, Place] = {}
        troubles: list[Trouble] = []
        for each in one.slices:
            spot, why = _spot(one, each, there, before.get(one.uid, {}).get(each.name), now_s)
            if spot is not None and (refused := _refused(one, each, spot, taken)):
                spot, why = None, refused
            if spot is not None:
                places[each.name] = spot
                taken.setdefault(spot.pod.key, (one, each))
            if why is not None:
                troubles.append(why)
        found[one.uid] = Placing(places, tuple(troubles))
    return found


def _spot(
    one: DeclaredSet, each: DeclaredSlice, pods: list[Pod], before: Place | None, now_s: float
) -> tuple[Place | None, Trouble | None]:
    """Where a slice is, and what is wrong about it."""
    meant = [pod for pod in pods if pod.namespace == one.namespace and each.pods.fits(pod.labels)]
    ready = [pod for pod in meant if not pod.deleting and (found := pod.container(each.container)) and found.running]
    if before is not None and len(ready) > 1:
        # The one that it had: a second one beside it must not end what is under way.
        had = [pod for pod in ready if pod.uid == before.pod.uid]
        if had:
            return _at(had[0], each), _ambiguous(each, ready)
    if len(ready) > 1:
        return None, _ambiguous(each, ready)
    if ready:
        return _at(ready[0], each), None
    if before is not None and before.pod.lasting_name:
        since_s = now_s if before.away_since_s is None else before.away_since_s
        if now_s - since_s < AWAY_S:
            text = f"slice {each.name}: pod {before.pod.name} has gone or does not run; its place is kept for a while"
            return Place(before.pod, before.container, since_s), Trouble(each.name, AWAY, text)
    return None, _not_ready(each, [pod for pod in meant if not pod.deleting])


def _at(pod: Pod, each: DeclaredSlice) -> Place:
    container = pod.container(each.container)
    assert container is not None
    return Place(pod, container.name)


def _ambiguous(each: DeclaredSlice, pods: list[Pod]) -> Trouble:
    names = ", ".join(sorted(pod.name for pod in pods))
    return Trouble(each.name, AMBIGUOUS, f"slice {each.name}: {names}: all fit its podSelector; accepted: one a node")


def _not_ready(each: DeclaredSlice, meant: list[Pod]) -> Trouble | None:
    """None where no pod is meant: then the slice is on other nodes."""
    if not meant:
        return None
    pod = meant[0]
    if pod.container(each.container) is None:
        names = ", ".join(one.name for one in pod.containers)
        given = "not given" if each.container is None else each.container
        text = f"slice {each.name}: pod {pod.name}: container = {given}; accepted: one of {names}"
        return Trouble(each.name, NO_CONTAINER, text)
    return Trouble(each.name, NOT_RUNNING, f"slice {each.name}: pod {pod.name} does not run (yet)")


def _refused(
    one: DeclaredSet,
    each: DeclaredSlice,
    spot: Place,
    taken: Mapping[tuple[str, str], tuple[DeclaredSet, DeclaredSlice]],
) -> Trouble | None:
    """Why a pod is somebody else's."""
    owner = taken.get(spot.pod.key)
    if owner is None or (owner[0].uid == one.uid and owner[1].shares and each.shares):
        return None
    if owner[0].uid == one.uid:
        how = "accepted: one slice a pod, or traffic in all slices of it"
        text = f"slice {each.name}: pod {spot.pod.name} is that of slice {owner[1].name} already; {how}"
    else:
        text = f"slice {each.name}: pod {spot.pod.name} belongs to the older SliceSet {owner[0].name}"
    return Trouble(each.name, CONFLICT, text)
