"""Where a UPF that has no CPU group of its own could be given one."""

from __future__ import annotations

from pathlib import Path

from slicepilot.controller.system.cgroup import CpuHierarchy
from slicepilot.controller.system.cgroup_paths import managers, unified
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.own_groups import PREFIX, check_safe
from slicepilot.node.find.locate import Located

# What a group of version 2 that limits nothing has in its files (Documentation/admin-guide/cgroup-v2.rst).
OPEN = {
    "cpu.max": "max",
    "memory.max": "max",
    "memory.high": "max",
    "pids.max": "max",
    "cpuset.cpus": "",
    "io.max": "",
}


def needs_own_group(located: Located) -> bool:
    """Whether nothing can be limited but others would feel it: it is in the root group, or not alone in its own."""
    return located.cgroup is None or bool(located.others)


def group_path(label: str, home: Path | None, hierarchy: CpuHierarchy | None = None) -> Path:
    """Where a group for a UPF can be made.

    Below the one that it is in, whose limits go on binding it. A group of version 2 that has processes cannot hand
    controllers down, but for the root (Documentation/admin-guide/cgroup-v2.rst, "No Internal Process Constraint"); the
    group is beside it then, and only where nothing that limits it, or manages it, would be escaped.

    Args:
        label: what it is called after our prefix.
        home: the group that it is in; None for the root group.
        hierarchy: that of the machine, if none is given.

    Raises:
        ActuatorError: there is none; says why, and what would help.
    """
    hierarchy = hierarchy or CpuHierarchy.find()
    parent = hierarchy.root if home is None else home
    if home is not None and unified(home):
        if binding := _binding(home):
            raise ActuatorError(
                f"{home}: of version 2, which has no room for a group below it, and beside it {binding}"
            )
        parent = home.parent
    if unified(parent) and "cpu" not in (parent / "cgroup.subtree_control").read_text().split():
        raise ActuatorError(
            f"{parent} does not delegate the CPU controller; echo +cpu > {parent}/cgroup.subtree_control"
        )
    check_safe(parent, hierarchy.root)
    return parent / f"{PREFIX}{label}"


def _binding(group: Path) -> str:
    """What a process would escape that leaves a group of version 2; empty for nothing."""
    if names := managers(group):
        return f"{' and '.join(names)} would lose sight of it"
    for name, nothing in OPEN.items():
        try:
            words = (group / name).read_text().split()
        except FileNotFoundError:  # not with this controller
            continue
        if words[:1] != ([nothing] if nothing else []):
            return f"{name} would not bind it any more"
    return ""
