"""Rights that an installation has given in namespaces of others go when they are not listed any more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slicepilot.cluster.install.manifests import manifests
from slicepilot.cluster.install.removal import CONFIG_MAPS, withdraw
from slicepilot.cluster.install.values import values

from .server import Answer, serving

GONE = (("old",), ("core", "old"))
ROOT = "/apis/rbac.authorization.k8s.io/v1"


def test_rights_in_namespaces_that_are_not_listed_any_more_are_taken_away(tmp_path: Path) -> None:
    names = [("core", CONFIG_MAPS), ("old", CONFIG_MAPS), ("old", "of-somebody-else")]
    items = [{"metadata": {"name": name, "namespace": namespace}} for namespace, name in names]

    def script(method: str, *_: Any) -> Answer:
        return 200, {}, [{"items": items} if method == "GET" else {}]

    documents = manifests(values({"bundles": {"configMapNamespaces": ["core"]}}), "system")
    told: list[str] = []
    with serving(tmp_path, script) as (api, server):
        withdraw(api, documents, told.append)
        withdraw(api, (), told.append)
    deleted = [path.removeprefix(ROOT) for method, path, _, _ in server.asked if method == "DELETE"]
    kinds = ("rolebindings", "roles")
    first, second = ([f"/namespaces/{one}/{kind}/{CONFIG_MAPS}" for kind in kinds for one in gone] for gone in GONE)
    assert deleted == first + second
    assert {query["labelSelector"] for method, _, query, _ in server.asked if method == "GET"} == {
        "app.kubernetes.io/name=slicepilot"
    }
    assert told[0] == f"RoleBinding {CONFIG_MAPS} of namespace old deleted"
