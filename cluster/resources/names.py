"""Names that are shared with the API server."""

from __future__ import annotations

import hashlib
import re

GROUP, VERSION = "slicepilot.dev", "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
SLICE_SETS, NODE_SLICE_SETS = "slicesets", "nodeslicesets"
NODE_LABEL = f"{GROUP}/node"
CONTROLLER = f"{GROUP}/agent"
SUMMARY = "slicepilot-summary"
"""Lease of the agent that sums up, and what its fields are managed by."""
DIGEST = 20
"""Digits of it: nobody finds a name that has the same as somebody else's in 2^80 tries."""
MOST_LABEL, MOST_NAME, MOST_INSTANCE = 63, 253, 63


def path(plural: str, namespace: str | None = None, name: str | None = None, *, status: bool = False) -> str:
    """Of our own resources at the API server."""
    where = f"/namespaces/{namespace}" if namespace is not None else ""
    return f"/apis/{API_VERSION}{where}/{plural}" + (f"/{name}" if name else "") + ("/status" if status else "")


def node_slice_set(slice_set: str, node: str) -> str:
    """What the object of a SliceSet and a node is called; names of both may have dots, and no two pairs one name."""
    text = f"{slice_set}.{node}"
    return _short(text, MOST_NAME) if "." not in slice_set else _told_apart(text, f"{slice_set}/{node}", MOST_NAME)


def node_label(node: str) -> str:
    """The value of `NODE_LABEL`; nodes may have longer names than labels have values."""
    return _short(node, MOST_LABEL)


def instance(namespace: str, slice_set: str) -> str:
    """What the loop of a SliceSet is called on its node: its folders and sockets are named so."""
    return _short(f"{namespace}.{slice_set}", MOST_INSTANCE)


def manager(node: str) -> str:
    """Who an agent's fields are managed by (server-side apply; at most 128 characters)."""
    return _short(f"slicepilot-agent-{node}", 128)


def camel(text: str) -> str:
    """Fields in a message as users write them: ``delay_bound_ms`` is ``delayBoundMs``."""
    return re.sub(r"\b[a-z]+(?:_[a-z0-9]+)+\b", lambda found: _camel(found[0]), text)


def snake(name: str) -> str:
    """The other way round, of one field."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda found: f"_{found[1].lower()}", name)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _short(text: str, most: int) -> str:
    """The same, or where that is too long, its beginning with a part of its digest."""
    if len(text) <= most:
        return text
    return _told_apart(text, text, most)


def _told_apart(text: str, whole: str, most: int) -> str:
    digest = hashlib.sha256(whole.encode()).hexdigest()[:DIGEST]
    return f"{text[: most - DIGEST - 1].rstrip('-._')}-{digest}"
