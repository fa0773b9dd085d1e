"""`node check` and `run` on a service in a pod that Cilium paces; its agent is the test, with mounts of its own."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from slicepilot.controller.actuators.cilium.choice import CiliumPaths
from slicepilot.controller.actuators.cilium.layout import entry_of
from tests.controller.actuators.cilium.machine import (
    DIRECTION,
    ENDPOINT,
    Agent,
    Pod,
    map_of,
    mount_bpffs,
    own_namespaces,
    run,
    typed_map,
    value_of,
)

from .runtimes import until
from .test_foreign import SLICEPILOT, Controller

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: BPF, network namespaces")
BEFORE = value_of(6_250_000, prio=9)
NAME = f"paced{os.getpid()}"
PORT = 7000
SERVICE = f"""
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
    server.bind(("10.251.0.2", {PORT}))
    print("ready", flush=True)
    while True:
        data, address = server.recvfrom(2048)
        server.sendto(data * 4, address)
"""
CLIENT = f"""
import socket, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
    while True:
        client.sendto(bytes(300), ("10.251.0.2", {PORT}))
        time.sleep(0.001)
"""


@dataclass
class Site:
    """A pod with a service, visited from the host; `agent` writes what Cilium's would."""

    agent: Agent
    pod: Pod
    service: int
    folder: Path

    def node(self, **more: Any) -> Path:
        """As an operator writes it."""
        listens = {"device": "eth0", "ports": [PORT], "far_netns": f"/proc/{os.getpid()}/ns/net"}
        item = {
            "name": "shop",
            "s_nssai": {"sst": 1, "sd": "00000f"},
            "sla": {"committed_mbps": 1, "delay_bound_ms": 500},
            "service": {"pid": self.service},
            "listens": listens,
            "leave": ["cpu_limit_mcpu", "nice"],
            "bounds": {"egress_mbps": [2, 20]},
        }
        path = self.folder / "node.yaml"
        path.write_text(yaml.safe_dump({"name": NAME, "slices": [item | more]}))
        return path

    @property
    def rate(self) -> int:
        return entry_of(self.agent.read(ENDPOINT)).bytes_per_s


class InPlace(Agent):
    """Everything where Cilium has it."""

    def __init__(self) -> None:
        self.paths = CiliumPaths()
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mount(b"run", b"/run", b"tmpfs", 0, b"mode=0755") == 0
        self.paths.state.mkdir(parents=True)
        mount_bpffs(Path("/sys/fs/bpf"))


@pytest.fixture(name="site")
def _site(tmp_path: Path) -> Iterator[Site]:
    with own_namespaces():
        agent, pod = InPlace(), Pod()
        with closing(typed_map(DIRECTION, tmp_path)) as made:
            agent.pin(map_of(made).fd)
            agent.endpoint(ENDPOINT, pod.link, pod.ifindex)
            agent.write(ENDPOINT, BEFORE)
            run("ip", "address", "add", "10.251.0.1/24", "dev", pod.link)
            pod.tool("ip", "address", "add", "10.251.0.2/24", "dev", "eth0")
            inside = ["nsenter", f"--net={pod.netns}", sys.executable, "-c", SERVICE]
            started = [
                subprocess.Popen(inside, stdout=subprocess.PIPE),
                subprocess.Popen([sys.executable, "-c", CLIENT]),
            ]
            assert started[0].stdout is not None
            assert started[0].stdout.readline() == b"ready\n"
            try:
                yield Site(agent, pod, started[0].pid, tmp_path)
            finally:
                for process in started:
                    process.kill()
                    process.wait()
                started[0].stdout.close()
                pod.close()


def checked(site: Site, **more: Any) -> dict[str, Any]:
    command = [*SLICEPILOT, "node", "check", str(site.node(**more)), "--seconds", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout, done.stderr
    [result] = json.loads(done.stdout)
    return result


def test_check_says_which_knob_it_is_and_why(site: Site) -> None:
    result = checked(site)
    assert result["measured"]
    assert result["knobs"]["egress"]["authority"]
    assert "which an HTB can replace" in result["knobs"]["egress"]["why"]
    [note] = [item for item in result["notes"] if "Cilium" in item]
    assert note.startswith("Cilium paces its endpoint 1234 (core/upf-0) with 50 Mbit/s; a shaper is its knob, since")
    result = checked(site, egress_by="cilium")
    assert result["knobs"]["egress"]["authority"]
    assert result["knobs"]["egress"]["why"].startswith(
        "Cilium paces its endpoint 1234 (core/upf-0) with 50 Mbit/s; what"
    )
    assert not [item for item in result["notes"] if "Cilium" in item]
    site.agent.delete(ENDPOINT)
    result = checked(site, egress_by="cilium")
    assert "has to have the annotation kubernetes.io/egress-bandwidth first" in result["knobs"]["egress"]["why"]


def test_a_run_moves_the_entry_and_gives_it_back(site: Site) -> None:
    with closing(running(site)) as controller:
        controller.wait_ready("live")
        until(lambda: site.rate < 6_250_000, "nothing was moved")
        assert "htb" not in site.pod.tool("tc", "qdisc", "show", "dev", "eth0")
        [note] = controller.notes()["paced"]
        assert (note["slice"], note["endpoint"], note["found_mbps"]) == ("shop", ENDPOINT, 50)
        site.agent.write(ENDPOINT, value_of(3_000_000, prio=9))
        until(lambda: bool(controller.notes()["foreign"]), "not noticed")
        [change] = controller.notes()["foreign"]
        assert (change["knob"], change["found"]) == ("egress_mbps", 24)
    assert site.rate == 3_000_000, "theirs stays"


def test_a_killed_run_gives_it_back(site: Site) -> None:
    with closing(running(site)) as controller:
        controller.wait_ready("live")
        until(lambda: site.rate < 6_250_000, "nothing was moved")
        controller.process.send_signal(signal.SIGKILL)
        until(lambda: site.agent.read(ENDPOINT) == BEFORE, "not put back")


class Running(Controller):
    """One, to be closed."""

    def close(self) -> None:
        self.stop()


def running(site: Site) -> Running:
    config = {"run_root": str(site.folder / "run"), "state_root": str(site.folder / "state")}
    (site.folder / "run.yaml").write_text(yaml.safe_dump(config | {"publish": {"log": "pretty"}}))
    site.folder.chmod(0o755)
    command = [*SLICEPILOT, "run", "-c", str(site.folder / "run.yaml"), "--node", str(site.node(egress_by="cilium"))]
    command += ["--mode", "live", "--agent", "random", "--period-ms", "50"]
    log = site.folder / "log"
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    return Running(process, site.folder / "run" / NAME / "ticks", log)
