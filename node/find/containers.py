"""Containers of this machine by name and label, as the files of their runtimes have them.

A container is known to the kernel by its id alone, in the path of its cgroups. Names and labels are the runtime's:
Docker's are in ``config.v2.json`` of each container, those of whatever runs on containerd (nerdctl, Kubernetes) in the
annotations of its OCI bundle (https://github.com/opencontainers/runtime-spec/blob/main/config.md#annotations). Files
are read, no daemon is asked: a runtime that hangs holds nobody up. Other users cannot write to these folders.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DOCKER = Path("/var/lib/docker/containers")
CONTAINERD = Path("/run/containerd/io.containerd.runtime.v2.task")
MOST_BYTES = 1 << 20
# What names a container where annotations do: nerdctl's, and those of Kubernetes' CRI.
NAME_KEYS = ("nerdctl/name", "io.kubernetes.cri.container-name", "io.kubernetes.container.name")


@dataclass(frozen=True)
class Container:
    """One container: its id, the name its runtime knows it by (may be empty), and its labels."""

    identity: str
    name: str
    labels: dict[str, str] = field(default_factory=dict)


def containers(docker: Path = DOCKER, containerd: Path = CONTAINERD) -> list[Container]:
    """Those that there are files of, running or not; what cannot be read or understood is passed over."""
    return [*_of_docker(docker), *_of_containerd(containerd)]


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
        notes = _texts(_read(path).get("annotations"))
        name = next((notes[key] for key in NAME_KEYS if key in notes), path.parent.name)
        yield Container(path.parent.name, name, notes)


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
