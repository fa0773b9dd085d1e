"""What is missing on a machine is said in one line, with what still works; provoked for real wherever it can be."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from slicepilot.configs import ConfigError
from slicepilot.controller.actuators.slice_knobs import SliceTargets
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.net import tc
from slicepilot.controller.system.net.rtnetlink import RouteSocket, attribute, request
from slicepilot.controller.telemetry import clsact
from slicepilot.env.environments.slice_env import SliceEnv
from slicepilot.node.authority.authority import authority, can_be_limited
from tests.reachable import AS_NOBODY

from .foreign import Foreign
from .runtimes import until
from .test_authority import OWN, POINTS, upf

PROGRAM = [sys.executable, "-c", "from slicepilot.cli import main; main()"]
COMMANDS = {
    "check": ["node", "check", "NODE", "--seconds", "0.3"],
    "run": ["run", "--node", "NODE", "--seconds", "1"],
}


@pytest.fixture(name="node")
def _node(foreign: Foreign) -> Iterator[Path]:
    """Where other users can read it, which pytest's own folders do not allow."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "node.yaml"
        path.write_text(yaml.safe_dump(foreign.document()))
        path.chmod(0o644)
        yield path


def error_of(command: list[str], node: Path, *before: str, code: int = 1) -> str:
    """The one line that a command ends with, started by way of ``before``."""
    folder = node.parent / "theirs"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    filled = [part.replace("NODE", str(node)).replace("OUT", str(folder / "out")) for part in command]
    environment = os.environ | {"HOME": str(folder)}
    done = subprocess.run(
        [*before, *PROGRAM, *filled], capture_output=True, text=True, check=False, timeout=120, env=environment
    )
    assert done.returncode == code, done.stderr
    lines = [line for line in done.stderr.splitlines() if line and "onnxruntime" not in line]
    assert len(lines) == 1, done.stderr
    return lines[0]


@pytest.mark.parametrize("command", ["check", "run"])
def test_what_a_user_without_privileges_lacks_is_named(node: Path, command: str) -> None:
    line = error_of(COMMANDS[command], node, *AS_NOBODY)
    assert "not permitted, needs root or CAP_SYS_PTRACE to see" in line
    assert "CAP_SYS_ADMIN to enter it" in line
    assert "without it: slicepilot simulate" in line
    if command == "check":
        line = error_of(["node", "discover"], node, *AS_NOBODY, code=2)
        assert "must run as root to map sockets to processes" in line


@pytest.mark.parametrize("dropped", ["cap_sys_ptrace", "cap_sys_admin,cap_bpf,cap_perfmon"])
def test_a_capability_that_root_lacks_is_named(node: Path, dropped: str) -> None:
    first = dropped.split(",", maxsplit=1)[0]
    drop = ",".join(f"-{name.removeprefix('cap_')}" for name in dropped.split(","))
    line = error_of(COMMANDS["check"], node, "setpriv", f"--bounding-set={drop}", f"--inh-caps={drop}")
    assert first.upper() in line
    assert "needs root or" in line
    others = {"CAP_SYS_PTRACE", "CAP_SYS_ADMIN"} - {first.upper()}
    assert not any(name in line for name in others)


def test_without_net_admin_rates_are_left_alone_and_the_rest_works(node: Path) -> None:
    command = [*PROGRAM, "node", "check", str(node), "--seconds", "0.3", "--json"]
    done = subprocess.run(
        ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin", *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1  # no traffic
    for item in json.loads(done.stdout):
        assert "lacks CAP_NET_ADMIN" in item["knobs"]["egress"]["why"]
        assert not item["knobs"]["egress"]["authority"]
        assert item["knobs"]["cpu_limit"]["authority"]


def test_a_kernel_that_does_not_describe_itself(node: Path) -> None:
    """Its description is hidden, in a mount namespace of the command's own."""
    hidden = f"mount -t tmpfs none /sys/kernel/btf && exec {shlex.join(PROGRAM)} "
    for command in COMMANDS.values():
        arguments = [part.replace("NODE", str(node)) for part in command]
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", hidden + shlex.join(arguments)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 1, done.stderr
        [line] = done.stderr.splitlines()
        assert "/sys/kernel/btf/vmlinux is missing" in line
        assert "UPFs can be listed (slicepilot node discover)" in line


def test_a_namespace_that_has_vanished_is_named(foreign: Foreign, node: Path) -> None:
    document = foreign.document()
    document["slices"][2]["upf"]["netns"] = "vanished"
    node.write_text(yaml.safe_dump(document))
    for command in COMMANDS.values():
        line = error_of(command, node, code=2)
        assert "slices.slice3.upf.netns = vanished: no such network namespace; expected a path, or one of" in line
    with pytest.raises(ConfigError, match="no such network namespace"):
        SliceEnv(node=str(node))


def test_a_group_without_the_cpu_controller_leaves_the_rest(tmp_path: Path) -> None:
    """A real one of version 2, in which the controller was not delegated, or which another hierarchy has."""
    mounts = Path("/proc/mounts").read_text().splitlines()
    roots = [Path(line.split()[1]) for line in mounts if line.split()[2] == "cgroup2"]
    assert roots, "no cgroup version 2 is mounted"
    parent = roots[0] / f"sp-bad-{os.getpid()}"
    group = parent / "upf"
    parent.mkdir()
    try:
        group.mkdir()
        assert not can_be_limited(group)
        result = authority(SliceTargets("a", None, "lo", OWN), upf("open5gs-upfd", group), POINTS)
    finally:
        group.rmdir()
        parent.rmdir()
    for knob in ("cpu_limit_mcpu", "nice"):
        answer = result[knob]  # type: ignore[index]
        assert not answer.moves
        assert f"{group} has no CPU controller" in answer.why
        assert f"echo +cpu > {parent}/cgroup.subtree_control" in answer.why
    assert result["egress_mbps"].moves


def test_a_kernel_without_clsact() -> None:
    """There is none here to try: a kind of qdisc that it lacks is requested, and its answer reported."""
    with private_netns() as netns, closing(RouteSocket(netns)) as route:
        message = tc.TCMSG.pack(0, 1, tc.CLSACT_HANDLE, tc.CLSACT_PARENT, 0) + attribute(tc.TCA_KIND, b"sp-none\0")
        with pytest.raises(ActuatorError) as caught:
            route.send(request(tc.RTM_NEWQDISC, tc.NLM_F_CREATE | tc.NLM_F_EXCL, message), "add sp-none")
    error = clsact.without_hooks(caught.value)
    assert error is not None
    assert "neither TCX (Linux 6.6) nor clsact (CONFIG_NET_SCH_INGRESS)" in str(error)
    assert "UPFs can be listed (slicepilot node discover)" in str(error)
    assert clsact.without_hooks(ActuatorError("exists", errno.EEXIST)) is None


@contextlib.contextmanager
def private_netns() -> Iterator[Path]:
    """A network namespace of one process, which has nothing but a loopback."""
    with subprocess.Popen(["unshare", "--net", "sleep", "60"]) as process:
        path = Path(f"/proc/{process.pid}/ns/net")
        until(lambda: path.stat().st_ino != OWN.stat().st_ino, "no namespace was made")
        yield path
        process.kill()
