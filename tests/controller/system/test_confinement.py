"""Filters as the kernel runs them: what is on a list goes through, what is not does not, and no other ABI does."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slicepilot.controller.system.confinement import landlock, seccomp
from slicepilot.controller.system.confinement.calls import NEWEST, NUMBERS
from slicepilot.controller.system.confinement.rules import (
    CONTROLLER,
    PUBLISHER,
    SUPERVISOR,
    SUPERVISOR_OF_MAPS,
)
from slicepilot.controller.system.confinement.seccomp import (
    ALLOW,
    AUDIT_ARCH,
    ERRNO,
    KILL_PROCESS,
    Only,
    Rules,
    program,
)

RULES = {"controller": CONTROLLER, "publisher": PUBLISHER, "supervisor": SUPERVISOR, "of maps": SUPERVISOR_OF_MAPS}
EPERM, ENOSYS = ERRNO | 1, ERRNO | 38
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
needs_seccomp = pytest.mark.skipif(bool(seccomp.available()), reason=seccomp.available() or "none")
needs_landlock = pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")


def run(code: bytes, machine: str, number: int, arguments: tuple[int, ...] = (), arch: int | None = None) -> int:
    """What classic BPF makes of a call, by its definition (Documentation/networking/filter.rst)."""
    data = bytearray(64)
    data[0:4] = number.to_bytes(4, "little")
    data[4:8] = (AUDIT_ARCH[machine] if arch is None else arch).to_bytes(4, "little")
    for k, value in enumerate(arguments):
        data[16 + 8 * k : 24 + 8 * k] = value.to_bytes(8, "little")
    at, accumulator = 0, 0
    while True:
        step = code[8 * at : 8 * at + 8]
        operation, k = int.from_bytes(step[0:2], "little"), int.from_bytes(step[4:8], "little")
        if operation == 0x06:
            return k
        if operation == 0x20:
            accumulator = int.from_bytes(data[k : k + 4], "little")
        elif operation == 0x54:
            accumulator &= k
        else:
            taken = {0x15: accumulator == k, 0x25: accumulator > k, 0x35: accumulator >= k}[operation]
            at += step[2] if taken else step[3]
        at += 1


def wanted(rules: Rules, name: str, machine: str) -> int:
    if name == "clone3":
        return ENOSYS
    if name in rules.fatal:
        return KILL_PROCESS
    return ALLOW if name in rules.allowed else EPERM


@pytest.mark.parametrize("machine", list(AUDIT_ARCH))
@pytest.mark.parametrize("process", list(RULES))
def test_every_call_gets_what_the_rules_say(process: str, machine: str) -> None:
    rules, column = RULES[process], list(AUDIT_ARCH).index(machine)
    code = program(rules, machine)
    assert len(code) // 8 < 4096, "BPF_MAXINSNS"
    by_number = {pair[column]: name for name, pair in NUMBERS.items()}
    for number in range(NEWEST + 1):
        name = by_number.get(number, "")
        if name not in rules.conditions:
            assert run(code, machine, number) == wanted(rules, name, machine), name or number
    assert run(code, machine, NEWEST + 1) == ENOSYS, "libc does without what is newer"
    for name, only in rules.conditions.items():
        number = NUMBERS[name][column]
        if number is not None:
            before = (0,) * only.argument
            for value in (0, 1, 2, 4, 15, 7, 10, 16, 17, 0x10000, 0x40000000, 0x7E020000, 1 << 32):
                fine = value & 0xFFFFFFFF & only.mask in only.values
                assert run(code, machine, number, (*before, value)) == (ALLOW if fine else EPERM), (name, value)


@pytest.mark.parametrize("machine", list(AUDIT_ARCH))
def test_other_abis_end_the_process(machine: str) -> None:
    for rules in RULES.values():
        code = program(rules, machine)
        for arch in {0x40000003, 0x40000028, *AUDIT_ARCH.values()} - {AUDIT_ARCH[machine]}:  # i386, 32-bit Arm
            assert run(code, machine, 0, arch=arch) == KILL_PROCESS
        assert run(code, machine, 0x40000000 + 1) == KILL_PROCESS, "x32"


@pytest.mark.parametrize("process", list(RULES))
def test_rules_do_not_contradict_themselves(process: str) -> None:
    rules = RULES[process]
    names = rules.allowed | set(rules.conditions) | rules.fatal
    assert names <= set(NUMBERS)
    assert not rules.fatal & (rules.allowed | set(rules.conditions))
    assert {"read", "futex", "exit_group", "rt_sigreturn"} <= rules.allowed


def test_children_of_the_controller_have_what_they_need_on_top() -> None:
    """A filter is inherited: what the controller's refuses is refused to a supervisor that it starts later, too."""
    for rules in (PUBLISHER, SUPERVISOR, SUPERVISOR_OF_MAPS):
        assert rules.allowed <= CONTROLLER.allowed
        assert set(rules.conditions) <= CONTROLLER.allowed | set(CONTROLLER.conditions)


