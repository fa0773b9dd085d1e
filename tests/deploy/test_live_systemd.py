"""The shipped unit under a real systemd: it starts, is watched, comes back, and restores everything.

systemd is the first process of a machine within this one (`tests/node/machine.py`), UPFs are units of its own. What
differs from an operator's machine is in `DROP_IN`, and said there.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.node.machine import Machine, MachineError
from tests.node.runtimes import SystemdUpfs

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "slicepilot@.service"
PROGRAM = Path(sys.executable).with_name("slicepilot")
NAME = "edge"
SERVICE = f"slicepilot@{NAME}.service"
LOG = "/var/log/slicepilot.log"
# Python may lie in a home, which the unit hides; nothing is compiled yet, and the machine has other things to do; there
# is no journal.
DROP_IN = f"""\
[Service]
ProtectHome=tmpfs
BindReadOnlyPaths={Path(sys.base_prefix)} {Path(__file__).parents[2]}
TimeoutStartSec=280
StandardError=append:{LOG}
"""
CONFIG = {
    "node": "/etc/slicepilot/node.yaml",
    "mode": "live",
    "agent": "static-weights-9",
    "publish": {"user": "nobody", "log": "json", "estimate_s": 0, "listen": "inherited"},
}
pytestmark = pytest.mark.live


class Service:
    """``slicepilot@edge`` in a machine with two UPFs."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.upfs = machine, SystemdUpfs(machine)
        self.before = self.upfs.knobs()
        machine.write("/etc/slicepilot/node.yaml", self.upfs.node().read_text())
        text = UNIT.read_text().replace("/opt/slicepilot/bin/slicepilot", str(PROGRAM))
        machine.write("/etc/systemd/system/slicepilot@.service", text)
        machine.write("/etc/systemd/system/slicepilot@.socket", UNIT.with_suffix(".socket").read_text())
        apart = UNIT.with_name("private-network.conf")
        machine.write(f"/etc/systemd/system/slicepilot@.service.d/{apart.name}", apart.read_text())
        machine.write(f"/etc/systemd/system/{SERVICE}.d/test.conf", DROP_IN)
        self.configure()
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "start", f"slicepilot@{NAME}.socket")

    def configure(self, **changes: object) -> None:
        self.machine.write(f"/etc/slicepilot/{NAME}.yaml", yaml.safe_dump(CONFIG | changes))

    def show(self, name: str) -> str:
        return self.machine.run("systemctl", "show", "--value", f"--property={name}", SERVICE).strip()

    def start(self) -> None:
        self.machine.run("systemctl", "reset-failed", SERVICE, code=None)
        try:
            self.machine.run("systemctl", "start", SERVICE, timeout_s=290.0)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}") from None

    def stop(self) -> None:
        self.machine.run("systemctl", "stop", SERVICE)

    def log(self) -> str:
        return self.machine.run("tail", "-n", "30", LOG, code=None)

    @property
    def pid(self) -> int:
        """Of the controller, in the machine."""
        return int(self.show("MainPID"))

    def processes(self) -> dict[str, int]:
        """Supervisor and publisher, by their command lines; pids in the machine."""
        result = {}
        for entry in (self.machine.root / "proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                except OSError:
                    continue
                for kind in ("watchdog.supervisor", "publisher.process"):
                    if f"slicepilot.controller.{kind}" in words:
                        result[kind.partition(".")[0]] = int(entry.name)
        return result

    def status(self, pid: int) -> dict[str, str]:
        lines = (self.machine.root / "proc" / str(pid) / "status").read_text().splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def kill(self, pid: int, number: signal.Signals) -> None:
        self.machine.run("kill", f"-{int(number)}", str(pid))

    def page(self) -> str:
        """The metrics, as Prometheus gets them."""
        code = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9464/metrics').read().decode())"
        return self.machine.run(sys.executable, "-c", code)

    def moved(self) -> bool:
        return self.upfs.knobs() != self.before

    def wait(self, what: Callable[[], bool], message: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < deadline, f"{message}\n{self.log()}"
            time.sleep(0.1)


@pytest.fixture(scope="module", name="machine")
def _machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("unit")
    folder.chmod(0o755)
    try:
        machine = Machine(folder)
    except MachineError as error:
        pytest.skip(str(error))
    try:
        yield machine
    finally:
        machine.close()


@pytest.fixture(scope="module", name="made")
def _made(machine: Machine) -> Service:
    return Service(machine)


@pytest.fixture(name="service")
def _service(made: Service) -> Iterator[Service]:
    """Running and live, each time anew."""
    made.configure()
    made.start()
    made.wait(made.moved, "no knob was moved")
    try:
        yield made
    finally:
        made.stop()
    assert made.upfs.knobs() == made.before, "everything is as before"


def test_it_starts_when_it_acts_and_is_confined(service: Service) -> None:
    assert service.show("ActiveState") == "active"
    assert service.show("StatusText") == "live, static-weights-9"
    service.wait(lambda: len(service.processes()) == 2, "no supervisor or no publisher")
    processes = {"controller": service.pid, **service.processes()}
    for pid in processes.values():
        facts = service.status(pid)
        assert facts["NoNewPrivs"] == "1"
        # systemd's own filters, and the filter that the process has put on top.
        assert facts["Seccomp"] == "2"
    filters = {name: int(service.status(pid)["Seccomp_filters"]) for name, pid in processes.items()}
    assert filters["controller"] >= 2
    # It still reads what it will need.
    service.wait(
        lambda: int(service.status(processes["publisher"])["CapEff"], 16) == 0, "the publisher keeps privileges"
    )

    def status() -> dict[str, Any]:
        return dict(json.loads(service.machine.run(str(PROGRAM), "control", "status", "--name", NAME, "--json")))

    service.wait(lambda: "confined" in status()["notes"], "not said", 10.0)  # notes are renewed once a second
    answer = status()
    assert answer["notes"]["confined"] == "seccomp"
    assert answer["notes"]["supervisor"]["confined"] == "seccomp"
    assert answer["publisher"]["confined"].startswith("seccomp, ")
    # Served by a process without a network, on a socket that systemd has made.
    assert "slicepilot_supervisor_up 1" in service.page()
    own = (service.machine.root / "proc" / "1" / "ns" / "net").stat().st_ino
    assert (service.machine.root / "proc" / str(processes["publisher"]) / "ns" / "net").stat().st_ino != own


def test_one_that_is_killed_restores_and_comes_back(service: Service) -> None:
    pid, restarts = service.pid, int(service.show("NRestarts"))
    service.kill(pid, signal.SIGKILL)
    service.wait(lambda: int(service.show("NRestarts")) == restarts + 1, "not started again")
    service.wait(lambda: service.show("ActiveState") == "active", "not ready again", 280.0)
    assert service.pid not in {0, pid}
    service.wait(service.moved, "no knob was moved again")


def test_when_loop_and_supervisor_hang_the_watchdog_ends_both_and_restores(service: Service) -> None:
    """Both are stopped: nobody but systemd is left to notice."""
    pid, restarts = service.pid, int(service.show("NRestarts"))
    service.kill(service.processes()["watchdog"], signal.SIGSTOP)
    service.kill(pid, signal.SIGSTOP)
    service.wait(lambda: service.show("Result") == "watchdog" or service.pid != pid, "not noticed", 30.0)
    service.wait(lambda: int(service.show("NRestarts")) == restarts + 1, "not started again")
    service.wait(lambda: service.show("ActiveState") == "active", "not ready again", 280.0)
    assert service.show("ExecMainStatus") == "0"


def test_a_publisher_that_goes_for_want_of_memory_takes_nobody_with_it(service: Service) -> None:
    """The first to go when memory is short (OOM score 500): by systemd's default that would end the whole unit."""
    assert service.show("OOMPolicy") == "continue"
    assert service.machine.run("cat", f"/proc/{service.processes()['publisher']}/oom_score_adj").strip() == "500"
    pid, publisher = service.pid, service.processes()["publisher"]
    service.kill(publisher, signal.SIGKILL)
    service.wait(lambda: service.processes().get("publisher", publisher) != publisher, "no other publisher")
    assert (service.show("ActiveState"), service.pid) == ("active", pid)


def test_a_reload_of_the_manager_disturbs_nobody(service: Service) -> None:
    pid, restarts = service.pid, service.show("NRestarts")
    service.machine.run("systemctl", "daemon-reload")
    service.machine.run("systemctl", "daemon-reexec")
    time.sleep(2.0)
    assert (service.show("ActiveState"), service.pid, service.show("NRestarts")) == ("active", pid, restarts)


def test_bad_input_is_not_tried_again(made: Service) -> None:
    made.configure(agent="nobody-knows-it")
    made.machine.run("systemctl", "reset-failed", SERVICE, code=None)
    made.machine.run("systemctl", "start", SERVICE, code=None, timeout_s=290.0)
    assert made.show("ActiveState") == "failed"
    assert made.show("ExecMainStatus") == "2"
    time.sleep(2.0)
    assert made.show("ActiveState") == "failed", "not tried again"
    assert made.upfs.knobs() == made.before
