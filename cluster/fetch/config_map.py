"""What ConfigMaps hold: bundles, and rules of the guard. One GET each, and never of another namespace."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from slicepilot.agents.learned.files import LIMITS_BYTES
from slicepilot.cluster.client.connection import Api
from slicepilot.cluster.client.errors import ApiError
from slicepilot.cluster.resources.wanted import RULES, Wanted
from slicepilot.configs import ConfigError, validate
from slicepilot.configs.limited_yaml import parse_yaml
from slicepilot.controller.guard.config import GuardConfig

from .child import FetchError

MOST_WINDOW_S, MOST_REVERSALS, MOST_OVERRUNS = 5.0, 100, 100
"""What a loop remembers of them is memory of the node's, and time of each tick."""


def bundle(api: Api, wanted: Wanted) -> dict[str, bytes]:
    """The files of a bundle, from ``data`` and ``binaryData``; raises FetchError."""
    document = _asked(api, wanted)
    found = {name: data for name in LIMITS_BYTES if (data := _value(document, name)) is not None}
    for name, data in found.items():
        if len(data) > LIMITS_BYTES[name]:
            raise FetchError(f"{name}: more than {LIMITS_BYTES[name]} bytes")
    return found


def rules(api: Api, wanted: Wanted) -> bytes:
    """Rules of the guard, as they are written; raises FetchError for what are none."""
    data = _value(_asked(api, wanted), wanted.within)
    if data is None:
        raise FetchError(f"ConfigMap {wanted.name} has no key {wanted.within}")
    try:
        check_rules(data, f"{wanted.name}, {wanted.within}")
    except ConfigError as error:
        raise FetchError(str(error)) from error
    return data


def check_rules(data: bytes, what: str) -> None:
    """Raises ConfigError, which quotes nothing of them: who reads conditions need not be who may read ConfigMaps."""
    found = validate(GuardConfig, parse_yaml(data, what), what, quote=False)
    for field, value, most in (
        ("sla_floor.window_s", found.sla_floor.window_s, MOST_WINDOW_S),
        ("oscillation.reversals", found.oscillation.reversals, MOST_REVERSALS),
        ("overruns.most", found.overruns.most, MOST_OVERRUNS),
    ):
        if value > most:
            raise ConfigError(f"{what}: {field}: accepted: at most {most:g} in rules of a ConfigMap")


def _asked(api: Api, wanted: Wanted) -> dict[str, Any]:
    kind = "rules" if wanted.kind == RULES else "bundle"
    try:
        return api.get(f"/api/v1/namespaces/{wanted.namespace}/configmaps/{wanted.name}")
    except ApiError as error:
        if error.status == 403:
            raise FetchError(
                f"this agent may not read ConfigMaps of namespace {wanted.namespace}; accepted: one that the chart's "
                "value bundles.configMapNamespaces lists"
            ) from error
        if error.status == 404:
            raise FetchError(
                f"no ConfigMap {wanted.name} in namespace {wanted.namespace}; accepted: its {kind}"
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
        raise FetchError(f"{key}: no base64") from error
