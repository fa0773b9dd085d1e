"""Values with which the chart is rendered and shown to an API server."""

from __future__ import annotations

from typing import Any

CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "live, by digest": {"highestMode": "live", "image": {"digest": f"sha256:{'0a' * 32}"}},
    "by tag": {"image": {"repository": "registry.example:5000/a/agent", "tag": "1.2"}},
    "a namespace": {"namespace": {"create": True}},
    "another server": {"apiServer": {"host": "fd00::1", "port": 6443}, "hostNetwork": True},
    "follow": {"follow": {"allowed": True}, "loops": {"most": 2, "recordsMb": 0}, "allowExceedLimit": True},
    "follow with annotations": {"follow": {"allowed": True, "annotations": True}},
    "bundles": {"bundles": {"configMapNamespaces": ["default", "kube-public"], "trustSecret": "signers", "volumes": [
        {"name": "edge", "namespace": "core", "source": {"image": {"reference": "a.example/p:1"}}},
        {"name": "edge", "namespace": "other", "source": {"persistentVolumeClaim": {"claimName": "p"}}}]}},
    "metrics": {"metrics": {"enabled": True, "port": 9999}},
    "a pod monitor": {"metrics": {"enabled": True, "podMonitor": {
        "create": True, "interval": "15s", "scrapeTimeout": "10s", "labels": {"release": "prometheus", "b": "1: 2"}}}},
    "monitor without metrics": {"metrics": {"podMonitor": {"create": True}}},
    "no policy": {"admissionPolicy": {"create": False}},
    "cri-o": {"runtime": {"name": "crio"}},
    "k3s": {"runtime": {"stateFolder": "/run/k3s/containerd/io.containerd.runtime.v2.task"}},
    "cilium": {"cilium": {"enabled": True}},
    "nothing optional": {
        "priorityClass": {"create": False, "name": ""},
        "podDisruptionBudget": {"create": False},
        "tolerations": [],
        "resources": {"requests": {}, "limits": {}},
    },
    "a class of others": {"priorityClass": {"create": False, "name": "system-node-critical"}},
    "on delete": {"updateStrategy": {"type": "OnDelete"}, "terminationGracePeriodSeconds": 60},
    "profiles": {
        "seccomp": {"type": "Localhost", "localhostProfile": "slicepilot/agent.json"},
        "appArmor": {"type": "Localhost", "localhostProfile": "slicepilot-agent"},
    },
    "no profiles": {"seccomp": {"type": "Unconfined"}, "appArmor": {"type": "Unconfined"}},
    "placement": {
        "nodeSelector": {"kubernetes.io/os": "linux", "edge": "true"},
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "upf", "operator": "Exists"}]}]}}},
        "tolerations": [{"key": "edge", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}],
        "podAnnotations": {"a.example/b": "1: two # three", "c": "{{ .Values }}"},
        "imagePullSecrets": [{"name": "pull"}],
        "resources": {"limits": {"memory": "1Gi", "cpu": 1}},
    },
}  # fmt: skip
