"""Containers of this machine by name and label, as the files of their runtimes have them.

A container is known to the kernel by its id alone, in the path of its cgroups. Names and labels are the runtime's:
Docker's are in ``config.v2.json`` of each container, those of whatever runs on containerd (nerdctl, Kubernetes) or
CRI-O in the annotations of its OCI bundle
(https://github.com/opencontainers/runtime-spec/blob/main/config.md#annotations). Files are read, no daemon is asked: a
runtime that hangs holds nobody up. Other users cannot write to these folders.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

DOCKER = Path("/var/lib/docker/containers")
CONTAINERD = Path("/run/containerd/io.containerd.runtime.v2.task")
CRIO = Path("/run/containers/storage/overlay-containers")
MOST_BYTES = 1 << 20
# What names a container where annotations do: nerdctl's, and those of Kubernetes' CRI.
NAME_KEYS = ("nerdctl/name", "io.kubernetes.cri.container-name", "io.kubernetes.container.name")
# What Kubernetes calls it, as containerd and as CRI-O write it down: pod, namespace, uid, container. The container that
# only holds the pod's namespaces has a kind of its own.
POD_KEYS = (
    ("io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name"),
    ("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace"),
    ("io.kubernetes.cri.sandbox-uid", "io.kubernetes.pod.uid"),
    ("io.kubernetes.cri.container-name", "io.kubernetes.container.name"),
)
KIND_KEYS, SANDBOX = ("io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType"), "sandbox"


class Pod(NamedTuple):
    """What Kubernetes calls a container: by its pod and its own name in there."""

    name: str
    namespace: str
    uid: str
    container: str


@dataclass(frozen=True)
class Container:
    """One container: its id, the name its runtime knows it by (may be empty), and its labels."""

    identity: str
    name: str
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def pod(self) -> Pod | None:
        """What Kubernetes calls it; None for what is none of its, or holds a pod's namespaces and runs nothing."""
        name, namespace, uid, container = (_first(self.labels, keys) for keys in POD_KEYS)
        if not name or _first(self.labels, KIND_KEYS) == SANDBOX:
            return None
        return Pod(name, namespace, uid, container)


def containers(docker: Path = DOCKER, containerd: Path = CONTAINERD, crio: Path = CRIO) -> list[Container]:
    """Those that there are files of, running or not; what cannot be read or understood is passed over."""
    return [*_of_docker(docker), *_of_containerd(containerd), *_of_crio(crio)]


def _files(root: Path, pattern: str) -> list[Path]:
    """In order; none in folders that may not be looked into.

    Shims of containerd's make /run/containerd with mode 0600: who has given up CAP_DAC_OVERRIDE cannot pass through.
    """
    try:
        return sorted(root.glob(pattern))
    except OSError:
        return []


def _of_docker(root: Path) -> Iterator[Container]:
    for path in _files(root, "*/config.v2.json"):
        document = _read(path)
        config = document.get("Config")
        labels = config.get("Labels") if isinstance(config, dict) else None
        yield Container(path.parent.name, str(document.get("Name", "")).lstrip("/"), _texts(labels))


def _of_containerd(root: Path) -> Iterator[Container]:
    for path in _files(root, "*/*/config.json"):
        yield _of_bundle(path, path.parent.name)


def _of_crio(root: Path) -> Iterator[Container]:
    for path in _files(root, "*/userdata/config.json"):
        yield _of_bundle(path, path.parent.parent.name)


def _of_bundle(path: Path, identity: str) -> Container:
    notes = _texts(_read(path).get("annotations"))
    return Container(identity, _first(notes, NAME_KEYS) or identity, notes)


def _first(notes: Mapping[str, str], keys: Sequence[str]) -> str:
    return next((notes[key] for key in keys if key in notes), "")


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
