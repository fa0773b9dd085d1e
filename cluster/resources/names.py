"""Names of objects, fields and managers at the API server."""

from __future__ import annotations

import hashlib
import re

GROUP, VERSION = "slicepilot.dev", "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
SLICE_SETS, NODE_SLICE_SETS = "slicesets", "nodeslicesets"
NODE_LABEL = f"{GROUP}/node"
CONTROLLER = f"{GROUP}/agent"
SUMMARY = "slicepilot-summary"
"""Lease of the agent that sums up, and manager of the fields that it writes."""
DIGEST = 20
"""Digits of a digest: 80 bits, so that nobody can search for names with the same digest."""
MOST_LABEL, MOST_NAME, MOST_INSTANCE = 63, 253, 63


def path(plural: str, namespace: str | None = None, name: str | None = None, *, status: bool = False) -> str:
    """Path of our own resources."""
    within = f"/namespaces/{namespace}" if namespace is not None else ""
    return f"/apis/{API_VERSION}{within}/{plural}" + (f"/{name}" if name else "") + ("/status" if status else "")


def node_slice_set(slice_set: str, node: str) -> str:
    """Name of the NodeSliceSet of a SliceSet and a node; names of both may have dots, and every pair has its own."""
    text = f"{slice_set}.{node}"
    return _short(text, MOST_NAME) if "." not in slice_set else _with_digest(text, f"{slice_set}/{node}", MOST_NAME)


def node_label(node: str) -> str:
    """The value of `NODE_LABEL`; nodes may have longer names than labels have values."""
    return _short(node, MOST_LABEL)


def instance(namespace: str, slice_set: str) -> str:
    """Name of the loop of a SliceSet on its node, and of its folders and sockets."""
    return _short(f"{namespace}.{slice_set}", MOST_INSTANCE)


def manager(node: str) -> str:
    """Manager of the fields that an agent writes (server-side apply; at most 128 characters)."""
    return _short(f"slicepilot-agent-{node}", 128)


def camel(text: str) -> str:
    """A message with fields as users write them: ``delay_bound_ms`` becomes ``delayBoundMs``."""
    return re.sub(r"\b[a-z]+(?:_[a-z0-9]+)+\b", lambda match: _camel(match[0]), text)


def snake(name: str) -> str:
    """The reverse for a field."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda match: f"_{match[1].lower()}", name)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _short(text: str, most: int) -> str:
    """The text; where that is too long, its beginning and a part of its digest."""
    if len(text) <= most:
        return text
    return _with_digest(text, text, most)


def _with_digest(text: str, whole: str, most: int) -> str:
    digest = hashlib.sha256(whole.encode()).hexdigest()[:DIGEST]
    return f"{text[: most - DIGEST - 1].rstrip('-._')}-{digest}"
