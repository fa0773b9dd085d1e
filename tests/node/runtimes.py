"""UPFs as systemd units and as containers, in a machine with its own systemd and Docker, and a controller beside them.

Radio, SMF and data network are `foreign.sh`'s. Selectors and devices are what `slicepilot node discover` says.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from slicepilot.testbed.bench.rig import KNOB_FILES, Controller
from slicepilot.testbed.lifecycle.processes import bin_folder

from .foreign import SCRIPT
from .machine import TOOLS, Machine, MachineError, children

COUNT = 2
NAME = "edge"
UNIT = """\
[Service]
NetworkNamespacePath=/run/netns/{prefix}-upf%i
ExecStart={bin}/upf --n4 10.211.%i.2 --n3 10.210.%i.2 --tun tun --ue-pool 10.61.%i.0/24
Restart=on-failure
RestartSec=0.2
StandardOutput=null
StandardError=null
CPUWeight=100
"""
DOCKER_UNIT = """\
[Service]
Type=notify
Environment=PATH={path}
ExecStart={dockerd} --iptables=false --ip6tables=false --bridge=none --cgroup-parent=/{group}/docker
StandardOutput=null
StandardError=file:{log}
Delegate=yes
"""
PLUGIN = "/usr/local/lib/docker/cli-plugins/docker-compose"
COMPOSE_1 = """\
#!/bin/sh
if [ "$1" = docker-cli-plugin-metadata ]; then
    echo '{{"SchemaVersion": "0.1.0", "Vendor": "Docker Inc."}}'
    exit
fi
[ "$1" = compose ] && shift
PYTHONPATH={tools}/lib/python3/dist-packages exec /usr/bin/python3 {program} "$@"
"""
# What goes elsewhere leaves a container by the first network, by name, that is not internal: that is eth0 then.
SERVICE = """\
  upf{i}:
    image: upf
    command: [--n4, 10.211.{i}.2, --n3, 10.210.{i}.2, --tun, tun, --ue-pool, 10.61.{i}.0/24]
    cap_add: [NET_ADMIN]
    devices: [/dev/net/tun]
    sysctls: {{net.ipv4.ip_forward: 1, net.ipv4.conf.all.rp_filter: 0, net.ipv4.conf.default.rp_filter: 0}}
    networks:
      n6: {{ipv4_address: 10.213.0.{far}}}
      n3-{i}: {{ipv4_address: 10.210.{i}.2}}
      n4-{i}: {{ipv4_address: 10.211.{i}.2}}
"""
NETWORK = "  {name}: {{internal: {internal}, ipam: {{config: [{{subnet: {net}.0/24, gateway: {net}.1}}]}}}}\n"


class Runtime:
    """UPFs that a runtime has started, each with a session; subclasses say how they are started.

    Attributes:
        machine: where they run.
        slices: names that discovery gives them, in order.
        selected: options of `node discover` that name them, where they belong to others.
    """

    prefix = "rt"
    slices: tuple[str, ...]
    selected: tuple[str, ...] = ()

    def __init__(self, machine: Machine, environment: Mapping[str, str]) -> None:
        self.machine = machine
        self._state = machine.folder / "network"
        self._state.mkdir(exist_ok=True)
        self._environment = {"STATE": str(self._state), **environment}
        self._loads: list[subprocess.Popen[str]] = []

    def pid(self, number: int) -> int:
        """Of a UPF, in the machine; raises AssertionError if it does not run."""
        raise NotImplementedError

    def group(self, number: int) -> Path:
        """CPU cgroup of a UPF, now."""
        return self.machine.group_of(self.pid(number))

    def knobs(self) -> dict[str, str]:
        """Content of every control file, and the root qdisc of every N6, by UPF."""
        result = {}
        for number in range(1, len(self.slices) + 1):
            pid = self.pid(number)  # asking a runtime takes a while
            group = self.machine.group_of(pid)
            for name in KNOB_FILES:
                with contextlib.suppress(OSError):
                    result[f"{number}/{name}"] = (group / name).read_text().strip()
            enter = ["nsenter", "--target", str(pid), "--net", "tc", "qdisc", "show", "dev"]
            result[f"{number}/n6"] = self.machine.run(*enter, self.n6, "root")
        return result

    n6 = "n6"

    def load(self, seconds: int, mbps: float) -> None:
        """Send into every slice from now on."""
        command = ["bash", str(SCRIPT), "load", self.prefix, str(COUNT), str(seconds), f"{mbps:g}"]
        self._loads.append(self.machine.start(*command, env=self._environment))

    def unload(self) -> None:
        """Wait for the load's end."""
        for load in self._loads:
            load.wait(60)
        self._loads = []

    def script(self, what: str) -> None:
        """A part of ``foreign.sh``."""
        self.machine.run("bash", str(SCRIPT), what, self.prefix, str(COUNT), env=self._environment)

    def discovered(self) -> dict[str, Any]:
        """The configuration that discovery writes, without what it is not sure of."""
        path = self.machine.folder / "found.yaml"
        path.unlink(missing_ok=True)
        self.machine.run("slicepilot", "node", "discover", "--out", str(path), "--name", NAME, *self.selected)
        document: dict[str, Any] = yaml.safe_load(path.read_text())
        return document

    def node(self) -> Path:
        """A file with that, in which the first slice is promised more."""
        document = self.discovered()
        document["slices"].sort(key=lambda item: item["name"])
        document["slices"][0]["weight"] = 10
        for item in document["slices"]:
            item["sla"] = {"committed_mbps": 1, "delay_bound_ms": 500}
        path = self.machine.folder / "node.yaml"
        path.write_text(yaml.safe_dump(document))
        return path


