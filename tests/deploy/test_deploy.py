"""What is shipped for other programs: the systemd unit and what it relies on."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicepilot.controller.service.run_config import RunConfig
from slicepilot.controller.system import sd_notify
from slicepilot.controller.system.privileges import LOOP
from slicepilot.env.encoding import PERIOD_RANGE_S

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "systemd" / "slicepilot@.service"
# Of 10; below 5 systemd calls it OK. The second is with private-network.conf. What counts: docs/operation.md.
EXPOSURE, EXPOSURE_APART = 3.1, 2.7

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")


def settings(unit: Path = UNIT) -> dict[str, list[str]]:
    """Values of the unit by name; those of one name in order."""
    result: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            result.setdefault(name, []).append(value)
    return result


@needs_systemd
def test_the_unit_is_valid(tmp_path: Path) -> None:
    program = tmp_path / "slicepilot"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/slicepilot/bin/slicepilot", str(program)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    unit.write_text(unit.read_text().replace("WatchdogSec=", "WatchdogSecs="))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert "'WatchdogSecs'" in done.stderr, "a mistake is reported"


def exposure(unit: Path) -> tuple[float, set[str]]:
    """What systemd makes of a unit, and the settings that it counts."""
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    result = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert result, done.stdout
    return float(result[1]), set(re.findall(r"^✗ (\S+)", done.stdout, re.MULTILINE))


@needs_systemd
def test_the_unit_exposes_little_and_each_line_is_explained(tmp_path: Path) -> None:
    level, counted = exposure(UNIT)
    assert level <= EXPOSURE
    apart = tmp_path / UNIT.name
    apart.write_text(UNIT.read_text() + (UNIT.parent / "private-network.conf").read_text())
    level, counted_apart = exposure(apart)
    assert level <= EXPOSURE_APART
    assert counted - counted_apart == {"PrivateNetwork="}
    table = (DEPLOY.parent / "docs" / "operation.md").read_text().partition("What is still counted")[2]
    explained = re.findall(r"^\| `([^`]+)` \|", table.partition("\n## ")[0], re.MULTILINE)
    assert sorted(item.replace("\\|", "|") for item in explained) == sorted(counted)


@needs_systemd
def test_what_other_arrangements_would_gain(tmp_path: Path) -> None:
    """A publisher that is a unit of its own, and a loop whose user is not root: docs/operation.md has the figures."""
    [first, *others] = settings()["CapabilityBoundingSet"]
    for_others = {"CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP", "CAP_CHOWN"}
    fewer = " ".join(item for item in " ".join([first, *others]).split() if item not in for_others)
    own_publisher = UNIT.read_text().replace(f"={first}\n", f"={fewer}\n")
    for each in others:
        own_publisher = own_publisher.replace(f"CapabilityBoundingSet={each}\n", "")
    other_user = own_publisher.replace("User=root", "User=slicepilot").replace(fewer, f"{fewer} CAP_DAC_OVERRIDE")
    figures = []
    for text in (own_publisher, other_user):
        for drop_in in ("", (UNIT.parent / "private-network.conf").read_text()):
            unit = tmp_path / UNIT.name
            unit.write_text(text + drop_in)
            figures.append(exposure(unit)[0])
    print("publisher apart, and with private-network.conf; not root besides, and with it:", *figures)
    text = " ".join((DEPLOY.parent / "docs" / "operation.md").read_text().split())
    assert "{} and {} (with `private-network.conf`)".format(*figures[:2]) in text
    assert "{} and {} for a loop that is not root".format(*figures[2:]) in text


def test_the_unit_bounds_the_capabilities_to_those_the_controller_names() -> None:
    """What the loop keeps, and what it needs before: to bound itself to that, and to give its publisher a folder."""
    bounded = {*LOOP, "CAP_SETPCAP", "CAP_CHOWN"} - {"CAP_IPC_LOCK"}
    assert set(" ".join(settings()["CapabilityBoundingSet"]).split()) == bounded
    assert settings()["LimitMEMLOCK"] == ["infinity"], "in its stead"
    assert settings()["AmbientCapabilities"] == [""]


def test_the_unit_lets_the_supervisor_finish() -> None:
    unit = settings()
    assert unit["KillMode"] == ["control-group"], "mixed kills the supervisor as soon as the controller is dead"
    assert unit["WatchdogSignal"] == ["SIGKILL"], "a controller that hangs must not write any more"
    assert unit["ExecStart"] == ["/opt/slicepilot/bin/slicepilot run --instance %i -c /etc/slicepilot/%i.yaml"]
    assert unit["ExecStopPost"] == ["/opt/slicepilot/bin/slicepilot restore --name %i"], "state is by instance"
    assert unit["Delegate"] == ["no"], "systemd does not wait for the rest of a delegated group"


def test_a_node_that_prometheus_measures_has_time_for_two_longest_periods_after_it_has_compiled() -> None:
    [least_s] = settings()["TimeoutStartSec"]
    [timeout_s] = settings(UNIT.with_name("prometheus.conf"))["TimeoutStartSec"]
    assert int(timeout_s) >= int(least_s) + 2 * PERIOD_RANGE_S[1]


@needs_systemd
def test_the_users_are_valid(tmp_path: Path) -> None:
    if shutil.which("systemd-sysusers") is None:
        pytest.skip("needs systemd-sysusers")
    for name in ("passwd", "group"):
        (tmp_path / "etc").mkdir(exist_ok=True)
        (tmp_path / "etc" / name).write_text("")
    users = DEPLOY / "systemd" / "sysusers.conf"
    subprocess.run(["systemd-sysusers", f"--root={tmp_path}", str(users)], capture_output=True, check=True)
    assert re.search(r"^slicepilot:", (tmp_path / "etc/passwd").read_text(), re.MULTILINE)
    assert re.search(r"^slicepilot-control:", (tmp_path / "etc/group").read_text(), re.MULTILINE)


# -- the service manager -----------------------------------------------------------------------------------------------


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The manager's end of NOTIFY_SOCKET."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@slicepilot-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(name.replace("@", "\0", 1) if name.startswith("@") else name)
        end.settimeout(2.0)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        yield end


def test_the_manager_is_notified(manager: socket.socket) -> None:
    assert sd_notify.ready("5 slices,\nlive")
    assert manager.recv(4096) == b"READY=1\nSTATUS=5 slices, live\n"
    assert sd_notify.watchdog()
    assert manager.recv(4096) == b"WATCHDOG=1\n"
    assert sd_notify.stopping("restoring")
    assert manager.recv(4096) == b"STOPPING=1\nSTATUS=restoring\n"


def test_a_manager_that_does_not_read_holds_nobody_up(manager: socket.socket) -> None:
    reported = [sd_notify.watchdog() for _ in range(20_000)]
    assert reported[0]
    assert not reported[-1]


@pytest.mark.parametrize("address", [None, "", "relative", "/nowhere/notify"])
def test_without_a_manager_nobody_is_notified(address: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if address is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
    assert not sd_notify.ready()


def test_the_pages_configuration_of_a_controller_is_read(tmp_path: Path) -> None:
    text = (DEPLOY.parent / "docs" / "operation.md").read_text().partition("# sp.yaml:")[2].partition("```")[0]
    (tmp_path / "sp.yaml").write_text(f"#{text}")
    config = RunConfig.from_yaml(str(tmp_path / "sp.yaml"))
    assert (config.carrier, config.node, config.mode) == ("node", "/etc/slicepilot/node.yaml", "shadow")
