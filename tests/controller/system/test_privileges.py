"""Capabilities are given up in every thread and for good; exactly those are kept that the loop needs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slicepilot.configs import ConfigError
from slicepilot.controller.system.cgroup import CpuHierarchy
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.privileges import CAPABILITIES, LOOP, drop_all
from tests.controller.namespaces import Namespace

REACHABLE = Path(__file__).parents[2] / "reachable.py"

pytestmark = [pytest.mark.live, pytest.mark.skipif(os.geteuid() != 0, reason="needs root: there is nothing to give up")]


def run(code: str, *arguments: str) -> Any:
    """What a program of its own prints as JSON."""
    done = subprocess.run(
        [sys.executable, str(REACHABLE), sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def status_names(mask: str) -> set[str]:
    return {name for number, name in enumerate(CAPABILITIES) if int(mask, 16) >> number & 1}


# -- giving up ---------------------------------------------------------------------------------------------------------

KEEP = """
import json, subprocess, sys
import numpy  # its OpenBLAS starts threads
from pathlib import Path
from slicepilot.controller.system.privileges import keep_only
keep_only(sys.argv[1:])
square = numpy.ones((600, 600)) @ numpy.ones((600, 600))
threads = [(task / "status").read_text() for task in Path("/proc/self/task").iterdir()]
child = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True).stdout
print(json.dumps([*threads, child]))
"""


def test_only_the_named_are_left_in_every_set_of_every_thread_and_child() -> None:
    for text in run(KEEP, "CAP_SYS_NICE", "CAP_NET_ADMIN"):
        status = dict(line.split(":\t") for line in text.splitlines())
        for held in ("CapPrm", "CapEff", "CapBnd"):
            assert status_names(status[held]) == {"CAP_NET_ADMIN", "CAP_SYS_NICE"}
        assert int(status["CapInh"], 16) == int(status["CapAmb"], 16) == 0
        assert status["NoNewPrivs"] == "1"


DROP = """
import ctypes, json, os, sys
import numpy
from slicepilot.controller.system.privileges import drop_all
if sys.argv[1] == "from nobody":
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
drop_all(*sys.argv[2:])
def refused(action):
    try:
        action()
    except OSError as error:
        return type(error).__name__
tasks = [open(f"/proc/self/task/{task}/status").read() for task in os.listdir("/proc/self/task")]
print(json.dumps({
    "ids": os.getresuid() + os.getresgid(), "groups": os.getgroups(),
    "dumpable": ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), "tasks": tasks,
    "setuid": refused(lambda: os.setuid(0)), "secret": refused(lambda: open("/etc/shadow")),
    "chown": refused(lambda: os.chown("/etc/passwd", 0, 0)), "kill": refused(lambda: os.kill(os.getppid(), 0)),
}))
"""


def test_a_publisher_keeps_nothing() -> None:
    import pwd

    nobody = pwd.getpwnam("nobody")
    left = run(DROP, "from root")
    assert (left["groups"], left["dumpable"]) == ([], 0)
    assert left["ids"] == [nobody.pw_uid] * 3 + [nobody.pw_gid] * 3
    assert {left[what] for what in ("setuid", "secret", "chown", "kill")} == {"PermissionError"}
    for text in left["tasks"]:
        status = dict(line.split(":\t") for line in text.splitlines())
        assert {int(status[held], 16) for held in ("CapPrm", "CapEff", "CapInh", "CapAmb", "CapBnd")} == {0}
        assert status["NoNewPrivs"] == "1"


def test_nobody_stays_nobody() -> None:
    assert run(DROP, "from nobody")["ids"] == [65534] * 6
    assert run(DROP, "from nobody", "nobody")["ids"] == [65534] * 6


# -- what the loop needs -----------------------------------------------------------------------------------------------

# Attaches to two UPFs as the loop does, gives up all but the named capabilities, and then does what a running loop has
# to do: one line in, one line out ("" or why it failed).
PROGRAM = """
import ctypes, functools, json, mmap, os, resource, subprocess, sys
from pathlib import Path
import numpy as np
from slicepilot.controller.actuators.node import NodeActuator, SliceTargets
from slicepilot.controller.system.privileges import keep_only
from slicepilot.controller.system.realtime import FIFO_PRIORITY
from slicepilot.controller.telemetry import attachments
from slicepilot.controller.telemetry.points import NetPoint, SlicePoints
from slicepilot.controller.telemetry.source import KernelSource
from slicepilot.env.knobs import Knobs

