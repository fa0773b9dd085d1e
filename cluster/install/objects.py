"""Where the API server has an installation's objects."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slicepilot.cluster.client.connection import Api
from slicepilot.cluster.client.errors import ApiError
from slicepilot.configs import FailureError

MANAGER = "slicepilot-install"
"""Who the fields are managed by (server-side apply)."""
APP = "app.kubernetes.io/name=slicepilot"
STEP_S, PATIENCE_S = 0.5, 20.0

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
    "Service": "services",
    "ServiceAccount": "serviceaccounts",
    "ServiceMonitor": "servicemonitors",
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


def listed(api: Api, where: str, query: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Objects of a kind; none where the server does not know the kind.

    A server that is not ready for a kind yet (429 just after its definition was made; 503) is asked again for a while.
    Raises ApiError.
    """
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return list(api.get(where, query).get("items") or ())
        except ApiError as error:
            if error.status == 404:
                return []
            if error.status not in {429, 503} or time.monotonic() > deadline_s:
                raise
            time.sleep(max(STEP_S, min(error.retry_after_s or 0.0, PATIENCE_S / 4.0)))


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
