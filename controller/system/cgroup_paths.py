"""CPU cgroups by path: the groups of processes and pods, groups below others, and names that root has given."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from .bpf.errors import ProbeError
from .cgroup import cgroup_mounts
from .kernel_file import kernel_lines

POD = re.compile(r"(?:(?:[\w.:-]+-)?kubepods-(?:[a-z]+-)?)?pod[0-9a-f_-]+(?:\.slice)?")
"""Names that cgroupfs and systemd drivers give a pod's group (kubernetes, pkg/kubelet/cm, ``GetPodContainerName``).

A kubelet with ``--cgroup-root``, as in kind, has its groups below others, and systemd writes these into a slice's name:
kubelet-kubepods-burstable-podUID.slice (systemd.slice(5)).
"""
PODS = re.compile(r"kubepods(?:\.slice)?|[\w.:-]+-kubepods\.slice")
"""Names that the same drivers give the group of all pods."""
NOT_YET = Path("/nonexistent/made-when-control-begins")
"""Target of a link to a group that is made when control begins, until then."""
ROOT, OTHERS_WRITE = 0, 0o022
NO_FOLDERS = 2  # links of a folder without others in it


def awaited(group: Path) -> bool:
    """Whether a path is that of a group that is made when control begins (`own_groups`)."""
    try:
        return group.readlink() == NOT_YET
    except OSError:  # no link
        return False


def ids(group: Path) -> Iterator[int]:
    """Kernfs ids (inode numbers) of a group and all groups below it; raises ProbeError where there is none."""
    try:
        yield group.stat().st_ino
    except OSError as error:
        # Where a link to it leads: the link itself is of no use to an operator.
        raise ProbeError(f"{os.path.realpath(group)}: no such cgroup") from error
    try:
        for _, identity in below(group):
            yield identity
    except OSError as error:
        raise ProbeError(f"{os.path.realpath(group)}: groups below it: {error.strerror}") from error


def below(group: Path, depth: int | None = None) -> Iterator[tuple[Path, int]]:
    """Groups below a group with their ids, each before those below itself; down to a depth, 1 for its own alone.

    Whoever has a subtree nests as many as he likes: nothing here calls itself. A folder has a link for each folder in
    it (kernfs counts them), and a folder that has none is not opened: it has dozens of files. Raises OSError for a
    folder that cannot be looked into, and passes over those that have gone.
    """
    waiting = [(group, 1)]
    while waiting:
        folder, level = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if not entry.is_dir(follow_symlinks=False):
                        continue
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:  # gone meanwhile
                        continue
                    yield Path(entry.path), status.st_ino
                    if status.st_nlink != NO_FOLDERS and level != depth:
                        waiting.append((Path(entry.path), level + 1))
        except FileNotFoundError:
            continue


def unified(group: Path) -> bool:
    """Whether it is a group of version 2."""
    return (group / "cgroup.controllers").exists()


def managers(group: Path) -> list[str]:
    """Other programs that write a group's files, recognised by the names of groups; links are followed."""
    parts = group.resolve().parts
    result = []
    if any(PODS.fullmatch(part) for part in parts):
        result.append("the kubelet")
    if "docker" in parts or any(part.startswith("docker-") for part in parts):
        result.append("Docker")
    if any(part.startswith("libpod") for part in parts):
        result.append("Podman")
    if any(part.endswith((".service", ".scope", ".slice")) for part in parts):
        result.append("systemd")
    return result


def pod_of(group: Path) -> Path | None:
    """The group of its pod, of a container's group that the kubelet has made, by either driver; links are followed."""
    above = group.resolve().parent
    made = any(PODS.fullmatch(part) for part in above.parts)
    return above if made and POD.fullmatch(above.name) else None


def groups_of(pid: int, errors: str = "surrogateescape") -> list[tuple[str, str]]:
    """(controllers, path) of a process in every hierarchy (cgroups(7)); ``errors`` as for `kernel_lines`.

    Raises:
        OSError: it has ended, or may not be looked at.
    """
    lines = kernel_lines(Path(f"/proc/{pid}/cgroup"), errors)
    return [(words[1], words[2]) for line in lines if len(words := line.split(":", 2)) == 3]


def of_process(pid: int) -> Path | None:
    """The group that the CPU controller charges a process to; None for the root group, which everything is in.

    Version 1 where the controller is mounted there, else version 2 (cgroups(7)). Raises FileNotFoundError for a process
    that has ended.
    """
    mounts = cgroup_mounts()
    of_cpu = [item for item in mounts if "cpu" in item.options] or [item for item in mounts if item.version == 2]
    try:
        groups = groups_of(pid)
    except ProcessLookupError:  # it has ended since its file was opened
        raise FileNotFoundError(f"process {pid} has ended") from None
    for controllers, path in groups:
        mount = next((item for item in of_cpu if item.is_named(controllers)), None)
        if mount is not None and path != "/":
            return mount.root / path.lstrip("/")
    return None


class GroupFolders:
    """Ownership of the folders of groups at a moment.

    A subtree that is delegated (cgroups(7), "Delegation"; a user's systemd has it) is its user's, who gives the groups
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
        """Whether only root can make groups in it."""
        known = self._roots.get(folder)
        if known is None:
            try:
                status = folder.stat()
            except OSError:
                return False
            known = self._roots[folder] = status.st_uid == ROOT and not status.st_mode & OTHERS_WRITE
        return known
