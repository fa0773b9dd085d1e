"""Which pods of this node are the UPFs of which slices: by selectors, and by age where two SliceSets select the same
pod."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slicepilot.cluster.resources.pod import Pod
from slicepilot.cluster.resources.slice_set import DeclaredSet, DeclaredSlice

AWAY_S = 60.0
"""A slice is kept for so long while its pod is away and its successor will have its name: the loop finds that
itself, and the other slices are not disturbed."""

CONFLICT, AMBIGUOUS, NO_CONTAINER, NOT_RUNNING, AWAY = (
    "PodConflict",
    "PodAmbiguous",
    "ContainerMissing",
    "PodNotRunning",
    "PodAway",
)


@dataclass(frozen=True)
class SlicePod:
    """The UPF of a slice.

    Attributes:
        pod: as last seen.
        container: name of the UPF's container.
        away_since_s: since when the pod is missing; None: it is there.
    """

    pod: Pod
    container: str
    away_since_s: float | None = None


@dataclass(frozen=True)
class Trouble:
    """Why a slice with pods here is not as declared: a reason of conditions, and a line."""

    slice: str
    reason: str
    message: str


@dataclass(frozen=True)
class Assignment:
    """The pods of a SliceSet on this node, by slice."""

    pods: Mapping[str, SlicePod] = field(default_factory=dict)
    troubles: tuple[Trouble, ...] = ()


def assign_pods(
    sets: Iterable[DeclaredSet],
    pods: Iterable[Pod],
    before: Mapping[str, Mapping[str, SlicePod]],
    now_s: float,
) -> dict[str, Assignment]:
    """Assign this node's pods to the slices of all SliceSets; by the SliceSet's uid.

    A pod belongs to the oldest SliceSet that selects it. Within that it belongs to a single slice, unless all of its
    slices declare which packets are theirs.

    Args:
        sets: valid, and meant for this node.
        pods: of this node.
        before: the pods of slices in the last assignment.
        now_s: by the monotonic clock.
    """
    available = list(pods)
    owners: dict[tuple[str, str], tuple[DeclaredSet, DeclaredSlice]] = {}
    assigned: dict[str, Assignment] = {}
    for declared in sorted(sets, key=lambda item: item.age):
        chosen: dict[str, SlicePod] = {}
        troubles: list[Trouble] = []
        for each in declared.slices:
            result, trouble = _select(declared, each, available, before.get(declared.uid, {}).get(each.name), now_s)
            if result is not None and (conflict := _conflict(declared, each, result, owners)):
                result, trouble = None, conflict
            if result is not None:
                chosen[each.name] = result
                owners.setdefault(result.pod.key, (declared, each))
            if trouble is not None:
                troubles.append(trouble)
        assigned[declared.uid] = Assignment(chosen, tuple(troubles))
    return assigned


def _select(
    declared: DeclaredSet, each: DeclaredSlice, pods: list[Pod], before: SlicePod | None, now_s: float
) -> tuple[SlicePod | None, Trouble | None]:
    """The pod of a slice, and what is wrong about it."""
    selected = [pod for pod in pods if pod.namespace == declared.namespace and each.pods.fits(pod.labels)]
    ready = [pod for pod in selected if not pod.deleting and (own := pod.container(each.container)) and own.running]
    if len(ready) > 1:
        names = ", ".join(sorted(pod.name for pod in ready))
        text = f"slice {each.name}: its podSelector selects {names}; expected one pod a node"
        # The pod that it had stays its pod: a second pod beside it must not end the loop.
        had = [pod for pod in ready if before is not None and pod.uid == before.pod.uid]
        return (_slice_pod(had[0], each) if had else None), Trouble(each.name, AMBIGUOUS, text)
    if ready:
        return _slice_pod(ready[0], each), None
    if before is not None and before.pod.lasting_name:
        since_s = now_s if before.away_since_s is None else before.away_since_s
        if now_s - since_s < AWAY_S:
            text = f"slice {each.name}: pod {before.pod.name} is gone or does not run; its successor is awaited"
            return SlicePod(before.pod, before.container, since_s), Trouble(each.name, AWAY, text)
    return None, _not_ready(each, [pod for pod in selected if not pod.deleting])


def _slice_pod(pod: Pod, each: DeclaredSlice) -> SlicePod:
    container = pod.container(each.container)
    assert container is not None
    return SlicePod(pod, container.name)


def _not_ready(each: DeclaredSlice, selected: list[Pod]) -> Trouble | None:
    """None where no pod is selected: then the slice is on other nodes."""
    if not selected:
        return None
    pod = selected[0]
    if pod.container(each.container) is None:
        names = ", ".join(container.name for container in pod.containers)
        given = "not given" if each.container is None else each.container
        text = f"slice {each.name}: pod {pod.name}: container = {given}: expected one of {names}"
        return Trouble(each.name, NO_CONTAINER, text)
    return Trouble(each.name, NOT_RUNNING, f"slice {each.name}: pod {pod.name} does not run (yet)")


def _conflict(
    declared: DeclaredSet,
    each: DeclaredSlice,
    result: SlicePod,
    owners: Mapping[tuple[str, str], tuple[DeclaredSet, DeclaredSlice]],
) -> Trouble | None:
    """Why a pod cannot be this slice's."""
    owner = owners.get(result.pod.key)
    if owner is None or (owner[0].uid == declared.uid and owner[1].shares and each.shares):
        return None
    if owner[0].uid == declared.uid:
        hint = "expected one slice a pod, or traffic in all slices of it"
        text = f"slice {each.name}: pod {result.pod.name} is that of slice {owner[1].name} already; {hint}"
    else:
        text = f"slice {each.name}: pod {result.pod.name} belongs to the older SliceSet {owner[0].name}"
    return Trouble(each.name, CONFLICT, text)
