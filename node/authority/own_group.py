"""Where a CPU group can be made for a UPF that has none of its own."""

from __future__ import annotations

from pathlib import Path

from slicepilot.controller.system.cgroup import CpuHierarchy
from slicepilot.controller.system.cgroup_paths import managers, unified
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.own_groups import PREFIX, check_safe
from slicepilot.node.find.locate import Located

# Contents of the files of a version 2 group without limits (Documentation/admin-guide/cgroup-v2.rst).
OPEN = {
    "cpu.max": "max",
    "memory.max": "max",
    "memory.high": "max",
    "pids.max": "max",
    "cpuset.cpus": "",
    "io.max": "",
}


def needs_own_group(located: Located) -> bool:
    """Whether a limit would affect other processes: the UPF is in the root group, or shares its group."""
    return located.cgroup is None or bool(located.others)


def group_path(label: str, home: Path | None, hierarchy: CpuHierarchy | None = None) -> Path:
    """Where a group for a UPF can be made.

    It is made below the UPF's present group, so that the limits of that group still apply. A version 2 group with
    processes, other than the root, cannot delegate controllers (Documentation/admin-guide/cgroup-v2.rst, "No Internal
    Process Constraint"). Then the new group is made beside the present group, provided that the UPF escapes no limit
    and no manager.

    Args:
        label: name of the new group after our prefix.
        home: the UPF's present group; None for the root group.
        hierarchy: by default that of the machine.

    Raises:
        ActuatorError: no group can be made; with the reason and a remedy.
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
