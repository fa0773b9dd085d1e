"""What an agent does first where it runs in a container: it becomes able to say what the node's files and groups are.

None of it does anything to an agent that runs on the node itself.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from importlib import metadata
from pathlib import Path

from slicepilot.configs import FailureError
from slicepilot.controller.system.bpf.libc import call
from slicepilot.controller.watchdog.lock import FOR_ROOT

CLONE_NEWCGROUP = 0x02000000
"""linux/sched.h"""
COMPILED = "compiled"
CACHE = "NUMBA_CACHE_DIR"
FIRST = Path("/proc/1/ns/cgroup")
OWN = Path("/proc/thread-self/ns/cgroup")


def prepare(state_root: Path) -> None:
    """Before any thread is started.

    Args:
        state_root: outlives the container.

    Raises:
        FailureError: names what could not be had.
    """
    enter_cgroup_namespace()
    close_to_others(FOR_ROOT)
    keep_compiled(state_root)


def enter_cgroup_namespace(first: Path = FIRST) -> bool:
    """Enter the cgroup namespace of the first process that is seen; returns whether it was another namespace.

    With cgroup version 2 a container has a namespace of its own, in which /proc/PID/cgroup of the node's processes is
    given relative to the container's group (cgroup_namespaces(7)): such paths lead nowhere below the node's
    /sys/fs/cgroup. In the node's PID namespace the first process is the node's init; in any other it is ours,
    and there is nothing to enter.

    Raises:
        FailureError: it may not be entered (CAP_SYS_ADMIN, and CAP_SYS_PTRACE to look).
    """
    try:
        descriptor = os.open(first, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # a kernel without them
        return False
    except OSError as error:
        raise FailureError(f"{first}: {error.strerror}; needed: CAP_SYS_PTRACE") from error
    try:
        if os.fstat(descriptor).st_ino == OWN.stat().st_ino:
            return False
        call("setns", descriptor, CLONE_NEWCGROUP)
    except OSError as error:
        raise FailureError(f"enter {first}: {error.strerror}; needed: CAP_SYS_ADMIN") from error
    finally:
        os.close(descriptor)
    return True


def close_to_others(folder: Path) -> None:
    """Shut a folder of root's that others may look into, and nobody else may write into.

    The kubelet makes folders of the node with mode 0755 (hostPath, DirectoryOrCreate), and the folder of locks is for
    root alone (`slicepilot.controller.watchdog.lock`). Any other folder is left as it is.
    """
    try:
        result = folder.lstat()
        if stat.S_ISDIR(result.st_mode) and result.st_uid == os.geteuid() and not result.st_mode & 0o022:
            folder.chmod(0o700)
    except OSError:  # not there, or on a file system that is not for writing
        return


def keep_compiled(state_root: Path) -> None:
    """Have loops keep what numba compiles on the node, where the image is not for writing: half a minute of CPU time.

    numba knows a function by its file's time and size, and files of an image may have the same time and size in each
    version. So each version has a folder of its own, by the digest of what was installed; those of others are removed.

    Raises:
        FailureError: the folder cannot be made.
    """
    try:
        record = metadata.distribution("slicepilot").read_text("RECORD") or ""
    except metadata.PackageNotFoundError:
        return
    package = Path(__file__).parents[2]
    if os.access(package, os.W_OK) or os.environ.get(CACHE):
        return
    folder = state_root / COMPILED / hashlib.sha256(record.encode()).hexdigest()[:16]
    try:
        state_root.mkdir(mode=0o755, parents=True, exist_ok=True)
        for item in (folder.parent, folder):
            item.mkdir(mode=0o700, exist_ok=True)
            item.chmod(0o700)
        for other in folder.parent.iterdir():
            if other != folder:
                shutil.rmtree(other, ignore_errors=True)
    except OSError as error:
        raise FailureError(f"{folder}: {error.strerror or error}") from error
    os.environ[CACHE] = str(folder)
