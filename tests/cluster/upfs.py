"""UPFs as pods of a cluster, each of a StatefulSet of its own; the node itself is radio and data network."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from slicepilot.testbed.bench.rig import KNOB_FILES
from slicepilot.testbed.lifecycle.processes import bin_folder
from tests.node.machine import children
from tests.node.runtimes import Runtime

from .cluster import Cluster

NAMESPACE = "core"
IMAGE = "slicepilot.test/upf:1"
GNB, HOST = "10.88.0.1", "10.213.0.1"  # the bridge that pods are on; a host behind N6
SYSCTLS = {"ip_forward": "1", "conf.all.rp_filter": "0", "conf.default.rp_filter": "0"}
ESTABLISHED_S = 20.0


@contextlib.contextmanager
def pod_upfs(
    cluster: Cluster, count: int, burn_ns: int = 0, limit: str | None = None, guaranteed: bool = False
) -> Iterator[PodUpfs]:
    """For a module; its namespace is gone afterwards."""
    upfs = PodUpfs(cluster, count, burn_ns, limit, guaranteed)
    try:
        yield upfs
    finally:
        upfs.end_sessions()
        cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=180s")


class PodUpfs(Runtime):
    """``upf-1-0`` and so on.

    Args:
        burn_ns: work on each packet.
        limit: each container's CPU limit; None: none.
        guaranteed: that is what it requests, too, so that pods are of this class of quality of service.
    """

    n6 = "eth0"
    selected = ("--upf", "upf-*")  # those of pods belong to others

    def __init__(
        self,
        cluster: Cluster,
        count: int = 2,
        burn_ns: int = 0,
        limit: str | None = None,
        guaranteed: bool = False,
    ) -> None:
        super().__init__(cluster.machine, {})
        self.cluster, self.count, self._burn_ns = cluster, count, burn_ns
        self._limits = {} if limit is None else {"cpu": limit} | ({"memory": "64Mi"} if guaranteed else {})
        self._requests = self._limits if guaranteed else {"cpu": "100m", "memory": "32Mi"}
        self.slices = tuple(f"upf-{i}-0" for i in range(1, count + 1))
        cluster.import_image(IMAGE, ["/upf"], {"/upf": bin_folder() / "upf"})
        cluster.kubectl("create", "namespace", NAMESPACE)
        cluster.kubectl("apply", given=[self._described(i) for i in range(1, count + 1)])
        cluster.machine.run("ip", "address", "replace", f"{HOST}/32", "dev", "lo")
        self.ready()
        self._smf: subprocess.Popen[str] | None = None
        self.sessions()

    def ready(self) -> None:
        """Wait until all UPFs run."""
        for name in self.slices:
            self.cluster.wait("-n", NAMESPACE, f"pod/{name}", "--for=create")
            self.cluster.wait("-n", NAMESPACE, f"pod/{name}", "--for=condition=Ready")

    def sessions(self) -> None:
        """One PFCP session each, and the way back to its UEs.

        Where containers have just started a UPF may not listen yet: an SMF that has given up is started again.
        """
        options = []
        for i, address in enumerate(map(self.address, self.slices), 1):
            self.machine.run("ip", "route", "replace", f"10.61.{i}.0/24", "via", address)
            ends = f"upf={address},ue=10.61.{i}.2,teid={i},n3={address},gnb={GNB},gnb-teid={i},qfi=9,sst=1,sd=00000{i}"
            options += ["--upf", address, "--session", ends]
        log = self._state / "smf.out"
        deadline = time.monotonic() + ESTABLISHED_S
        while True:
            self.end_sessions()
            with log.open("w") as out:
                command = [str(bin_folder() / "smf"), "--n4", f"{GNB}:8805", *options]
                self._smf = self.machine.start(*command, stdout=out, stderr=out)
            while self._smf.poll() is None and time.monotonic() < deadline:
                answers = log.read_text().splitlines()
                if sum('"op":"establish"' in line and '"ok":true' in line for line in answers) == self.count:
                    return
                time.sleep(0.05)
            assert time.monotonic() < deadline, f"{log.read_text()}\n{self.description()}"

    def description(self) -> str:
        """What pods are and say, for who looks for a fault."""
        pods = self.cluster.kubectl("-n", NAMESPACE, "get", "pods", "-o", "wide")
        return pods + "".join(self.cluster.kubectl("-n", NAMESPACE, "logs", name) for name in self.slices)

    def end_sessions(self) -> None:
        """The SMF is gone; UPFs keep their sessions."""
        if self._smf is not None:
            for pid in children(self._smf.pid):  # which is in the machine
                os.kill(pid, signal.SIGKILL)
            self._smf.wait()
            self._smf = None

    def load(self, seconds: int, mbps: float) -> None:
        flows = []
        for i, address in enumerate(map(self.address, self.slices), 1):
            ends = f"from={GNB},to={address},teid={i},qfi=9,ue=10.61.{i}.2,dst={HOST}:6000,name=slice{i}"
            flows += ["--flow", f"kind=cbr,rate={mbps:g},{ends}"]
        programs = bin_folder()
        with (self._state / "sink.out").open("w") as out:
            sink = [
                "timeout",
                "-s",
                "INT",
                str(seconds + 1),
                str(programs / "sink"),
                "--listen",
                f"{HOST}:6000",
                "--json",
            ]
            self._loads.append(self.machine.start(*sink, stdout=out, stderr=subprocess.DEVNULL))
        with (self._state / "load.out").open("w") as out:
            load = [str(programs / "load"), *flows, "--duration", f"{seconds}s", "--json"]
            self._loads.append(self.machine.start(*load, stdout=out, stderr=subprocess.DEVNULL))

    def stop_loads(self) -> None:
        """End the load before its time."""
        for load in self._loads:
            for pid in children(load.pid):  # which is in the machine
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGINT)
        self.unload()

    def address(self, pod: str) -> str:
        """Of a pod."""
        result: str = self.cluster.get("-n", NAMESPACE, "pod", pod)["status"]["podIP"]
        return result

    def container(self, number: int) -> str:
        """Id of a UPF's container, now."""
        status = self.cluster.get("-n", NAMESPACE, "pod", self.slices[number - 1])["status"]
        identity: str = status["containerStatuses"][0]["containerID"]
        return identity.rpartition("/")[2]

    def pid(self, number: int) -> int:
        tasks = self.machine.run("ctr", "--namespace", "k8s.io", "task", "ls")
        [line] = [line for line in tasks.splitlines() if line.startswith(self.container(number))]
        return int(line.split()[1])

    def knobs(self) -> dict[str, str]:
        """Those of the pods' groups besides."""
        result = super().knobs()
        for number in range(1, self.count + 1):
            for name in KNOB_FILES:
                with contextlib.suppress(OSError):
                    result[f"{number}/pod/{name}"] = (self.group(number).parent / name).read_text().strip()
        return result

    def _described(self, number: int) -> dict[str, object]:
        name, labels = f"upf-{number}", {"app": "upf", "slice": str(number)}
        arguments = ["--n4", "$(POD)", "--n3", "$(POD)", "--tun", "tun", "--ue-pool", f"10.61.{number}.0/24"]
        container = {
            "name": "upf",
            "image": IMAGE,
            "imagePullPolicy": "Never",
            "args": [*arguments, "--burn-ns", str(self._burn_ns)],
            "env": [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
            "resources": {"requests": self._requests, "limits": self._limits},
            "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
            "securityContext": {"privileged": True},  # for /dev/net/tun
        }
        sysctls = [{"name": f"net.ipv4.{key}", "value": value} for key, value in SYSCTLS.items()]
        spec = {
            "containers": [container],
            "securityContext": {"sysctls": sysctls},
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 1,
        }
        template = {"metadata": {"labels": labels}, "spec": spec}
        return {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"replicas": 1, "serviceName": name, "selector": {"matchLabels": labels}, "template": template},
        }


def shares(groups: Iterable[Path]) -> list[str]:
    """Weights of the pods of containers' groups, version 1: what the agents of these tests move."""
    return [(group.parent / "cpu.shares").read_text().strip() for group in groups]
