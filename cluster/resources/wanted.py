"""References of a SliceSet to a policy bundle or to guard rules, and the state of fetching them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slicepilot.configs import ConfigError

CONFIG_MAP, VOLUME, RULES = "configMap", "volume", "guard.configMap"
FETCHING, NOT_FETCHED = "Fetching", "NotFetched"
DIGEST = re.compile(r"[0-9a-f]{64}")
OBJECT = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
KEY = re.compile(r"[A-Za-z0-9._-]{1,253}")
"""A ConfigMap's key: https://kubernetes.io/docs/reference/kubernetes-api/config-and-storage-resources/config-map-v1/"""
MOST_PATH = 1024


@dataclass(frozen=True)
class Wanted:
    """A bundle or guard rules that SliceSets of a namespace refer to; the same name in another namespace is another
    item.

    Attributes:
        namespace: of the SliceSet.
        kind: where it is: `CONFIG_MAP` or `VOLUME` of a bundle, `RULES` of guard rules.
        name: of the ConfigMap or the volume.
        within: the key of a ConfigMap, or the folder in a volume.
        digest: of a bundle; empty for rules, which may change.
    """

    namespace: str
    kind: str
    name: str
    within: str = ""
    digest: str = ""

    @property
    def field(self) -> str:
        return self.kind if self.kind == RULES else f"policy.bundle.{self.kind}"


@dataclass(frozen=True)
class Fetched:
    """The state of a wanted item on this node.

    Attributes:
        path: the bundle's folder, the rules' file; None: nothing yet.
        problem: why it was not fetched when that was last tried; None: it was, or is being.
        refusal: why this bundle may not act; None: it may.
    """

    path: Path | None = None
    problem: str | None = None
    refusal: str | None = None


def bundle_wanted(namespace: str, document: Mapping[str, Any]) -> Wanted:
    """The bundle of ``policy.bundle``; raises ConfigError for names and paths that cannot exist."""
    [kind] = document
    item, field = document[kind], f"policy.bundle.{kind}"
    digest = str(item["digest"])
    if not DIGEST.fullmatch(digest):
        raise ConfigError(f"{field}.digest: expected the SHA-256 of the bundle's SHA256SUMS, in lower case")
    if kind == CONFIG_MAP:
        return Wanted(namespace, kind, _object(field, "name", item["name"]), "", digest)
    if kind == VOLUME:
        within = str(item.get("path") or "")
        if within.startswith("/") or ".." in within.split("/") or "\0" in within or len(within) > MOST_PATH:
            raise ConfigError(f"{field}.path = {within!r:.80}: expected a folder in the volume, without ..")
        return Wanted(namespace, kind, _object(field, "name", item["name"]), within, digest)
    raise ConfigError(f"{field}: expected shipped, {CONFIG_MAP} or {VOLUME}; OCI images and claims are volumes")


def rules_wanted(namespace: str, document: Mapping[str, Any]) -> Wanted:
    """The rules of ``guard.configMap``; raises ConfigError as `bundle_wanted` does."""
    key = str(document.get("key") or "guard.yaml")
    if not KEY.fullmatch(key):
        raise ConfigError(f"{RULES}.key = {key!r:.80}: expected letters, digits, ., _ and -")
    return Wanted(namespace, RULES, _object(RULES, "name", document["name"]), key)


def _object(field: str, part: str, name: Any) -> str:
    """The name, if it can be part of a request's path."""
    if not isinstance(name, str) or not OBJECT.fullmatch(name):
        raise ConfigError(f"{field}.{part} = {name!r:.80}: expected a name of the API (a-z, 0-9, - and .)")
    return name
