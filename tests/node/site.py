"""A web server that somebody runs in a network namespace and a cgroup of its own, and who visits it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from slicepilot.controller.system.cgroup import CpuHierarchy
from slicepilot.controller.system.net.namespaces import NAMED, inside

PORT = 8080
ANSWER_BYTES = 20_000
READY_S = 20.0


class Site:
    """A web server with the address 10.220.0.2, visited from a namespace beside it; names are this process's own.

    Args:
        folder: for what it serves.
        name: of its slice.
    """

    def __init__(self, folder: Path, name: str = "shop") -> None:
        self.name, self._folder = name, folder
        self.netns, self.visitors = f"{name}{os.getpid()}", f"{name}-v{os.getpid()}"
        self.group = CpuHierarchy.find().root / self.netns
        (folder / "page").write_bytes(bytes(ANSWER_BYTES))
        self._server: subprocess.Popen[bytes] | None = None
        self._ended, self._threads = threading.Event(), list[threading.Thread]()
        self.answers, self.wrong = 0, 0
        try:
            self._network()
            self.group.mkdir()
            if CpuHierarchy.find().version == 2:
                (self.group.parent / "cgroup.subtree_control").write_text("+cpu")
            self.start()
        except BaseException:
            self.down()
            raise

    @property
    def pid(self) -> int:
        """Of the server."""
        assert self._server is not None
        return self._server.pid

    def start(self) -> None:
        """Start the server, or start it again, and wait until it answers."""
        command = [sys.executable, "-m", "http.server", str(PORT), "--directory", str(self._folder)]
        enter = ["ip", "netns", "exec", self.netns]
        moved = f"echo $$ >{self.group}/cgroup.procs && exec " + '"$@"'
        self._server = subprocess.Popen(
            ["sh", "-c", moved, "sh", *enter, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + READY_S
        while not self._ask():
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.05)

    def stop(self) -> None:
        """Kill the server."""
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._server = None

    def visit(self, visitors: int = 2) -> None:
        """Have some visitors come from now on, one answer after the other."""
        self._threads = [threading.Thread(target=self._visit) for _ in range(visitors)]
        for item in self._threads:
            item.start()

    def leave(self) -> None:
        """Have them go."""
        self._ended.set()
        for item in self._threads:
            item.join()
        self._threads = []
        self._ended.clear()

    def document(self, **listens: Any) -> dict[str, Any]:
        """Its slice, as an operator writes it."""
        return {
            "name": self.name,
            "s_nssai": {"sst": 1, "sd": "00000f"},
            "sla": {"committed_mbps": 1, "delay_bound_ms": 500},
            "weight": 10,
            "service": {"netns": self.netns, "user": "root"},
            "listens": {"device": "eth0", "ports": [PORT], "far_netns": self.visitors} | listens,
        }

    def down(self) -> None:
        """Remove everything."""
        self.leave()
        self.stop()
        for netns in (self.netns, self.visitors):
            if (NAMED / netns).exists():
                subprocess.run(["ip", "netns", "delete", netns], check=True)
        if self.group.exists():
            self.group.rmdir()

    def _network(self) -> None:
        for netns in (self.netns, self.visitors):
            _run("ip", "netns", "add", netns)
        _run(
            "ip", "-n", self.netns, "link", "add", "eth0", "type", "veth", "peer", "name", "far", "netns", self.visitors
        )
        for netns, device, number in ((self.netns, "eth0", 2), (self.visitors, "far", 1)):
            _run("ip", "-n", netns, "addr", "add", f"10.220.0.{number}/24", "dev", device)
            _run("ip", "-n", netns, "link", "set", device, "up")

    def _visit(self) -> None:
        while not self._ended.is_set():
            if self._ask():
                self.answers += 1
            else:
                self.wrong += 1
                time.sleep(0.05)

    def _ask(self) -> bool:
        """Whether the page was got."""
        with inside(NAMED / self.visitors, socket.socket) as client:
            client.settimeout(5.0)
            try:
                client.connect(("10.220.0.2", PORT))
                client.sendall(b"GET /page HTTP/1.0\r\n\r\n")
                got = 0
                while part := client.recv(1 << 16):
                    got += len(part)
            except OSError:
                return False
        return got > ANSWER_BYTES


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
