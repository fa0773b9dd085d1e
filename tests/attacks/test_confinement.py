"""Foreign code in a process of a controller, after its start: what it tries is refused, and the others go on.

The code is really there: a program in the role of Python starts the process as it is and has the code run where its
work begins. On what a filter says of each single call see ``tests/controller/system/test_confinement.py``.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slicepilot.controller.system.confinement import landlock_version, without_seccomp
from slicepilot.testbed.bench.node import BenchNode
from tests.controller.publisher.conftest import Controller
from tests.controller.watchdog import test_supervisor as supervised
from tests.node.foreign import Foreign
from tests.node.runtimes import until
from tests.reachable import is_open

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: processes give up what they have"),
    pytest.mark.skipif(bool(without_seccomp()), reason=without_seccomp() or "none"),
]
DENIED, NO_ACCESS = errno.EPERM, errno.EACCES

# Started instead of Python, with Python's arguments; `{code}` runs where `{where}` would, and then that.
STAND_IN = """#!{python}
import ctypes, importlib, json, os, sys
sys.path[:0] = {path!r}
module = importlib.import_module(sys.argv[sys.argv.index("-m") + 1])
owner = getattr(module, {where!r}[0])
real = getattr(owner, {where!r}[1])
libc = ctypes.CDLL(None, use_errno=True)
from slicepilot.controller.system.confinement import NUMBERS
def call(name, *arguments):
    "System call by name: 0 or the error."
    values = [ctypes.c_char_p(one) if isinstance(one, bytes) else ctypes.c_void_p(one) for one in arguments]
    return ctypes.get_errno() if libc.syscall(ctypes.c_long(NUMBERS[os.uname().machine][name]), *values) < 0 else 0
def tried(action):
    try:
        action()
    except OSError as error:
        return error.errno
    return 0
answers = {{}}
def attack():
{code}
def then(*arguments, **named):
    attack()
    return real(*arguments, **named)
setattr(owner, {where!r}[1], then)
sys.argv = sys.argv[sys.argv.index("-m") + 1:]
sys.exit(module.main())
"""


def stand_in(folder: Path, where: tuple[str, str], code: str) -> str:
    """The program; its path."""
    path = folder / "python"
    indented = "".join(f"    {line}\n" for line in code.strip().splitlines())
    path.write_text(STAND_IN.format(python=sys.executable, path=sys.path, where=where, code=indented))
    path.chmod(0o755)
    return str(path)


# -- publisher ---------------------------------------------------------------------------------------------------------

IN_PUBLISHER = """
import socket
answers["inet"] = tried(lambda: socket.socket(socket.AF_INET))
answers["packet"] = tried(lambda: socket.socket(socket.AF_PACKET))
answers["netlink"] = tried(lambda: socket.socket(socket.AF_NETLINK))
answers["fork"] = tried(os.fork)
answers["dumpable"] = call("prctl", 4, 1, 0, 0, 0)
answers["own priority"] = tried(lambda: os.setpriority(os.PRIO_PROCESS, 0, 15))
answers["foreign file"] = tried(lambda: open(FOREIGN))
answers["foreign folder"] = tried(lambda: open(FOREIGN + ".new", "w"))
records = json.loads(sys.argv[1])["state"] + "/records"
answers["own code"] = tried(lambda: importlib.import_module("slicepilot.controller.record.moments")) if OPEN else 0
answers["records"] = tried(lambda: open(records + "/answers.part", "w").close())
answers["threads"] = len(os.listdir("/proc/self/task"))
with open(records + "/answers.part", "w") as file:
    json.dump(answers, file)
os.rename(records + "/answers.part", records + "/answers.json")
if not os.path.exists(records + "/again"):
    open(records + "/again", "w").close()
    os.execv("/bin/true", ["true"])
"""


def test_foreign_code_in_the_publisher_gets_nowhere(
    controller: Controller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = controller.run.parent / "foreign" / "file"
    foreign.parent.mkdir(mode=0o777)
    foreign.parent.chmod(0o777)
    foreign.write_text("to be read by all")
    # Its user reads no clone that is closed to others; what it needs it has imported before it became that user.
    code = f"FOREIGN, OPEN = {str(foreign)!r}, {is_open(Path(__file__).parents[2])}\n{IN_PUBLISHER}"
    monkeypatch.setattr(sys, "executable", stand_in(tmp_path, ("PublisherProcess", "run"), code))
    from slicepilot.controller.publisher.handle import Publisher, PublisherOptions

    options = PublisherOptions(run=controller.run, state=controller.state, log="off", records_mb=10.0, estimate_s=0.0)
    controller.publisher = publisher = Publisher.start(options, controller.theirs)
    reported = controller.state / "records" / "answers.json"
    until(lambda: not publisher.alive(), "it was not ended for execve(2)", 60.0)
    process = publisher._process
    assert process is not None
    assert process.returncode == -signal.SIGSYS
    answers = json.loads(reported.read_text())
    files = NO_ACCESS if landlock_version() else 0
    assert answers == {
        **dict.fromkeys(("inet", "packet", "netlink", "fork", "dumpable", "own priority"), DENIED),
        "foreign file": files,
        "foreign folder": files,
        "own code": 0,
        "records": 0,
        "threads": 1,
    }
    # Another publisher serves on the same sockets; it is attacked as well, but for the end.
    reported.unlink()
    until(publisher.restart, "not started again", 60.0)
    status = controller.ask({"command": "status"})["status"]
    assert status["publisher"]["confined"].startswith("seccomp, ")
    assert reported.exists()


def test_what_is_switched_off_is_reported(controller: Controller) -> None:
    controller.publish(harden=False)
    assert controller.ask({"command": "status"})["status"]["publisher"]["confined"] == "off (harden: false)"


# -- supervisor --------------------------------------------------------------------------------------------------------

IN_SUPERVISOR = """
import socket
answers["execve"] = tried(lambda: os.execv("/bin/true", ["true"]))
answers["fork"] = tried(os.fork)
answers["inet"] = tried(lambda: socket.socket(socket.AF_INET))
answers["packet"] = tried(lambda: socket.socket(socket.AF_PACKET))
answers["ptrace"] = call("ptrace", 16, os.getppid(), 0, 0)
answers["mount"] = call("mount", b"none", b"/mnt", b"tmpfs", 0, 0)
answers["unshare"] = call("unshare", 0x00020000)
answers["bpf"] = call("bpf", 0, 0, 0)
answers["init_module"] = call("init_module", 0, 0, b"")
answers["keyctl"] = call("keyctl", 0, 0, 0, 0, 0)
answers["namespace of files"] = call("setns", os.open("/proc/self/ns/mnt", os.O_RDONLY), 0x00020000)
with open({answers_file!r} + ".part", "w") as file:
    json.dump(answers, file)