class SystemdUpfs(Runtime):
    """``upf@1.service`` and so on, each in a network namespace of its own."""

    slices = tuple(f"upf-{i}" for i in range(1, COUNT + 1))

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine, {})
        self.script("network")
        machine.write("/etc/systemd/system/upf@.service", UNIT.format(prefix=self.prefix, bin=bin_folder()))
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "start", *(f"upf@{i}" for i in range(1, COUNT + 1)))
        self.script("sessions")

    def pid(self, number: int) -> int:
        pid = int(self.machine.run("systemctl", "show", "--value", "--property=MainPID", f"upf@{number}"))
        assert pid, f"upf@{number} does not run"
        return pid


class DockerUpfs(Runtime):
    """Services of a Compose project, with networks of Docker's; the machine itself is radio and data network."""

    n6 = "eth0"

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine, {"HERE": "1"})
        start_docker(machine)
        (machine.folder / "compose").mkdir()
        networks = [("n6", "10.213.0")]
        for i in range(1, COUNT + 1):
            networks += [(f"n3-{i}", f"10.210.{i}"), (f"n4-{i}", f"10.211.{i}")]
        services = "".join(SERVICE.format(i=i, far=i + 1) for i in range(1, COUNT + 1))
        described = "".join(
            NETWORK.format(name=name, net=net, internal=str(name != "n6").lower()) for name, net in networks
        )
        (machine.folder / "compose" / "compose.yaml").write_text(
            f'version: "2.4"\nservices:\n{services}networks:\n{described}'
        )
        self.compose("up", "-d")
        # Compose 1 calls them sp_upf1_1, Compose 2 sp-upf1-1.
        self.slices = tuple(self._container(f"upf{i}") for i in range(1, COUNT + 1))
        for i in range(1, COUNT + 1):
            machine.run("ip", "route", "replace", f"10.61.{i}.0/24", "via", f"10.213.0.{i + 1}")
        self.script("sessions")

    def _container(self, service: str) -> str:
        label = f"--filter=label=com.docker.compose.service={service}"
        return self.machine.run("docker", "ps", label, "--format={{.Names}}").strip()

    def compose(self, *arguments: str) -> str:
        """Docker Compose on the project."""
        return self.machine.run("docker", "compose", "-p", "sp", *arguments, cwd=self.machine.folder / "compose")

    def pid(self, number: int) -> int:
        pid = int(self.machine.run("docker", "inspect", "--format={{.State.Pid}}", self.slices[number - 1]))
        assert pid, f"{self.slices[number - 1]} does not run"
        return pid


