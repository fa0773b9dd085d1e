"""All checks of ``slicepilot doctor --kubernetes``."""

from __future__ import annotations

import contextlib
import platform
from pathlib import Path

from slicepilot.cluster.client.connection import Api
from slicepilot.configs.backends import Check
from slicepilot.controller.actuators.cilium.choice import CiliumPaths

from .cilium import cilium_checks, map_checks, pod_checks
from .node import KUBELET, api_checks, kubelet_checks, slice_pods
from .reader import ClusterReader

TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


def checks(
    kubeconfig: Path | None, node: str | None, paths: CiliumPaths | None = None, kubelet: Path = KUBELET
) -> list[Check]:
    """Check a cluster and this node; writes nothing.

    Args:
        kubeconfig: None: the service account of this pod; outside a pod only this machine is checked.
        node: name of this node in the cluster; None: its host's name.
        paths: paths of Cilium's map and state; kubelet: folder of the kubelet.

    Raises:
        ConfigError: no such kubeconfig.
    """
    paths, node = paths or CiliumPaths(), node or platform.node()
    with contextlib.ExitStack() as undo:
        api = Api(kubeconfig) if kubeconfig is not None or TOKEN.exists() else None
        if api is not None:
            undo.callback(api.close)
        cluster = ClusterReader(api)
        checked = [*api_checks(cluster), *kubelet_checks(cluster, node, kubelet), *cilium_checks(cluster, paths)]
        if paths.state.is_dir() or any(check.name == "bandwidth manager" and check.ok for check in checked):
            checked += [*map_checks(paths), *pod_checks(cluster, paths, slice_pods(cluster, node))]
        return checked
