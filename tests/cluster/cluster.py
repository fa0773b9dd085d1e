"""A Kubernetes cluster of one node in a machine within this machine: real programs, as units of its systemd.

Programs are those of `build.sh`. The API server is at 127.0.0.1:6443 of the machine; `kubectl` in there is its admin.
Pods are on a bridge, and have no service addresses: there is no kube-proxy, whose rules this kernel need not have.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.node.machine import TOOLS, Machine, MachineError

from .image import write_image

BUILT = Path(__file__).parents[2] / "build" / "cluster" / "bin"
NODE = "edge"
API = "https://127.0.0.1:6443"
ADDRESS = "10.88.1.1"  # of the node; pods reach the API server here
PAUSE = "slicepilot.test/pause:1"
PODS = "10.88.0.0/24"
READY_S = 40.0
# What the kubelet would set for the whole machine (pkg/kubelet/cm, setupKernelTunables): it finds it set.
TUNABLES = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
UNIT = """\
[Service]
Type={kind}
Environment=PATH={path}
ExecStart={command}
Restart=on-failure
RestartSec=0.5
KillMode={kill}
Delegate=yes
StandardOutput=append:{log}
StandardError=append:{log}
"""
CONTAINERD = """\
version = 2
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni}"
"""
# Who asks for what, once for each request: `audit.log` has it.
AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}],
}


class Cluster:
    """One, up.

    Args:
        machine: that has nothing else to do.

    Raises:
        MachineError: a program is missing, or does not start; with the end of its log.
    """

    def __init__(self, machine: Machine) -> None:
        missing = [name for name in ("etcd", "kube-apiserver", "kubelet", "kubectl") if not (BUILT / name).exists()]
        missing += [] if (TOOLS / "lib" / "cni" / "bridge").exists() else ["network plugins"]
        if missing:
            raise MachineError(f"needs {', '.join(missing)}: make k8s-test builds them")
        self.machine = machine
        self.folder = machine.folder / "cluster"
        self.folder.mkdir()
        self._certify()
        self._start_control_plane()
        self._start_node()

    def kubectl(self, *arguments: str, given: Any = None, code: int | None = 0) -> str:
        """As the cluster's admin; ``given`` is a document, or several, to apply."""
        command = [str(BUILT / "kubectl"), "--kubeconfig", str(self.folder / "admin.yaml"), *arguments]
        if given is not None:
            path = self.folder / "given.yaml"
            path.write_text(yaml.safe_dump_all(given if isinstance(given, list) else [given]))
            command += ["-f", str(path)]
        return self.machine.run(*command, code=code)

    def get(self, *arguments: str) -> dict[str, Any]:
        """An object, or a list, as JSON."""
        result: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return result

    def unit(self, name: str, *command: str, kind: str = "simple", kill: str = "mixed") -> None:
        """Run a program as a unit of this name; its log is ``NAME.log``."""
        log = self.folder / f"{name}.log"
        path = f"{BUILT}:{self.machine.path}"
        text = UNIT.format(kind=kind, path=path, command=" ".join(command), log=log, kill=kill)
        self.machine.write(f"/etc/systemd/system/{name}.service", text)
        self.machine.run("systemctl", "daemon-reload")
        self.machine.run("systemctl", "start", name)

    def import_image(self, reference: str, entry: list[str], files: Mapping[str, Path]) -> None:
        """Have the node know an image."""
        archive = self.folder / "image.tar"
        write_image(archive, reference, os.uname().machine, entry, files)
        self.import_archive(archive)
        archive.unlink()

    def import_archive(self, archive: Path) -> None:
        """The same of an archive that somebody else has written."""
        self.machine.run("ctr", "--namespace", "k8s.io", "image", "import", str(archive))

    def wait(self, *arguments: str, seconds: float = READY_S) -> None:
        """``kubectl wait``; an AssertionError tells what has happened in the cluster instead."""
        reported = self.kubectl("wait", *arguments, f"--timeout={seconds:g}s", code=None)
        assert reported, f"{' '.join(arguments)}: {self.kubectl('get', 'events', '-A', '--sort-by=.lastTimestamp')}"

    def log(self, name: str, lines: int = 15) -> str:
        """The end of what a unit has printed."""
        path = self.folder / f"{name}.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""

    def _certify(self) -> None:
        """One authority, a certificate of the server, a key for tokens of service accounts, tokens of people."""
        pki = self.folder / "pki"
        pki.mkdir(mode=0o700)
        names = f"subjectAltName=IP:127.0.0.1,IP:10.96.0.1,IP:{ADDRESS},DNS:localhost,DNS:kubernetes.default.svc"
        key = ["-newkey", "rsa:2048", "-nodes", "-days", "2"]
        signed = ["-subj", "/CN=kube-apiserver", "-addext", names, "-CA", "ca.crt", "-CAkey", "ca.key"]
        for command in (
            ["req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=slicepilot-test"],
            ["req", "-x509", *key, "-keyout", "api.key", "-out", "api.crt", *signed],
            ["genrsa", "-out", "sa.key", "2048"],
            ["rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub"],
        ):
            subprocess.run(["openssl", *command], cwd=pki, check=True, capture_output=True)
        (pki / "tokens.csv").write_text(
            "admin-token,admin,admin,system:masters\n"
            f"kubelet-token,system:node:{NODE},kubelet,system:nodes\n"
            "controller-manager-token,system:kube-controller-manager,manager\n"
            "scheduler-token,system:kube-scheduler,scheduler\n"
            "tenant-token,tenant,tenant\n"
        )
        for name in ("admin", "kubelet", "controller-manager", "scheduler", "tenant"):
            self.write_access(name, f"{name}-token")

    def write_access(self, name: str, token: str) -> Path:
        """A kubeconfig by which somebody is known to the API server."""
        path = self.folder / f"{name}.yaml"
        cluster = {"server": API, "certificate-authority": str(self.folder / "pki" / "ca.crt")}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "here", "cluster": cluster}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": name}}],
            "current-context": "here",
        }
        path.write_text(yaml.safe_dump(document))
        return path

    def _start_control_plane(self) -> None:
        pki, etcd = self.folder / "pki", "http://127.0.0.1:2379"
        (self.folder / "audit.yaml").write_text(yaml.safe_dump(AUDIT))
        self.unit(
            "etcd", str(BUILT / "etcd"), f"--data-dir={self.folder}/etcd", f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}", "--listen-peer-urls=http://127.0.0.1:2380", "--unsafe-no-fsync",
        )  # fmt: skip
        self.unit(
            "kube-apiserver", str(BUILT / "kube-apiserver"), f"--etcd-servers={etcd}", "--bind-address=0.0.0.0",
            "--advertise-address=127.0.0.1", "--secure-port=6443", f"--tls-cert-file={pki}/api.crt",
            f"--tls-private-key-file={pki}/api.key", f"--token-auth-file={pki}/tokens.csv",
            "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
            f"--service-account-issuer={API}", f"--service-account-key-file={pki}/sa.pub",
            f"--service-account-signing-key-file={pki}/sa.key", "--service-cluster-ip-range=10.96.0.0/24",
            "--endpoint-reconciler-type=none", "--allow-privileged",
            f"--audit-policy-file={self.folder}/audit.yaml", f"--audit-log-path={self.folder}/audit.log",
        )  # fmt: skip
        self._until("kube-apiserver", lambda: self.kubectl("get", "--raw", "/readyz", code=None).strip() == "ok")
        manager = [
            "--use-service-account-credentials",
            f"--service-account-private-key-file={pki}/sa.key",
            f"--root-ca-file={pki}/ca.crt",
        ]
        for access, more in (("controller-manager", manager), ("scheduler", [])):
            config = [f"--kubeconfig={self.folder}/{access}.yaml", "--leader-elect=false"]
            self.unit(f"kube-{access}", str(BUILT / f"kube-{access}"), *config, *more)

    def _start_node(self) -> None:
        machine, cni = self.machine, TOOLS / "lib" / "cni"
        machine.run("mount", "--make-rshared", "/")  # as systemd does where it boots a whole machine
        # What loops of this machine have left there is none of the node's.
        machine.run("mkdir", "-p", "/var/lib/slicepilot")
        machine.run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/var/lib/slicepilot")
        machine.run("mknod", "/dev/kmsg", "c", "1", "11")  # in which the kubelet looks for kills
        for name, value in TUNABLES.items():
            path = self.folder / name.replace("/", "-")
            path.write_text(f"{value}\n")
            machine.run("mount", "--bind", str(path), f"/proc/sys/{name}")
        network = {
            "cniVersion": "0.4.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "pods0",
                    "isGateway": True,
                    "ipam": {"type": "host-local", "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}]},
                }
            ],
        }
        machine.write("/etc/cni/net.d/10-pods.conflist", json.dumps(network))
        machine.write("/etc/containerd/config.toml", CONTAINERD.format(pause=PAUSE, cni=cni))
        self.unit("containerd", str(TOOLS / "bin" / "containerd"), kind="notify", kill="process")
        self.import_image(PAUSE, ["/bin/pause"], {"/bin/pause": BUILT / "pause"})
        kubelet = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True}},
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{machine.name}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "makeIPTablesUtilChains": False,
            "allowedUnsafeSysctls": ["net.ipv4.*"],  # UPFs forward
            "resolvConf": "",
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "nodeStatusUpdateFrequency": "5s",
            "registerWithTaints": [],
        }
        (self.folder / "kubelet-config.yaml").write_text(yaml.safe_dump(kubelet))
        machine.run("ip", "link", "add", "node0", "type", "bridge")
        machine.run("ip", "address", "add", f"{ADDRESS}/32", "dev", "node0")
        machine.run("ip", "link", "set", "node0", "up")
        self.unit(
            "kubelet", str(BUILT / "kubelet"), f"--config={self.folder}/kubelet-config.yaml",
            f"--kubeconfig={self.folder}/kubelet.yaml", f"--hostname-override={NODE}", f"--node-ip={ADDRESS}",
            kill="process",
        )  # fmt: skip
        ready = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'
        self._until("kubelet", lambda: self.kubectl("get", "node", NODE, "-o", ready, code=None) == "True")
        manager, account = "kube-controller-manager", ["get", "serviceaccount", "default", "-o", "name"]
        self._until(manager, lambda: bool(self.kubectl(*account, code=None)))
        self._until(manager, lambda: "taints" not in self.get("node", NODE)["spec"])

    def _until(self, name: str, what: Any) -> None:
        deadline = time.monotonic() + READY_S
        while not what():
            if time.monotonic() > deadline:
                raise MachineError(f"{name} is not ready in {READY_S:g} s: {self.log(name)}")
            time.sleep(0.2)
