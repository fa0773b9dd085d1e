"""Identifies the Cilium endpoint of a slice's device.

Three sources have the number of an endpoint: the CiliumEndpoint resource (``status.id``), which anyone who may write
such resources can point elsewhere, and for which a loop would need a connection to the API server; names and aliases of
links, which have no number; and the agent's own state, from which it restores its endpoints when it starts: a file of
root's, below ``/run/cilium/state/NUMBER``. What is believed here is that file together with the kernel's word: a
device of the slice's namespace is an endpoint's only where the kernel says that its other end, in this namespace, is
the link that the file names by number and by name. A pod's name and labels play no part, so nobody becomes another
endpoint by them; and a second interface of a pod, which Cilium does not pace, is none.

Files: ``ep_config.json``, plain JSON; in older versions ``ep_config.h``, with the same in a line of its comment as
``CILIUM_BASE64_VERSION:JSON`` in base64 (pkg/endpoint/bpf.go, ``writeHeaderfile``; pkg/endpoint/restore.go,
``serializableEndpoint``, which is declared to be a stable interface).
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slicepilot.configs.errors import ConfigError
from slicepilot.configs.reading import opened_folder, path_of, read_in
from slicepilot.controller.system.bpf.pinned import WRITABLE_BY_OTHERS
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.net.links import Link

from .layout import MOST_ENDPOINT

STATE = Path("/run/cilium/state")
"""``--state-dir``, by default /var/run/cilium, of which the link /var/run leads to /run."""
JSON_FILE, HEADER_FILE, IN_HEADER = "ep_config.json", "ep_config.h", b"CILIUM_BASE64_"
MOST_BYTES = 16 << 20  # it holds what DNS has answered, too
MOST_ENDPOINTS = 4096


@dataclass(frozen=True)
class Endpoint:
    """One, by the agent's state.

    Attributes:
        id: its number on this node.
        link: name of the host's end of its pair; ifindex: number of that.
        namespace, pod: whose it is; empty where it is no pod's.
    """

    id: int
    link: str
    ifindex: int
    namespace: str = ""
    pod: str = ""

    def __str__(self) -> str:
        whose = f" ({self.namespace}/{self.pod})" if self.pod else ""
        return f"endpoint {self.id}{whose}"


def endpoint_of(pair: Link, state: Path = STATE) -> Endpoint | None:
    """The endpoint whose link a device's other end is; None where it is none's.

    Raises:
        ActuatorError: the agent's state cannot be read, is not root's, or names the link twice.
    """
    result = [endpoint for endpoint in endpoints(state) if (endpoint.ifindex, endpoint.link) == (pair.index, pair.name)]
    if len(result) > 1:
        numbers = " and ".join(str(item.id) for item in result)
        raise ActuatorError(f"{state}: endpoints {numbers} have the same link {pair.name}; expected one")
    return result[0] if result else None


def endpoints(state: Path = STATE) -> list[Endpoint]:
    """All that the agent would restore, by number; raises ActuatorError. Files that are none are left out."""
    try:
        with opened_folder(state, str(state)) as folder:
            if not _roots(folder):
                raise ActuatorError(f"{path_of(folder)}: can be changed by others; expected root's alone")
            there = (entry.name for entry in Path(f"/proc/self/fd/{folder}").iterdir())
            names = sorted((name for name in there if _number(name)), key=int)
            return list(filter(None, (_read(folder, name) for name in names[:MOST_ENDPOINTS])))
    except ConfigError as error:
        raise ActuatorError(str(error)) from None
    except OSError as error:
        raise ActuatorError.of(f"{state}: read Cilium's state", error) from error


def _roots(folder: int) -> bool:
    status = os.fstat(folder)
    return status.st_uid == 0 and not status.st_mode & WRITABLE_BY_OTHERS


def _number(name: str) -> bool:
    """Whether a folder is an endpoint's; ``12_next`` and the like are of an endpoint that is being made."""
    return name.isascii() and name.isdecimal() and 0 < int(name) <= MOST_ENDPOINT


def _read(state: int, name: str) -> Endpoint | None:
    try:
        folder = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=state)
    except OSError:  # removed meanwhile
        return None
    try:
        if not _roots(folder):
            return None
        data = read_in(folder, JSON_FILE, MOST_BYTES, JSON_FILE)
        documents = _from_header(read_in(folder, HEADER_FILE, MOST_BYTES, HEADER_FILE)) if data is None else [data]
        return next((item for document in documents if (item := parse(document, int(name))) is not None), None)
    except ConfigError:  # a link, or a file without an end
        return None
    finally:
        os.close(folder)


def _from_header(data: bytes | None) -> Iterator[bytes]:
    for line in (data or b"").splitlines():
        _, prefix, rest = line.partition(IN_HEADER)
        if prefix:
            encoded = rest.partition(b":")[2].strip()
            try:
                yield base64.b64decode(encoded, validate=True)
            except binascii.Error:
                continue


def parse(data: bytes, number: int) -> Endpoint | None:
    """The endpoint that a file describes, if it has this number; else None."""
    try:
        raw: Any = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(raw, dict):
        return None
    values = [raw.get(key) for key in ("ID", "IfIndex")]
    link, namespace, pod = (raw.get(key) or "" for key in ("IfName", "K8sNamespace", "K8sPodName"))
    if any(type(value) is not int for value in values) or values[0] != number or not values[1]:
        return None
    if not all(isinstance(text, str) and text.isprintable() for text in (link, namespace, pod)) or not link:
        return None
    return Endpoint(number, link, values[1], namespace, pod)