setup = json.loads(sys.argv[1])
exec(setup["first"])
if setup["hook"] == "clsact":
    attachments.Attachment = functools.partial(attachments.Attachment, tcx=False)
where = list(zip(setup["namespaces"], setup["groups"]))
source = KernelSource([
    SlicePoints(f"slice{k}", NetPoint(ns, "n3"), None, NetPoint(ns, "n6"), None, Path(group))
    for k, (ns, group) in enumerate(where)
])
targets = [SliceTargets(f"slice{k}", Path(group), "n6", Path(ns)) for k, (ns, group) in enumerate(where)]
actuator = NodeActuator(targets) if setup["acts"] else None
if setup["locked"]:
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (8 << 20, 8 << 20))  # what most systems give
    assert ctypes.CDLL(None).mlockall(3) == 0
keep_only(setup["keep"])

def column(value): return np.full((2, 1), value, np.float32)
def measure():
    source.measure()
    source.warm_up()
def apply(scope="group", nice=-5, limit=300.0, rate=50.0):
    receipt = actuator.apply(Knobs.of(column(limit), column(nice), column(rate), scope))
    assert receipt.error is None, receipt.error
def thread_nice():
    apply("process", -7, rate=np.inf)
    apply("process", -9, rate=np.inf)
def check():
    assert not (missing := source.check()), missing
def grow():
    mmap.mmap(-1, 64 << 20).close()
def real_time():
    os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(FIFO_PRIORITY))
def publisher():
    # ends with its standard input, whether or not it may be killed
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, user="nobody", group="nogroup", extra_groups=[]) as child:
        child.kill()
def supervisor():
    code = "import os; os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr.splitlines()[-1]
def take_over():
    global actuator
    actuator.close()
    actuator = NodeActuator(targets)
    apply()
def restore():
    if actuator is not None:
        actuator.close()
    source.close()

print(json.dumps("attached"), flush=True)
for line in sys.stdin:
    try:
        globals()[line.strip()]()
        answer = ""
    except BaseException as error:
        answer = f"{type(error).__name__}: {error}"
    print(json.dumps(answer), flush=True)
"""


@dataclass
class Node:
    """Two UPFs' namespaces, known by name and by process, and their cgroups with a process each."""

    namespaces: list[str]
    groups: list[str]

    def sh(self, commands: str) -> None:
        for path in self.namespaces:
            subprocess.run(["nsenter", f"--net={path}", "sh", "-ec", commands], check=True, capture_output=True)

    def start_upfs(self) -> None:
        self.sh("ip link add n3 type veth peer name n6; ip link set n3 up; ip link set n6 up")

    def restart_upfs(self) -> None:
        """Their devices go and come back, and with them what was attached."""
        self.sh("ip link del n3")
        self.start_upfs()


@pytest.fixture
def node() -> Iterator[Node]:
    try:
        hierarchy = CpuHierarchy.find()
    except ActuatorError as error:
        pytest.skip(str(error))
    name = f"slicepilot-privileges-{os.getpid()}-{threading.get_ident():x}"
    parent = hierarchy.root / name
    groups = [parent / f"slice{k}" for k in range(2)]
    with contextlib.ExitStack() as stack:
        for folder in (parent, *groups):
            folder.mkdir()
            stack.callback(folder.rmdir)
            if hierarchy.version == 2 and folder == parent:
                (parent / "cgroup.subtree_control").write_text("+cpu")
        subprocess.run(["ip", "netns", "add", name], check=True)
        stack.callback(subprocess.run, ["ip", "netns", "del", name], check=True)
        unnamed = stack.enter_context(contextlib.closing(Namespace()))
        for group in groups:
            upf = stack.enter_context(subprocess.Popen(["cat"], stdin=subprocess.PIPE, user="nobody"))
            (group / "cgroup.procs").write_text(str(upf.pid))
        made = Node([f"/run/netns/{name}", str(unnamed.path)], [str(group) for group in groups])
        made.start_upfs()
        yield made


