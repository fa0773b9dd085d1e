"""Running code as an unprivileged user of this machine, who may not be able to reach our interpreter."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

NOBODY = 65534
_START = """
import fcntl, json, os, resource, shutil, socket, sys, time
os.setgroups([])
os.setresgid(*[{gid}] * 3)
os.setresuid(*[{uid}] * 3)
"""


def start(code: str, *arguments: object, gid: int = NOBODY) -> subprocess.Popen[str]:
    """Python as nobody, in one group, with a pipe from standard output."""
    text = _START.format(gid=gid, uid=NOBODY) + code
    command = [sys.executable, "-I", "-c", text, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd="/")


HOLD = """
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(600)
"""
"""Locks a path, if he can open it."""


@contextlib.contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Inside, a folder that anybody can open is locked by nobody."""
    for path in (folder, *folder.parents):
        if path.stat().st_uid == 0 and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o005)
    with start(HOLD, folder) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield
        finally:
            process.kill()