os.rename({answers_file!r} + ".part", {answers_file!r})
"""


def test_foreign_code_in_the_supervisor_gets_nowhere_and_it_restores(
    node: BenchNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported, state = tmp_path / "answers.json", tmp_path / "state"
    program = stand_in(tmp_path, ("Supervisor", "wait"), IN_SUPERVISOR.replace("{answers_file!r}", repr(str(reported))))
    monkeypatch.setattr(supervised, "CONTROLLER", f"import sys\nsys.executable = {program!r}\n{supervised.CONTROLLER}")
    with contextlib.closing(supervised.Kernel(node.targets)) as kernel, contextlib.ExitStack() as undo:
        result = kernel.read()
        controller = undo.enter_context(supervised.controller(node, state))
        assert controller.facts["confined"] == "seccomp"
        until(reported.exists, "nothing was tried", 60.0)
        answers = json.loads(reported.read_text())
        assert answers == dict.fromkeys(answers, DENIED)
        assert len(answers) == 11
        assert kernel.read() != result
        controller.kill()
        until(lambda: kernel.read() == result, "not restored", 10.0)


# -- controller --------------------------------------------------------------------------------------------------------

IN_CONTROLLER = """
import socket
answers["packet"] = tried(lambda: socket.socket(socket.AF_PACKET))
answers["vsock"] = tried(lambda: socket.socket(socket.AF_VSOCK))
answers["ptrace"] = call("ptrace", 16, os.getppid(), 0, 0)
answers["process_vm_readv"] = call("process_vm_readv", os.getppid(), 0, 0, 0, 0, 0)
answers["mount"] = call("mount", b"none", b"/mnt", b"tmpfs", 0, 0)
answers["unshare"] = call("unshare", 0x00020000)
answers["chroot"] = call("chroot", b"/")
answers["init_module"] = call("init_module", 0, 0, b"")
answers["keyctl"] = call("keyctl", 0, 0, 0, 0, 0)
answers["io_uring"] = call("io_uring_setup", 1, 0)
answers["userfaultfd"] = call("userfaultfd", 0)
answers["namespace of files"] = call("setns", os.open("/proc/self/ns/mnt", os.O_RDONLY), 0x00020000)
answers["child"] = os.waitstatus_to_exitcode(os.system("mount -t tmpfs none /mnt 2>/dev/null")) and 1
with open({answers_file!r}, "w") as file:
    json.dump(answers, file)
"""
RUN = """
import sys
import slicepilot.controller.service.controller as module
sys.modules["standing_in"] = module
module.main = lambda: __import__("slicepilot.cli", fromlist=["main"]).main()
"""


def test_foreign_code_in_the_controller_gets_nowhere_and_it_controls(tmp_path: Path) -> None:
    foreign = Foreign(tmp_path, count=2, prefix="cf")
    with contextlib.ExitStack() as undo:
        undo.callback(foreign.down)
        reported, path = tmp_path / "answers.json", foreign.draft(tmp_path / "node.yaml")
        program = stand_in(
            tmp_path, ("Controller", "run"), IN_CONTROLLER.replace("{answers_file!r}", repr(str(reported)))
        )
        text = Path(program).read_text().replace("\nmodule = importlib", f"\n{RUN}\nmodule = importlib")
        Path(program).write_text(text)
        run = ["run", "--node", str(path), "--mode", "live", "--agent", "static-weights-9", "--seconds", "2", "--json"]
        done = subprocess.run(
            [program, "-m", "standing_in", *run], capture_output=True, text=True, check=False, timeout=200
        )
        assert done.returncode == 0, done.stderr
        answers = json.loads(reported.read_text())
        assert answers == dict.fromkeys(answers, DENIED)
        loop = json.loads(done.stdout)["loop"]
        assert loop["ticks"] > 100
        assert loop["failed_applies"] == 0
