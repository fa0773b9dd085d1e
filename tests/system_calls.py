"""Which system calls the processes of a controller make once they are confined: what their allow-lists are made of.

    python tests/system_calls.py [PYTEST_ARGUMENTS]

runs tests, as root and with bpftrace(8) installed, and prints for each kind of process the calls that its rules lack,
those that they have and that nobody made, and with which arguments those came whose arguments the rules look at.
Without arguments it runs the tests in which controllers, supervisors and publishers are real.

Meanwhile filters let everything through: in a mount namespace of its own another ``rules.py`` lies over the shipped
one. What a process does before its own filter does not count; what one does that a controller under its filter has
started counts as the controller's, until it has a filter of its own. What only happens on another processor, with
another libc, or in an error that no test provokes is not seen: read what is unused before it goes.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

from slicepilot.controller.system.confinement import rules as shipped
from slicepilot.controller.system.confinement.calls import NUMBERS

RULES = {"controller": shipped.CONTROLLER, "publisher": shipped.PUBLISHER, "supervisor": shipped.SUPERVISOR}
TESTS = (
    *("tests/controller/publisher", "tests/controller/watchdog", "tests/testbed/operation/test_controller.py"),
    *("tests/testbed/operation/test_faults.py", "tests/node/test_faults.py", "tests/node/test_foreign.py"),
)
HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
PERMISSIVE = """\
from .seccomp import ALLOW, Rules

CONTROLLER = PUBLISHER = SUPERVISOR = Rules(frozenset(), {}, otherwise=ALLOW)
"""
PROBES = """\
tracepoint:syscalls:sys_enter_execve { printf("exec %d ", pid); join(args->argv); }
tracepoint:syscalls:sys_exit_seccomp /args->ret == 0/ { printf("filter %d\\n", pid); @under[pid] = 1; @own[pid] = 1; }
tracepoint:sched:sched_process_fork /@under[pid]/ { @under[args->child_pid] = 1; }
tracepoint:raw_syscalls:sys_enter /@under[pid]/ { @calls[pid, @own[pid], args->id] = count(); }
"""
ARGUMENTS = {
    "clone": "args->clone_flags & 0x7e030000",
    "ioctl": "args->cmd",
    "madvise": "args->behavior",
    "mmap": "args->prot & 4",
    "mprotect": "args->prot & 4",
    "prctl": "args->option",
    "setns": "args->flags",
    "socket": "args->family",
    "fcntl": "args->cmd",
}
COUNT = re.compile(r"^@(\w+)\[(\d+), (\d+), (-?\d+)\]: (\d+)$", re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    given, tests = parser.parse_known_args()
    if given.inside is not None:
        return _inside(given.inside, tests or TESTS)
    with tempfile.TemporaryDirectory() as folder:
        again = [sys.executable, __file__, "--inside", folder, *tests]
        code = subprocess.run(["unshare", "--mount", *again], check=False).returncode
        _report((Path(folder) / "out").read_text())
    return code


def _inside(folder: Path, tests: tuple[str, ...] | list[str]) -> int:
    """In a mount namespace of its own."""
    permissive, script, out = folder / "rules.py", folder / "probes.bt", folder / "out"
    permissive.write_text(PERMISSIVE)
    more = (
        f"tracepoint:syscalls:sys_enter_{name} /@under[pid]/ {{ @{name}[pid, @own[pid], {what}] = count(); }}\n"
        for name, what in ARGUMENTS.items()
    )
    script.write_text(PROBES + "".join(more))
    subprocess.run(["mount", "-t", "tracefs", "tracefs", "/sys/kernel/tracing"], check=True)
    subprocess.run(["mount", "--bind", str(permissive), str(Path(shipped.__file__))], check=True)
    settings = os.environ | {"BPFTRACE_MAP_KEYS_MAX": "65536", "BPFTRACE_STRLEN": "150"}
    trace = ["bpftrace", "-o", str(out), str(script)]
    with subprocess.Popen(trace, env=settings) as tracer:
        while "Attaching" not in (out.read_text() if out.exists() else ""):
            assert tracer.poll() is None, "bpftrace does not start"
            time.sleep(0.1)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
        code = subprocess.run(command, check=False, env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}).returncode
        tracer.terminate()
    return code


def _report(text: str) -> None:
    kinds, last = dict[int, str](), dict[int, str]()
    for line in text.splitlines():
        if found := re.match(r"(exec|filter) (\d+) ?(.*)", line):
            event, pid, words = found[1], int(found[2]), found[3]
            if event == "exec":
                last[pid] = words
            else:
                program = last.get(pid, "")
                kinds[pid] = next((kind for kind in ("supervisor", "publisher") if f".{kind}" in program), "controller")
    names = {int(n): name for name, n in re.findall(r"#define __NR_(\w+) (\d+)", HEADER.read_text())}
    calls: dict[str, Counter[str]] = defaultdict(Counter)
    arguments: dict[str, Counter[str]] = defaultdict(Counter)
    for what, pid, own, value, count in COUNT.findall(text):
        kind = kinds.get(int(pid), "controller") if own == "1" else "controller"
        if what == "calls":
            calls[kind][names.get(int(value), value)] += int(count)
        else:
            arguments[kind][f"{what} {int(value):#x}"] += int(count)
    for kind, rules in RULES.items():
        called, known = set(calls[kind]), rules.allowed | set(rules.conditions)
        print(f"\n{kind}: {sum(calls[kind].values())} calls of {len(called)} kinds")
        print("  lacking:", *sorted(called - known))
        print("  unused:", *sorted((known - called) & {name for name, pair in NUMBERS.items() if pair[0] is not None}))
        for shape, number in sorted(arguments[kind].items()):
            print(f"    {number:8} {shape}")


if __name__ == "__main__":
    sys.exit(main())
