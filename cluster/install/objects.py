"""Where the API server has an installation's objects."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...configs import FailureError
from ..client.connection import Api
from ..client.errors import ApiError

MANAGER = "slicepilot-install"
"""Who the fields are managed by (server-side apply)."""
APP = "app.kubernetes.io/name=slicepilot"
AGENT = "slicepilot-agent"

_PLURALS = {
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "CustomResourceDefinition": "customresourcedefinitions",
    "DaemonSet": "daemonsets",
    "Namespace": "namespaces",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "PodMonitor": "podmonitors",
    "PriorityClass": "priorityclasses",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "ServiceAccount": "serviceaccounts",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}


def operator_api(kubeconfig: Path | None) -> Api:
    """As whoever types a command: by the file that is named, else by KUBECONFIG, else by ``~/.kube/config``.

    Raises:
        ConfigError: there is none, or it cannot be used.
    """
    usual = Path("~/.kube/config").expanduser()
    return Api(kubeconfig or Path(os.environ.get("KUBECONFIG") or usual))


def path_of(document: Mapping[str, Any]) -> str:
    """Its path at the API server; KeyError for a kind that no installation has."""
    version, meta = document["apiVersion"], document["metadata"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    where = f"/namespaces/{meta['namespace']}" if "namespace" in meta else ""
    return f"{root}{where}/{_PLURALS[document['kind']]}/{meta['name']}"


def title(document: Mapping[str, Any]) -> str:
    """As people call it."""
    return f"{document['kind']} {document['metadata']['name']}"


def namespace_there(api: Api, name: str) -> bool:
    """Whether there is such a namespace.

    Raises:
        FailureError: the server does not answer, or refuses to say.
    """
    try:
        api.get(f"/api/v1/namespaces/{name}")
    except ApiError as error:
        if error.status == 404:
            return False
        raise FailureError(str(error)) from error
    return True
