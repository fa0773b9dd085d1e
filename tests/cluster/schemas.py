"""Schemas of the API server's own resources, as kubeconform takes them: no network host is asked for any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .cluster import Cluster

GVK = "x-kubernetes-group-version-kind"
NAMED = "{{ .ResourceKind }}-{{ .Group }}-{{ .ResourceAPIVersion }}.json"
"""kubeconform's template of a file's name (its README, -schema-location)."""


def write_schemas(cluster: Cluster, folder: Path, paths: set[str]) -> None:
    """One file for each kind, strict: no field that the server does not name.

    Args:
        cluster: whose server is asked for its OpenAPI (https://kubernetes.io/docs/concepts/overview/kubernetes-api/).
        folder: to write into.
        paths: of groups and versions, as ``apis/apps/v1``.
    """
    root = json.loads(cluster.kubectl("get", "--raw", "/openapi/v3"))["paths"]
    for path in paths:
        document = json.loads(cluster.kubectl("get", "--raw", root[path]["serverRelativeURL"]))
        every = document["components"]["schemas"]
        for name, schema in every.items():
            for one in schema.get(GVK) or ():
                if not name.startswith("io.k8s.apimachinery"):
                    group = one["group"] or one["version"]  # as kubeconform calls the group of ``v1``
                    file = f"{one['kind'].lower()}-{group}-{one['version']}.json"
                    found = {"definitions": {key: _strict(value) for key, value in every.items()}}
                    found |= {"$ref": f"#/definitions/{name}"}
                    (folder / file).write_text(json.dumps(found))


def _strict(schema: Any) -> Any:
    """OpenAPI's as JSON schema: references are to definitions, and named properties are all that there are."""
    if isinstance(schema, list):
        return list(map(_strict, schema))
    if not isinstance(schema, dict):
        return schema
    named = {"properties", "patternProperties"}  # maps of schemas by names, which may be words of schemas, too
    made: dict[str, Any] = {
        key: {name: _strict(one) for name, one in value.items()} if key in named else _strict(value)
        for key, value in schema.items()
    }
    if isinstance(made.get("$ref"), str):
        made["$ref"] = made["$ref"].replace("#/components/schemas/", "#/definitions/")
    if isinstance(made.get("properties"), dict) and "additionalProperties" not in made and "type" in made:
        made["additionalProperties"] = bool(made.get("x-kubernetes-preserve-unknown-fields"))
    if made.get("format") == "int-or-string" or made.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
    if made.get("nullable") and isinstance(made.get("type"), str):
        made["type"] = [made["type"], "null"]
    return made