def start_docker(machine: Machine) -> None:
    """Docker as a unit, Compose as its plugin (version 1 is a program beside it), and an image ``upf``.

    Raises:
        MachineError: it is not there, or does not start.
    """
    result = {name: machine.run("which", name, code=None).strip() for name in ("dockerd", "docker", "docker-compose")}
    if not result["dockerd"] or not result["docker"]:
        raise MachineError("needs Docker: tests/packages.sh")
    log = machine.folder / "dockerd.log"
    unit = DOCKER_UNIT.format(dockerd=result["dockerd"], path=machine.path, group=machine.name, log=log)
    machine.write("/etc/systemd/system/docker.service", unit)
    if not machine.run("docker", "compose", "version", code=None).startswith("Docker Compose"):
        if not result["docker-compose"]:
            raise MachineError("needs Docker Compose: tests/packages.sh")
        machine.write(PLUGIN, COMPOSE_1.format(tools=TOOLS, program=result["docker-compose"]))
        machine.run("chmod", "+x", PLUGIN)
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", "docker", code=None)
    if machine.run("docker", "info", "--format={{.ServerVersion}}", code=None).strip() == "":
        raise MachineError(f"Docker does not start here: {log.read_text()[-500:] if log.exists() else 'no log'}")
    entry = '--change=ENTRYPOINT ["/upf"]'
    machine.run("sh", "-c", 'tar -C "$0" -c upf | docker import "$1" - upf', str(bin_folder()), entry)


@dataclass
class Inside(Controller):
    """A controller that runs in a machine: ``process`` is its parent there, outside."""

    inside: int

    @property
    def pid(self) -> int:
        """As it knows itself."""
        lines = Path(f"/proc/{self.inside}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("NSpid:")).split()[-1])

    def stop(self, timeout_s: float = 15.0) -> int:
        if self.process.poll() is None:
            os.kill(self.inside, signal.SIGTERM)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.kill(self.inside, signal.SIGKILL)
            return self.process.wait()


@contextlib.contextmanager
def controller(
    runtime: Runtime, node: Path, mode: str = "live", agent: str = "static-weights-9", **config: Any
) -> Iterator[Inside]:
    """``slicepilot run --node`` in the machine."""
    folder = runtime.machine.folder
    roots = {"run_root": str(folder / "run"), "state_root": str(folder / "state"), "publish": {"log": "pretty"}}
    (folder / "run.yaml").write_text(yaml.safe_dump(roots | config))
    log = folder / "controller.log"
    with log.open("ab") as out:
        command = ["slicepilot", "run", "-c", str(folder / "run.yaml"), "--node", str(node)]
        process = runtime.machine.start(*command, "--mode", mode, "--agent", agent, stdout=out, stderr=out)
    until(lambda: bool(children(process.pid)), "no controller")
    running = Inside(process, folder / "run" / NAME / "ticks", log, children(process.pid)[0])  # type: ignore[arg-type]
    try:
        running.wait_ready(mode)
        yield running
    finally:
        running.stop()


def until(what: Callable[[], bool], message: str, seconds: float = 8.0) -> float:
    """Wait for something; how long it took, in s. An AssertionError says that it was not so in time."""
    started = time.monotonic()
    while not what():
        assert time.monotonic() - started < seconds, message
        time.sleep(0.02)
    return time.monotonic() - started


def changes(running: Controller) -> list[dict[str, Any]]:
    """Knobs that somebody else has set."""
    result: list[dict[str, Any]] = running.notes().get("foreign") or []
    return result


def metric(machine: Machine, name: str) -> float:
    """Of a controller that listens where Prometheus would ask."""
    page = machine.run("python", "-c", f"import urllib.request as u; print(u.urlopen({METRICS!r}).read().decode())")
    [line] = [line for line in page.splitlines() if line.startswith(f"slicepilot_{name}")]
    return float(line.split()[-1])


METRICS = "http://127.0.0.1:9464/metrics"


def checked(runtime: Runtime, node: Path) -> dict[str, Any]:
    """What ``node check`` says under load, by slice."""
    runtime.load(seconds=8, mbps=8)
    time.sleep(0.5)
    document = json.loads(runtime.machine.run("slicepilot", "node", "check", str(node), "--seconds", "2", "--json"))
    runtime.unload()
    return {item["slice"]: item for item in document}
