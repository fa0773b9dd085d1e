"""Ownership of paths: another user must not be able to redirect what we write.

Commands take some paths from the folder they are started in. Root may be started in any user's folder.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from .errors import ConfigError


def check_own(path: Path, what: str, instead: str, shared: bool = True) -> None:
    """Refuse a path that another user controls, before anything is written to it.

    The existing parts of the path must belong to this user or root, and nobody else may write to them. For root that
    includes all folders above and links on the way; the caller of sudo counts as root. For other users the owner of the
    working folder is not checked. Folders with the sticky bit, such as /tmp, are accepted on the way.

    Args:
        path: of a default, below the working folder.
        what: begins errors, such as ``results = 'reports': ``.
        instead: ends errors: what to write.
        shared: whether the path may be in a sticky folder itself.

    Raises:
        ConfigError: names the first part of the path that is not ours.
    """
    here = Path.cwd()
    _check(here / path, here, shared, what, f"; expected {_OURS}; {instead}")


_OURS = "a path that nobody else can change"


def _check(path: Path, here: Path, shared: bool, before: str, after: str) -> None:
    root, user = os.geteuid() == 0, os.geteuid()
    users, groups = {0, user}, {0}
    if root:
        users |= _number("SUDO_UID")
        groups |= _number("SUDO_GID")
    for part in [*reversed(path.parents), path]:
        if not root and part in here.parents:
            continue
        try:
            status = part.lstat()
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigError(f"{before}{part}: {error.strerror}{after}") from error
        if status.st_uid not in users and (root or part != here):
            raise ConfigError(f"{before}{part} belongs to user {status.st_uid}{after}")
        if stat.S_ISLNK(status.st_mode):
            _check(Path(os.path.realpath(part)), here, shared, before, after)
            continue
        open_to_all = bool(status.st_mode & stat.S_IWOTH)
        open_to_group = root and bool(status.st_mode & stat.S_IWGRP) and status.st_gid not in groups
        if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX and (shared or part != path.parent):
            continue
        if open_to_all or open_to_group:
            others = "everybody" if open_to_all else f"group {status.st_gid}"
            raise ConfigError(f"{before}{part} can be written by {others}{after}")


def _number(variable: str) -> set[int]:
    text = os.environ.get(variable, "")
    return {int(text)} if text.isascii() and text.isdecimal() else set()
