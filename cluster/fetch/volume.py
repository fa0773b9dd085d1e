"""A bundle in a volume: read through a container of the same namespace that runs here and has it mounted.

The agent mounts nothing: attaching a claim is the kubelet's and its drivers' part. Who may read the claim's files by a
SliceSet is who may run a pod with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from slicepilot.cluster.resources.pod import Pod
from slicepilot.cluster.resources.wanted import Wanted
from slicepilot.node.find.containers import Container, containers

from .child import FetchError, ask

MODULE = "slicepilot.cluster.fetch.volume_reader"
READ_S = 20.0
MOST_TRIED = 4


@dataclass(frozen=True)
class Mount:
    """A claim in a container: its pod, and where its root has it."""

    pod: Pod
    container: str
    at: str


def fetch(wanted: Wanted, pods: Iterable[Pod]) -> dict[str, bytes]:
    """The files of the bundle; raises FetchError."""
    mounts = list(_mounts(wanted, pods))
    if not mounts:
        raise FetchError(
            f"no running pod of namespace {wanted.namespace} on this node mounts claim {wanted.name} whole; accepted: "
            "one that does (volumeMounts without subPath), for instance a UPF's"
        )
    known, last = containers(), FetchError("")
    for mount in mounts[:MOST_TRIED]:
        try:
            return ask(MODULE, _request(wanted, mount, known), READ_S)
        except FetchError as error:
            last = FetchError(f"pod {mount.pod.name}: {error}")
    raise last


def _mounts(wanted: Wanted, pods: Iterable[Pod]) -> Iterator[Mount]:
    for pod in sorted(pods, key=lambda one: one.name):
        if pod.namespace != wanted.namespace or pod.deleting or pod.known_uid is None:
            continue
        volumes = {volume for volume, claim in pod.claims if claim == wanted.name}
        for container in pod.containers:
            if container.running:
                yield from (Mount(pod, container.name, at) for volume, at in container.mounts if volume in volumes)


def _request(wanted: Wanted, mount: Mount, known: Iterable[Container]) -> dict[str, object]:
    """By the uid that the runtime has written down: nobody else's container has it."""
    for one in known:
        named = one.pod
        if named is None or one.init is None:
            continue
        if (named.namespace, named.uid, named.container) == (wanted.namespace, mount.pod.known_uid, mount.container):
            return {"pid": one.init, "container": one.identity, "mount": mount.at, "within": wanted.within}
    raise FetchError(f"container {mount.container} is not among those that this node's runtime has written down")
