"""Where bundles and guard rules are read from: ConfigMaps of the SliceSet's namespace, and volumes of the agent's pod.

Volumes are the operator's (the chart's value `bundles.volumes`): OCI images, claims and whatever else a pod can mount.
Each belongs to one namespace. The digest decides whether what is read is the declared bundle (`store`).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slicepilot.agents.learned.files import LIMITS_BYTES, BundleFiles
from slicepilot.cluster.client.connection import Api
from slicepilot.cluster.client.errors import ApiError
from slicepilot.cluster.resources.wanted import RULES, Wanted
from slicepilot.configs import ConfigError, validate
from slicepilot.configs.limited_yaml import parse_yaml
from slicepilot.configs.reading import Roots
from slicepilot.controller.guard.config import GuardConfig

MOST_WINDOW_S, MOST_REVERSALS, MOST_OVERRUNS = 5.0, 100, 100
"""Larger values would cost the loop memory, and time in each tick."""


class FetchError(Exception):
    """Why a bundle or rules could not be fetched."""


def bundle_in_config_map(api: Api, wanted: Wanted) -> Mapping[str, bytes]:
    """The files of a bundle, from ``data`` and ``binaryData``; raises FetchError."""
    document = _config_map(api, wanted)
    parts = {name: data for name in LIMITS_BYTES if (data := _value(document, name)) is not None}
    for name, data in parts.items():
        if len(data) > LIMITS_BYTES[name]:
            raise FetchError(f"{name}: more than {LIMITS_BYTES[name]} bytes")
    return parts


def bundle_in_volume(folder: Path | None, wanted: Wanted) -> Mapping[str, bytes]:
    """The files of a bundle in a volume that is mounted at ``folder/NAMESPACE/NAME``; raises FetchError.

    Links in the volume are followed inside it only.
    """
    volume = None if folder is None else folder / wanted.namespace / wanted.name
    if volume is None or not volume.is_dir():
        raise FetchError(
            f"this agent has no volume {wanted.name} for namespace {wanted.namespace}; expected: a name that the "
            "chart's value bundles.volumes lists for this namespace"
        )
    try:
        return BundleFiles.read(volume / wanted.within, Roots((volume,), "policy.bundle.volume")).parts
    except ConfigError as error:
        raise FetchError(str(error)) from error


def rules(api: Api, wanted: Wanted) -> bytes:
    """Guard rules as they are written; raises FetchError where they are not valid."""
    data = _value(_config_map(api, wanted), wanted.within)
    if data is None:
        raise FetchError(f"ConfigMap {wanted.name} has no key {wanted.within}")
    try:
        check_rules(data, f"{wanted.name}, {wanted.within}")
    except ConfigError as error:
        raise FetchError(str(error)) from error
    return data


def check_rules(data: bytes, what: str) -> None:
    """Raises ConfigError, which quotes no value: readers of conditions need not be readers of ConfigMaps."""
    config = validate(GuardConfig, parse_yaml(data, what), what, quote=False)
    for field, value, most in (
        ("sla_floor.window_s", config.sla_floor.window_s, MOST_WINDOW_S),
        ("oscillation.reversals", config.oscillation.reversals, MOST_REVERSALS),
        ("overruns.most", config.overruns.most, MOST_OVERRUNS),
    ):
        if value > most:
            raise ConfigError(f"{what}: {field}: expected at most {most:g} in the rules of a ConfigMap")


def _config_map(api: Api, wanted: Wanted) -> dict[str, Any]:
    try:
        return api.get(f"/api/v1/namespaces/{wanted.namespace}/configmaps/{wanted.name}")
    except ApiError as error:
        if error.status == 403:
            raise FetchError(
                f"this agent may not read ConfigMaps of namespace {wanted.namespace}; expected: a namespace that the "
                "chart's value bundles.configMapNamespaces lists"
            ) from error
        if error.status == 404:
            kind = "guard rules" if wanted.kind == RULES else "bundle"
            raise FetchError(
                f"no ConfigMap {wanted.name} in namespace {wanted.namespace}; expected a ConfigMap with the {kind}"
            ) from error
        raise FetchError("the API server does not answer") from error


def _value(document: Mapping[str, Any], key: str) -> bytes | None:
    text, coded = (document.get(part) or {} for part in ("data", "binaryData"))
    if key in text:
        return str(text[key]).encode()
    if key not in coded:
        return None
    try:
        return base64.b64decode(coded[key], validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise FetchError(f"{key}: not valid base64") from error
