"""A folder that only root can open: locks, and a second copy of every journal.

flock(2) needs no permission but to open what is locked: on a folder that others can open anybody could hold a lock and
keep controllers, and what restores, waiting for ever. The folder is gone after a reboot, as is all that it speaks of.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from slicepilot.controller.system.kernel_file import ActuatorError

FOR_ROOT = Path("/run/slicepilot-private")


def private_folder() -> Path:
    """The folder, made if need be; of a user that is not root one of its own.

    Raises:
        ActuatorError: it cannot be made, or belongs to somebody else, or others can open it.
    """
    user = os.geteuid()
    path = FOR_ROOT if user == 0 else Path(tempfile.gettempdir()) / f"slicepilot-private-{user}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise ActuatorError.of(f"{path}: make a folder for locks", error) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o077:
        raise ActuatorError(
            f"{path}: {stat.filemode(found.st_mode)} of user {found.st_uid}; accepted: a folder that only user {user} "
            "can open (remove it, and it is made)"
        )
    return path
