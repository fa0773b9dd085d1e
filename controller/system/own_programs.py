"""Processes of our own: started so that only what was meant to be imported is imported.

Python looks for modules in the working folder (``-m``, ``-c``) and where PYTHONPATH says, the dynamic linker where
LD_PRELOAD and LD_LIBRARY_PATH say. Whoever may write into the folder that root happens to be in must not become root.
"""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from slicepilot.configs import ConfigError

ROOT = Path(__file__).parents[3]
"""Where `slicepilot` is, however it was installed."""

CODE_FOLDERS = (
    *("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "MPLCONFIGDIR"),
    *("PYTHONUSERBASE", "PYTHONPYCACHEPREFIX", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"),
)
"""Variables with a folder from which Python, numba, matplotlib or torch take code, or settings that name code."""
CODE_PATHS = ("PYTHONPATH",)
TEMPORARY = "TMPDIR"

# What a process of ours may know of its starter's environment. No variable that Python, the dynamic linker or a library
# of ours takes code from, but for what numba has compiled: see `check_environment`.
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
    """Environment of a process that this program starts: locale and similar settings, and the path of `slicepilot`.

    All threads, Arrow's included, share one heap, and large blocks are allocated outside of it: otherwise the process
    would keep memory that it has freed (mallopt(3), M_ARENA_MAX and M_MMAP_THRESHOLD).
    """
    kept = {key: value for key, value in of.items() if key in _KEPT or key.startswith("LC_")}
    return kept | {"PYTHONPATH": str(ROOT)} | _LEAN


def check_environment() -> None:
    """Refuse, as root, folders in the environment that code or settings are taken from and that others may change.

    All parent folders are checked as well, since a user who may rename a parent folder can replace it. The variables
    are set to the resolved paths, so that later changes of links do not matter. A HOME of another user, as ``sudo -E``
    leaves it, is replaced by root's.

    Raises:
        ConfigError: names variable, folder and owner.
    """
    if os.geteuid() != 0:
        return
    for name in (*CODE_FOLDERS, *CODE_PATHS, TEMPORARY):
        if given := os.environ.get(name):
            folders = given.split(os.pathsep) if name in CODE_PATHS else [given]
            os.environ[name] = os.pathsep.join(_safe(name, folder) for folder in folders if folder)
    home = Path(os.environ.get("HOME") or "/")
    if home.exists() and _changeable(home.resolve()) is not None:
        os.environ["HOME"] = pwd.getpwuid(0).pw_dir


def _safe(name: str, given: str) -> str:
    """The real path of a folder that only root may change; raises ConfigError for any other."""
    accepted = "a folder of root's that no other user may write into"
    path = Path(given).absolute()
    if not path.exists() and name in CODE_FOLDERS:
        # Otherwise another user could make it, and own it.
        try:
            path.mkdir(mode=0o700, parents=True)
        except OSError as error:
            raise ConfigError(f"{name} = {given!r}: {error.strerror}; expected {accepted}") from None
    real = path.resolve()
    if (folder := _changeable(real, shared=name == TEMPORARY)) is None:
        return str(real)
    result = folder.stat()
    where = "" if folder == real else f"{folder}: "
    mode = stat.filemode(result.st_mode)
    raise ConfigError(f"{name} = {given!r}: {where}user {result.st_uid}, {mode}; expected {accepted}")


def _changeable(real: Path, shared: bool = False) -> Path | None:
    """The first of a folder and those above it, from the top, that others than root may change; None: there is none.

    Args:
        real: a path without links.
        shared: whether others may write into the last folder, if they can only remove what is theirs, as in /tmp.
    """
    for folder in (*reversed(real.parents), real):
        try:
            result = folder.stat()
        except OSError:
            return None  # nobody but root can make it, for what is above belongs to root
        open_to_all = result.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        sticky = result.st_mode & stat.S_ISVTX and (shared or folder != real)
        if result.st_uid != 0 or (open_to_all and not sticky):
            return folder
    return None
