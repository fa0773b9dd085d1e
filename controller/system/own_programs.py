"""Processes of our own: started so that only what was meant to be imported is imported.

Python looks for modules in the working folder (``-m``, ``-c``) and where PYTHONPATH says, the dynamic linker where
LD_PRELOAD and LD_LIBRARY_PATH say. Whoever may write into the folder that root happens to be in must not become root.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from slicepilot.configs import ConfigError

ROOT = Path(__file__).parents[3]
"""Where `slicepilot` is, however it was installed."""

# What a process of ours may know of its starter's environment. No variable that Python, the dynamic linker or a library
# of ours takes code from, but for what numba has compiled: see `check_compiled`.
_KEPT = frozenset(
    {
        *("HOME", "LANG", "LANGUAGE", "PATH", "TERM", "TZ", "TMPDIR", "COLUMNS", "NO_COLOR"),
        *("NUMBA_CACHE_DIR", "NUMBA_DISABLE_JIT", "XDG_CACHE_HOME"),
        *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONDONTWRITEBYTECODE"),
    }
)

_LEAN = {
    "MALLOC_ARENA_MAX": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "SLICEPILOT_WITHOUT_GYMNASIUM": "1",
}


def python(module: str, *options: str) -> list[str]:
    """Command of a module of ours, for `subprocess.Popen` with `environment` and ``cwd="/"``; arguments follow."""
    return [sys.executable, "-s", "-P", *options, "-m", module]


def start(
    module: str,
    *arguments: str,
    options: Sequence[str] = (),
    fds: Iterable[int] = (),
    stdout: int | None = None,
    stderr: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start a module of ours in a session of its own, because Ctrl-C is for this process; raises OSError.

    Args:
        module: by its full name; arguments: of its own.
        options: of Python.
        fds: descriptors that it inherits.
        stdout, stderr: as for `subprocess.Popen`.
    """
    return subprocess.Popen(
        [*python(module, *options), *arguments],
        stdin=subprocess.DEVNULL,
        cwd="/",
        env=environment(),
        start_new_session=True,
        pass_fds=tuple(fds),
        stdout=stdout,
        stderr=stderr,
    )


def environment(of: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What a process of ours is started with: plain settings of the starter's, and where `slicepilot` is.

    All threads have one heap, also Arrow's, and large blocks are none of it: both would keep what is given back
    (mallopt(3), M_ARENA_MAX and M_MMAP_THRESHOLD).
    """
    kept = {key: value for key, value in of.items() if key in _KEPT or key.startswith("LC_")}
    return kept | {"PYTHONPATH": str(ROOT)} | _LEAN


def check_compiled() -> None:
    """Refuse, as root, a folder of compiled code (NUMBA_CACHE_DIR) that others may write into: it runs what it finds.

    Raises:
        ConfigError: names folder and owner.
    """
    named = os.environ.get("NUMBA_CACHE_DIR")
    if not named or os.geteuid() != 0:
        return
    accepted = "a folder of root's that nobody else may write into"
    try:
        result = Path(named).stat()
    except OSError:
        return  # made by ourselves
    if result.st_uid != 0 or result.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.filemode(result.st_mode)
        raise ConfigError(f"NUMBA_CACHE_DIR = {named!r}: user {result.st_uid}, {mode}; expected {accepted}")