OF_ACTING = ("apply", "thread_nice", "take_over")
ACTIONS = ("measure", "apply", "thread_nice", "check", "real_time", "publisher", "supervisor", "restart")
ACTIONS += ("take_over", "restore")


def failures(
    node: Node, keep: set[str], *, acts: bool, hook: str = "clsact", locked: bool = False, first: str = ""
) -> dict[str, str]:
    """Which of a running loop's actions fail with these capabilities, and how; ``first`` is run before it attaches."""
    setup = {"namespaces": node.namespaces, "groups": node.groups, "first": first}
    setup |= {"keep": sorted(keep), "acts": acts, "hook": hook, "locked": locked}
    failed = {}
    actions = [action for action in ACTIONS if acts or action not in OF_ACTING]
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, json.dumps(setup)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as loop:
        assert loop.stdin is not None
        assert loop.stdout is not None
        assert json.loads(loop.stdout.readline()) == "attached"
        for action in ["grow"] if locked else actions:
            if action == "restart":
                node.restart_upfs()
            print("check" if action == "restart" else action, file=loop.stdin, flush=True)
            if answer := json.loads(loop.stdout.readline()):
                failed[action] = answer
    return failed


@pytest.mark.parametrize("hook", ["tcx", "clsact"])
@pytest.mark.parametrize("acts", [True, False])
def test_the_named_capabilities_suffice(node: Node, acts: bool, hook: str) -> None:
    assert failures(node, set(LOOP), acts=acts, hook=hook) == {}
    assert failures(node, set(LOOP), acts=acts, hook=hook, locked=True) == {}


# Where a program is attached by a clsact filter; by TCX, attaching again needs no CAP_NET_ADMIN.
NEEDED_FOR = {
    "CAP_IPC_LOCK": {"grow"},
    "CAP_KILL": {"publisher"},
    "CAP_NET_ADMIN": {"apply", "restart", "take_over"},
    "CAP_SETGID": {"publisher"},
    "CAP_SETUID": {"publisher"},
    "CAP_SYS_ADMIN": {"check", "restart", "take_over"},
    "CAP_SYS_NICE": {"thread_nice", "real_time", "supervisor"},
    "CAP_SYS_PTRACE": {"check", "restart", "take_over"},
}


@pytest.mark.parametrize("acts", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", sorted(NEEDED_FOR))
def test_each_of_them_is_needed(node: Node, name: str, acts: bool) -> None:
    keep = set(LOOP) - {name}
    failed = failures(node, keep, acts=acts, locked=name == "CAP_IPC_LOCK")
    assert failed.keys() == NEEDED_FOR[name] - (set() if acts else set(OF_ACTING))
    assert all("Error" in words for words in failed.values())


@pytest.mark.parametrize("hook", ["tcx", "clsact"])
def test_what_the_loop_starts_with_suffices_to_attach(node: Node, hook: str) -> None:
    first = f"keep_only({sorted({*LOOP, 'CAP_SETPCAP'})})"
    assert failures(node, set(LOOP), acts=True, hook=hook, first=first) == {}


def test_a_thread_that_would_keep_more_is_an_error() -> None:
    code = """
import json, threading
from slicepilot.controller.system.privileges import PrivilegeError, keep_only
threading.Thread(target=threading.Event().wait, daemon=True).start()
try:
    keep_only(["CAP_KILL"])
except PrivilegeError as error:
    print(json.dumps(str(error)))
"""
    message = run(code)
    assert "CAP_SYS_ADMIN" in message
    assert "before threads start" in message


@pytest.mark.parametrize(
    ("user", "message"),
    [
        ("no-such-user", "user = 'no-such-user': unknown; expected a user of this machine"),
        ("root", "user = 'root': is root; expected a user without privileges"),
    ],
)
def test_users_that_are_none_are_refused(user: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        drop_all(user)
    assert os.geteuid() == 0
