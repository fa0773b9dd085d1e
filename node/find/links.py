"""A name for each UPF's namespace and cgroup that stays while the UPF restarts, moves or is made anew.

Probe, actuators and supervisor know a slice by two paths, notice when something else is behind them, and take that up.
Of a UPF that somebody else starts these paths change (``/proc/PID/ns/net``), so they are given links, which follow it.
Only root can look into the folder, which has to outlive a container: a later restore finds groups by them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from slicepilot.controller.system.processes import start_ticks
from slicepilot.controller.watchdog.lock import private_folder

PREFIX = "slicepilot-upfs-"
NOWHERE = Path("/nonexistent")


class UpfLinks:
    """Links for slices by name, in a folder that `close` removes, or else the next process that makes such a folder.

    Args:
        parent: of that folder; None: the folder of locks.
    """

    def __init__(self, parent: Path | None = None) -> None:
        parent = parent or private_folder()
        for left in parent.glob(f"{PREFIX}*"):
            owner = left.name.removeprefix(PREFIX).partition("-")[0]
            if owner.isdecimal() and start_ticks(int(owner)) is None:
                shutil.rmtree(left, ignore_errors=True)
        self.folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent))

    def netns(self, name: str) -> Path:
        """The link to a slice's network namespace."""
        return self.folder / f"{name}.netns"

    def cgroup(self, name: str) -> Path:
        """The link to a slice's CPU cgroup."""
        return self.folder / f"{name}.cgroup"

    def lead_to(self, name: str, netns: Path, group: Path | None) -> None:
        """Have a slice's links lead there from now on; an open in between gets the old or the new target."""
        _replace(self.netns(name), netns)
        _replace(self.cgroup(name), group or NOWHERE)

    def lead_into(self, name: str, netns: Path) -> None:
        """Have the link of its namespace lead there by another file."""
        _replace(self.netns(name), netns)

    def close(self) -> None:
        """Remove them; more than once does nothing."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _replace(link: Path, target: Path) -> None:
    fresh = link.with_name(f"{link.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(link)
