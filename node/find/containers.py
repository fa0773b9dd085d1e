"""Containers of this machine by name and label, as the files of their runtimes have them.

A container is known to the kernel by its id alone, in the path of its cgroups. Names and labels are the runtime's:
Docker's are in ``config.v2.json`` of each container, those of whatever runs on containerd (nerdctl, Kubernetes) or
CRI-O in the annotations of its OCI bundle
(https://github.com/opencontainers/runtime-spec/blob/main/config.md#annotations). Files are read, no daemon is used: a
runtime that hangs does not block us. Other users cannot write to these folders.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

DOCKER = Path("/var/lib/docker/containers")
CONTAINERD = Path("/run/containerd/io.containerd.runtime.v2.task")
CRIO = Path("/run/containers/storage/overlay-containers")
MOST_BYTES = 1 << 20


class Keys(NamedTuple):
    """A runtime's keys for a container's pod, namespace, uid and name, and for its kind, with the kind of the sandbox
    that only holds the pod's namespaces. Keys of other runtimes are ignored, since a pod's annotations may set them."""

    name: str
    namespace: str
    uid: str
    container: str
    kind: str
    sandbox: str


CONTAINERD_KEYS = Keys(
    "io.kubernetes.cri.sandbox-name",
    "io.kubernetes.cri.sandbox-namespace",
    "io.kubernetes.cri.sandbox-uid",
    "io.kubernetes.cri.container-name",
    "io.kubernetes.cri.container-type",
    "sandbox",
)
CRIO_KEYS = Keys(
    "io.kubernetes.pod.name",
    "io.kubernetes.pod.namespace",
    "io.kubernetes.pod.uid",
    "io.kubernetes.container.name",
    "io.kubernetes.cri-o.ContainerType",
    "sandbox",
)
DOCKER_KEYS = CRIO_KEYS._replace(kind="io.kubernetes.docker.type", sandbox="podsandbox")
NERDCTL_NAME = "nerdctl/name"
LONG_ID = 64
MOST_PID = 1 << 22  # PID_MAX_LIMIT, proc(5)
WATCHERS = "conmon"


class Pod(NamedTuple):
    """Kubernetes' names of a container: its pod's and its own."""

    name: str
    namespace: str
    uid: str
    container: str


@dataclass(frozen=True)
class Container:
    """One container.

    Attributes:
        identity: its id.
        name: that its runtime knows it by; may be empty.
        labels: or annotations.
        keys: the runtime's.
        init: pid of its first process; None where the runtime's files do not say.
    """

    identity: str
    name: str
    labels: dict[str, str] = field(default_factory=dict)
    keys: Keys = CONTAINERD_KEYS
    init: int | None = None

    @property
    def pod(self) -> Pod | None:
        """Kubernetes' names of it; None for containers of others, and for a pod's sandbox, which runs nothing."""
        name, namespace, uid, container, kind = (self.labels.get(key, "") for key in self.keys[:5])
        return None if not name or kind == self.keys.sandbox else Pod(name, namespace, uid, container)

    def has(self, group_names: Iterable[str]) -> bool:
        """Whether a process is in it, by the names of its groups."""
        return any(is_of(name, self.identity) for name in group_names)


def is_of(group_name: str, identity: str) -> bool:
    """Whether a group is that of a container: its id, or as systemd's drivers write it, RUNTIME-ID.scope.

    Of a long id its beginning will do. What watches a container (CRI-O's conmon) has a scope of its own, and is not it.
    """
    runtime, _, own = group_name.removesuffix(".scope").rpartition("-")
    if group_name == identity or (own == identity and not runtime.endswith(WATCHERS)):
        return True
    return len(own) == LONG_ID and own.startswith(identity) and not runtime.endswith(WATCHERS)


def containers(docker: Path = DOCKER, containerd: Path = CONTAINERD, crio: Path = CRIO) -> list[Container]:
    """Containers with files of a runtime, running or not; files that cannot be read or parsed are ignored."""
    return [*_of_docker(docker), *_of_containerd(containerd), *_of_crio(crio)]


def _files(root: Path, pattern: str) -> list[Path]:
    """Files in order; none of folders that must not be read.

    Shims of containerd's make /run/containerd with mode 0600: who has given up CAP_DAC_OVERRIDE cannot pass through.
    """
    try:
        return sorted(root.glob(pattern))
    except OSError:
        return []


def _of_docker(root: Path) -> Iterator[Container]:
    for path in _files(root, "*/config.v2.json"):
        document = _read(path)
        config, state = (result if isinstance(result := document.get(key), dict) else {} for key in ("Config", "State"))
        name, init = str(document.get("Name", "")).lstrip("/"), state.get("Pid")
        yield Container(
            path.parent.name,
            name,
            _texts(config.get("Labels")),
            DOCKER_KEYS,
            init if isinstance(init, int) and init > 0 else None,
        )


def _of_containerd(root: Path) -> Iterator[Container]:
    for path in _files(root, "*/*/config.json"):
        yield _of_bundle(path, path.parent.name, CONTAINERD_KEYS, path.with_name("init.pid"))


def _of_crio(root: Path) -> Iterator[Container]:
    for path in _files(root, "*/userdata/config.json"):
        yield _of_bundle(path, path.parent.parent.name, CRIO_KEYS, path.with_name("pidfile"))


def _of_bundle(path: Path, identity: str, keys: Keys, init: Path) -> Container:
    notes = _texts(_read(path).get("annotations"))
    name = notes.get(keys.container) or notes.get(NERDCTL_NAME) or identity
    return Container(identity, name, notes, keys, _number(init))


def _number(path: Path) -> int | None:
    try:
        with path.open("rb") as file:
            content = file.read(20).strip()
    except OSError:
        return None
    return int(content) if content.isdigit() and 0 < int(content) <= MOST_PID else None


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        document = json.loads(content) if len(content) <= MOST_BYTES else {}
    except (OSError, ValueError, RecursionError):
        document = {}
    return document if isinstance(document, dict) else {}


def _texts(value: Any) -> dict[str, str]:
    return {str(key): str(text) for key, text in value.items()} if isinstance(value, dict) else {}
