"""All that ``slicepilot doctor --kubernetes`` says."""

from __future__ import annotations

import contextlib
import platform
from pathlib import Path

from slicepilot.cluster.client.connection import Api
from slicepilot.configs.backends import Check
from slicepilot.controller.actuators.cilium.choice import CiliumPlaces

from .asked import NEEDED_FOR, Asked
from .cilium import cilium_checks, map_checks, pod_checks
from .node import KUBELET, api_checks, kubelet_checks, slice_pods

TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


def checks(
    kubeconfig: Path | None, node: str | None, places: CiliumPlaces | None = None, kubelet: Path = KUBELET
) -> list[Check]:
    """Of a cluster and of this node; writes nothing.

    Args:
        kubeconfig: where the API server is; None: by the service account of the pod that this is in, else nothing is
            asked of a server, and what is on this machine is told.
        node: name of this node in the cluster; None: its host's name.
        places: where Cilium keeps its map and its state; kubelet: likewise.

    Raises:
        ConfigError: no such kubeconfig.
    """
    places, node = places or CiliumPlaces(), node or platform.node()
    with contextlib.ExitStack() as undo:
        api = Api(kubeconfig) if kubeconfig is not None or TOKEN.exists() else None
        if api is not None:
            undo.callback(api.close)
        asked = Asked(api)
        found = [*api_checks(asked), *kubelet_checks(asked, node, kubelet), *cilium_checks(asked, places)]
        if places.state.is_dir() or any(one.name == "bandwidth manager" and one.ok for one in found):
            found += [*map_checks(places), *pod_checks(asked, places, slice_pods(asked, node)), SAME_NODE]
        return found


SAME_NODE = Check("same-node traffic", True, "not paced by Cilium, only what leaves the node", NEEDED_FOR)
