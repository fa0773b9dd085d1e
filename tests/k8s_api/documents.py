"""SliceSets and pods as the API server gives them."""

from __future__ import annotations

from typing import Any


def slice_document(name: str = "a", sd: str = "000001", **more: Any) -> dict[str, Any]:
    """A slice of the pods that are labelled with its name."""
    return {
        "name": name,
        "sNssai": {"sst": 1, "sd": sd},
        "podSelector": {"matchLabels": {"slice": name}},
        "promise": {"committedMbps": 20, "delayBoundMs": 50},
        **more,
    }


def set_document(name: str = "video", created: str = "2026-01-01T00:00:00Z", **spec: Any) -> dict[str, Any]:
    """A SliceSet of two slices, a and b, in the namespace ``core``."""
    slices = [slice_document(), slice_document("b", "000002")]
    meta = {"name": name, "namespace": "core", "uid": f"uid-{name}", "generation": 1, "creationTimestamp": created}
    return {"metadata": meta, "spec": {"mode": "shadow", "slices": slices} | spec}


def pod_document(name: str = "upf-a-0", of: str = "a", **more: Any) -> dict[str, Any]:
    """A pod of a StatefulSet that runs, with one container."""
    owner = {"kind": "StatefulSet", "name": name[:-2], "controller": True}
    meta = {
        "name": name,
        "namespace": "core",
        "uid": f"uid-{name}",
        "labels": {"slice": of},
        "ownerReferences": [owner],
    }
    return {
        "metadata": meta | more,
        "spec": {"containers": [{"name": "upf", "resources": {"requests": {"cpu": "250m"}}}]},
        "status": {"containerStatuses": [{"name": "upf", "state": {"running": {}}}]},
    }


FULL = slice_document(
    dnn="video",
    container="upf",
    devices={"n3": "net1", "n6": "net2", "n4": "eth0", "tun": "ogstun"},
    traffic={"uePools": ["10.45.0.0/16"], "teids": [7], "qfis": [9], "dnns": ["video"], "sNssai": True},
    promise={"committedMbps": 20, "delayBoundMs": 50, "leastRatio": 0.5},
    weight=4,
    bounds={
        "cpuLimitMcpu": {"low": 100, "high": 900},
        "nice": {"low": -5, "high": 5},
        "egressMbps": {"low": 1, "high": 90},
    },
    leave=["egressMbps"],
    upfThreads=2,
    mayExceedLimit=True,
    egressBy="cilium",
    follow={
        "cpuLimitMcpu": {"low": 100, "high": 900},
        "egressMbps": {"low": 1, "high": 90},
        "priority": "guaranteed",
        "conflicts": "Reassert",
        "everySeconds": 5,
    },
)