@pytest.mark.parametrize("machine", list(HEADERS))
def test_numbers_are_the_kernels(machine: str) -> None:
    if not HEADERS[machine].exists():
        pytest.skip("needs the kernel's headers: linux-libc-dev")
    options = ["-D__BITS_PER_LONG=64", "-D__ARCH_WANT_RENAMEAT", "-D__ARCH_WANT_SET_GET_RLIMIT"]
    options += ["-D__ARCH_WANT_NEW_STAT", "-D__ARCH_WANT_SYS_CLONE3"]
    done = subprocess.run(
        ["clang", "-E", "-dM", *options, "-x", "c", str(HEADERS[machine])], capture_output=True, text=True, check=True
    )
    defined = dict(re.findall(r"^#define (__NR\w+) (\S+)$", done.stdout, re.MULTILINE))

    def number(name: str) -> int | None:
        value = defined.get(f"__NR_{name}")
        while value in defined:
            value = defined[value]
        return None if value is None else int(value)

    column = list(AUDIT_ARCH).index(machine)
    assert {name: pair[column] for name, pair in NUMBERS.items()} == {name: number(name) for name in NUMBERS}


# -- on this kernel ----------------------------------------------------------------------------------------------------

TRY = """
import ctypes, errno, json, os, sys, threading
from slicepilot.controller.system.confinement import seccomp
from slicepilot.controller.system.confinement.seccomp import Only, Rules
from slicepilot.controller.system.confinement.calls import NUMBERS
column = list(seccomp.AUDIT_ARCH).index(os.uname().machine)
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    result = libc.syscall(NUMBERS[name][column], *arguments)
    return 0 if result >= 0 else ctypes.get_errno()
go, answers = threading.Event(), []
def other():
    go.wait()
    answers.append(call("chroot", b"/"))
thread = threading.Thread(target=other)
thread.start()
"""


def attempt(code: str) -> tuple[int, Any]:
    """Exit status and what it prints, of a process that runs after `TRY`."""
    done = subprocess.run([sys.executable, "-c", TRY + code], capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr


@needs_seccomp
def test_threads_that_there_are_follow() -> None:
    code, answer = attempt(
        "from slicepilot.controller.system.confinement.rules import SUPERVISOR\n"
        "before = call('chroot', b'/')\nseccomp.install(SUPERVISOR)\ngo.set()\nthread.join()\n"
        "print(json.dumps([before, call('chroot', b'/'), *answers, call('getpid')]))"
    )
    before = 0 if os.geteuid() == 0 else 1
    assert (code, answer) == (0, [before, 1, 1, 0])


@needs_seccomp
@pytest.mark.skipif(platform.machine() != "x86_64", reason="x32 is x86-64's")
def test_the_second_abi_of_x86_64_ends_a_process() -> None:
    code, _ = attempt(
        "from slicepilot.controller.system.confinement.rules import SUPERVISOR\n"
        "seccomp.install(SUPERVISOR)\ngo.set()\nlibc.syscall(0x40000000 + 39)\nprint('[]')"
    )
    assert code == -31, "SIGSYS"


@needs_landlock
def test_landlock_leaves_what_it_was_told(tmp_path: Path) -> None:
    for name in ("read", "written", "neither"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    code = (
        "import errno, json, os, socket, sys\nfrom pathlib import Path\n"
        "from slicepilot.controller.system.confinement import landlock\n"
        "base = Path(sys.argv[1])\nlistener = socket.create_server(('127.0.0.1', 0))\n"
        "landlock.restrict([base / 'read', base / 'gone'], [base / 'written'])\n"
        "def tried(action):\n"
        "    try:\n        action()\n        return 0\n"
        "    except OSError as error:\n        return error.errno\n"
        "print(json.dumps([\n"
        " tried(lambda: (base / 'read/file').read_text()), tried(lambda: (base / 'read/file').write_text('x')),\n"
        " tried(lambda: (base / 'written/new').write_text('x')),\n"
        " tried(lambda: (base / 'written/new').rename(base / 'written/other')),\n"
        " tried(lambda: (base / 'written/other').unlink()), tried(lambda: (base / 'neither/file').read_text()),\n"
        " tried(lambda: (base / 'neither/file').unlink()), tried(lambda: os.execv('/bin/true', ['true'])),\n"
        " tried(lambda: os.stat(f'/proc/{os.getppid()}/ns/net')),\n"
        " tried(lambda: socket.create_connection(listener.getsockname())),\n]))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    denied = 13
    network = denied if landlock.version() >= 4 else 0
    # The last but one is why controller and supervisor, which find UPFs that way, are not under Landlock.
    assert json.loads(done.stdout) == [0, denied, 0, 0, 0, denied, denied, denied, denied, network]
    assert (tmp_path / "neither" / "file").exists()


@pytest.mark.parametrize("interface", range(8))
def test_no_kernel_is_asked_for_more_than_it_knows(interface: int) -> None:
    files, network, scopes = landlock.handled(interface)
    assert files.bit_length() == {0: 0, 1: 13, 2: 14, 3: 15, 4: 15}.get(interface, 16)
    assert bool(network) == (interface >= 4)
    assert bool(scopes) == (interface >= 6)


def test_a_processor_without_a_list_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert seccomp.available() == "no list of system calls for riscv64"
    with pytest.raises(seccomp.NoSeccompError, match="riscv64"):
        seccomp.install(Rules(frozenset(), {"socket": Only(0, (1,))}))
