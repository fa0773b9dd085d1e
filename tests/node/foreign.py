"""UPFs that somebody's scripts have started (``foreign.sh``), not the testbed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import yaml

from slicepilot.controller.system.cgroup import CpuHierarchy
from slicepilot.controller.system.processes import start_ticks
from slicepilot.controller.watchdog.supervisor import RESTORED_FILE
from slicepilot.node.config.spec import NodeSpec
from slicepilot.node.live.backend import NodeBackend
from slicepilot.testbed.lifecycle.processes import ProcessId, bin_folder

SCRIPT = Path(__file__).with_name("foreign.sh")
COUNT = 5
MOST_WEIGHT = {"cpu.shares": 1 << 18, "cpu.weight": 10_000}  # cgroups(7)


class Foreign:
    """A network with UPFs; the prefix of all names is this process's own.

    Args:
        state: folder for logs.
        count: of UPFs.
        sessions: of each, for UEs 10.61.UPF.2 and on, with TEIDs UPF, UPF + 100 and so on, and QFIs 9, 8 and so on.
        prefix: beginning of the names; a file of tests has its own where several may be up in one process.
        environment: for the script, which says what there is, for instance TOGETHER="1".
    """

    def __init__(
        self, state: Path, count: int = COUNT, sessions: int = 1, prefix: str | None = None, **environment: str
    ) -> None:
        self.state, self.prefix = state, f"{prefix or ('fo' if sessions == 1 else 'fs')}{os.getpid()}"
        self.count, self.sessions, self._more = count, sessions, environment
        self._loads: list[subprocess.Popen[bytes]] = []
        self._run("down", str(self.count))
        try:
            self._run("up", str(self.count))
        except BaseException:
            self._run("down", str(self.count))
            raise
        self._started_s = dict.fromkeys(range(1, count + 1), int(time.time()))

    @property
    def netns(self) -> list[str]:
        """Of the UPFs, of which all may be in one."""
        together = bool(self._more.get("TOGETHER"))
        return [f"{self.prefix}-upf{1 if together else i}" for i in range(1, self.count + 1)]

    def slice(self, name: str, number: int, upf: int = 1, weight: float = 1, **traffic: Any) -> dict[str, Any]:
        """A slice of a UPF as an operator writes it; ``traffic`` is what tells its packets apart."""
        return {
            "name": name,
            "s_nssai": {"sst": 1, "sd": f"{number:06d}"},
            "sla": {"committed_mbps": 1, "delay_bound_ms": 500},
            "weight": weight,
            "upf": {
                "process": {"name": "upf", "args": [f"10.211.{upf}.2"]},
                "netns": self.netns[upf - 1],
                "user": "root",
            },
            "devices": {"n6_netns": f"{self.prefix}-dn", "n6_far": f"n6-{upf}"},
        } | ({"traffic": traffic} if traffic else {})

    def document(self) -> dict[str, Any]:
        """A node with a slice of each UPF, slice1 and so on, of which the first weighs more."""
        slices = [self.slice(f"slice{i}", i, i, weight=10 if i == 1 else 1) for i in range(1, self.count + 1)]
        return {"name": self.prefix, "slices": slices}

    def group(self, number: int) -> Path:
        """CPU cgroup of a UPF."""
        return CpuHierarchy.find().root / self.prefix / f"upf{number}"

    def weigh(self, times: int = 1) -> None:
        """Have the group that theirs lie in weigh as much as all of them, as if they lay beside everybody else's.

        ``times`` as much: then others who use this machine take little from them.
        """
        parent = self.group(1).parent
        for name in ("cpu.shares", "cpu.weight"):
            if (parent / name).exists():
                weight = int((self.group(1) / name).read_text())
                (parent / name).write_text(str(min(weight * self.count * times, MOST_WEIGHT[name])))

    def pid(self, number: int) -> int:
        """Process of a UPF."""
        return int((self.state / f"{self.prefix}-upf{number}.pid").read_text())

    def draft(self, path: Path) -> Path:
        """The configuration that `node discover` writes, without whatever else runs on this machine."""
        command = ["-m", "slicepilot.cli", "node", "discover", "--out", str(path), "--name", self.prefix]
        done = subprocess.run([sys.executable, *command], check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        document = yaml.safe_load(path.read_text())
        document["slices"] = [item for item in document["slices"] if item["upf"].get("netns") in self.netns]
        path.write_text(yaml.safe_dump(document))
        return path

    def start_upf(self, number: int, **environment: str) -> None:
        """Start a UPF again, in another second than before: Recovery Time Stamps count them (TS 29.244, clause 8.2.65),
        and an SMF would not notice."""
        while self._started_s[number] == int(time.time()):
            time.sleep(0.01)
        self._run("upf", str(number), **environment)
        self._started_s[number] = int(time.time())

    def mend(self) -> None:
        """Start those that a test has left dead."""
        for number in range(1, self.count + 1):
            if start_ticks(self.pid(number)) is None:
                self.start_upf(number)

    def remove_group(self, number: int) -> None:
        """Of a UPF that has ended; the kernel takes a moment to notice."""
        deadline = time.monotonic() + 5.0
        while True:
            try:
                self.group(number).rmdir()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def stop_upf(self, number: int) -> None:
        """Kill a UPF, and wait until it has gone."""
        process = ProcessId.of(self.pid(number))
        process.stop()
        assert not process.alive

    def replace_netns(self, number: int) -> None:
        """Remove the namespace of a UPF that has ended, and make another of its name."""
        subprocess.run(["ip", "netns", "delete", self.netns[number - 1]], check=True)
        self._run("netns", str(number))

    def load(self, seconds: float, mbps: float, **environment: str) -> None:
        """Send into every slice from now on."""
        command = self._command("load", str(self.count), f"{seconds:g}", f"{mbps:g}")
        self._loads.append(subprocess.Popen(command, env=self._environment(environment), start_new_session=True))

    @property
    def loading(self) -> bool:
        """Whether all loads that were begun still send."""
        return all(load.poll() is None for load in self._loads)

    def stop_loads(self) -> None:
        """Before their time; what they counted is lost."""
        for load in self._loads:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(load.pid, signal.SIGTERM)
            load.wait(10)
        self._loads = []

    def carried_mbps(self) -> list[float]:
        """By slice, what the sink counted of a load that has ended."""
        for load in self._loads:
            load.wait(60)
        self._loads = []
        last: dict[str, Any] = json.loads((self.state / "sink.out").read_text().splitlines()[-1])
        return [flow["mbps"] for flow in last["flows"]]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def down(self) -> None:
        """Remove everything."""
        for load in self._loads:
            load.wait(60)
        self._run("down", str(self.count))

    def _command(self, what: str, *arguments: str) -> list[str]:
        return ["bash", str(SCRIPT), what, self.prefix, *arguments]

    def _environment(self, more: dict[str, str]) -> dict[str, str]:
        return {
            **os.environ,
            "SLICEPILOT_BIN": str(bin_folder()),
            "STATE": str(self.state),
            "SESSIONS": str(self.sessions),
            **self._more,
            **more,
        }

    def _run(self, what: str, *arguments: str, **environment: str) -> None:
        subprocess.run(self._command(what, *arguments), env=self._environment(environment), check=True, timeout=60)


def written(folder: Path, name: str, *slices: dict[str, Any], **more: Any) -> Path:
    """The configuration of a node; ``more`` fields of it."""
    path = folder / "node.yaml"
    path.write_text(yaml.safe_dump({"name": name, "slices": list(slices), **more}))
    return path


def opened(path: Path) -> NodeBackend:
    """A node as a backend, with control periods of 20 ms."""
    return NodeBackend(NodeSpec.from_yaml(str(path)), 0.02)


def restored_ms(pid: int, state: Path) -> float:
    """SIGKILL; the time until the supervisor had put everything back, by its own clock.

    Args:
        pid: of a controller that acts.
        state: folder with its state folder, where the supervisor reports; its journal may be in another machine.
    """
    [folder] = [path for path in state.iterdir() if path.is_dir()]
    report, killed_ns = folder / RESTORED_FILE, time.monotonic_ns()
    os.kill(pid, signal.SIGKILL)
    deadline, document = time.monotonic() + 10.0, dict[str, Any]()
    while document.get("finished_ns", 0) < killed_ns:
        assert time.monotonic() < deadline, "not restored"
        time.sleep(0.001)
        if report.exists():
            document = json.loads(report.read_text())
    assert (document["cause"], document["failed"]) == ("died", []), document
    return 1e-6 * (document["finished_ns"] - killed_ns)
