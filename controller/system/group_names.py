"""Names of cgroups that can be believed: those that root has given."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from .cgroup_mounts import cgroup_mounts

ROOT = 0
OTHERS_WRITE = 0o022


class GroupFolders:
    """Whose the folders of groups are, as they are found; for one picture of the machine.

    A subtree that is delegated (cgroups(7), "Delegation"; a user's systemd has one) is its user's, who gives the groups
    below it any name: that of a unit, or of a container's scope.
    """

    def __init__(self) -> None:
        self._mounts = cgroup_mounts()
        self._roots: dict[Path, bool] = {}

    def names(self, groups: Iterable[tuple[str, str]]) -> frozenset[str]:
        """Names of a process's groups, each from the root down, as far as root has given them.

        Args:
            groups: (controllers, path) of each hierarchy.
        """
        result: set[str] = set()
        for controllers, path in groups:
            folder = next((mount.root for mount in self._mounts if mount.is_named(controllers)), None)
            for part in path.split("/"):
                if not part:
                    continue
                if folder is None or not self._is_roots(folder):
                    break
                result.add(part)
                folder /= part
        return frozenset(result)

    def _is_roots(self, folder: Path) -> bool:
        """Whether nobody else can make groups in it."""
        known = self._roots.get(folder)
        if known is None:
            try:
                status = folder.stat()
            except OSError:
                return False
            known = self._roots[folder] = status.st_uid == ROOT and not status.st_mode & OTHERS_WRITE
        return known
