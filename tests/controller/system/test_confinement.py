"""Seccomp filters: calls that the rules refuse are refused, all others pass, and no other ABI is allowed."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from slicepilot.controller.system import confinement
from slicepilot.controller.system.confinement import (
    ALLOW,
    AUDIT_ARCH,
    CONTROLLER,
    ERRNO,
    KILL_PROCESS,
    NEWEST,
    NUMBERS,
    PUBLISHER,
    SUPERVISOR,
    SUPERVISOR_OF_MAPS,
    NotConfinedError,
    filter_calls,
    handled,
    program,
    without_seccomp,
)

RULES = {"controller": CONTROLLER, "publisher": PUBLISHER, "supervisor": SUPERVISOR, "of maps": SUPERVISOR_OF_MAPS}
EPERM, ENOSYS = ERRNO | 1, ERRNO | 38
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
needs_seccomp = pytest.mark.skipif(bool(without_seccomp()), reason=without_seccomp() or "none")


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


@pytest.mark.parametrize("machine", list(AUDIT_ARCH))
@pytest.mark.parametrize("process", list(RULES))
def test_every_call_gets_what_the_rules_say(process: str, machine: str) -> None:
    rules, code = RULES[process], program(RULES[process], machine)
    assert rules.refused | rules.fatal | set(rules.conditions) <= NUMBERS["x86_64"].keys()
    wanted = dict.fromkeys(rules.refused, EPERM) | dict.fromkeys(rules.fatal, KILL_PROCESS) | {"clone3": ENOSYS}
    by_number = {number: name for name, number in NUMBERS[machine].items() if name not in rules.conditions}
    for number in set(range(NEWEST + 1)) - {NUMBERS[machine][name] for name in rules.conditions}:
        assert run(code, machine, number) == wanted.get(by_number.get(number, ""), ALLOW), by_number.get(number)
    assert run(code, machine, NEWEST + 1) == ENOSYS, "libc does without what is newer"
    for name, only in rules.conditions.items():
        for value in (0, 1, 2, 4, 15, 7, 10, 16, 17, 0x10000, 0x40000000, 0x7E020000, 1 << 32):
            fine = value & 0xFFFFFFFF & only.mask in only.values
            arguments = (*(0,) * only.argument, value)
            assert run(code, machine, NUMBERS[machine][name], arguments) == (ALLOW if fine else EPERM), (name, value)
    for arch in {0x40000003, 0x40000028, *AUDIT_ARCH.values()} - {AUDIT_ARCH[machine]}:  # i386, 32-bit Arm
        assert run(code, machine, 0, arch=arch) == KILL_PROCESS
    assert run(code, machine, 0x40000000 + 1) == KILL_PROCESS, "x32"


def test_what_the_controller_may_not_do_nobody_may() -> None:
    """A filter is inherited, and those of its children come on top."""
    for rules in RULES.values():
        assert CONTROLLER.refused <= rules.refused | rules.fatal
        assert not rules.refused & rules.fatal
        assert not set(rules.conditions) & (rules.refused | rules.fatal)


@pytest.mark.parametrize("machine", list(HEADERS))
def test_numbers_are_the_kernels(machine: str) -> None:
    if not HEADERS[machine].exists():
        pytest.skip("needs the kernel's headers: linux-libc-dev")
    options = ["-D__BITS_PER_LONG=64", "-D__ARCH_WANT_SYS_CLONE3", "-x", "c", str(HEADERS[machine])]
    done = subprocess.run(["clang", "-E", "-dM", *options], capture_output=True, text=True, check=True)
    defined = dict(re.findall(r"^#define __NR_(\w+) (\d+)$", done.stdout, re.MULTILINE))
    names = NUMBERS["x86_64"].keys()
    assert NUMBERS[machine] == {name: int(defined[name]) for name in names if name in defined}


# -- on this kernel ----------------------------------------------------------------------------------------------------

FOLLOW = """
import ctypes, json, os, threading
from slicepilot.controller.system.confinement import NUMBERS, SUPERVISOR, filter_calls
libc = ctypes.CDLL(None, use_errno=True)
def chroot():
    number = NUMBERS[os.uname().machine]["chroot"]
    return 0 if libc.syscall(number, b"/") >= 0 else ctypes.get_errno()
go, answers = threading.Event(), []
thread = threading.Thread(target=lambda: go.wait() and answers.append(chroot()))
thread.start()
before = chroot()
filter_calls(SUPERVISOR)
go.set()
thread.join()
print(json.dumps([before, chroot(), *answers]), flush=True)
libc.syscall(0x40000000 + 39)
"""


@needs_seccomp
def test_threads_that_there_are_follow_and_the_second_abi_of_x86_64_ends_a_process() -> None:
    done = subprocess.run([sys.executable, "-c", FOLLOW], capture_output=True, text=True, check=False, timeout=60)
    assert json.loads(done.stdout) == [0 if os.geteuid() == 0 else 1, 1, 1], done.stderr
    assert done.returncode == (-31 if platform.machine() == "x86_64" else 0), "SIGSYS"


def test_no_kernel_is_given_flags_that_it_does_not_know() -> None:
    for interface in range(8):
        files, network, scopes = handled(interface)
        assert files.bit_length() == {0: 0, 1: 13, 2: 14, 3: 15, 4: 15}.get(interface, 16)
        assert (bool(network), bool(scopes)) == (interface >= 4, interface >= 6)


def test_a_processor_without_a_list_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert without_seccomp() == "no list of system calls for riscv64"
    with pytest.raises(NotConfinedError, match="riscv64"):
        filter_calls(CONTROLLER)
    assert confinement.confine_controller() == "NOT CONFINED (no list of system calls for riscv64)"
