"""What the files of a UPF's CPU group leave of the CPU knobs' authority, and where a group can be made for it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from slicepilot.controller.actuators.targets import pod_of
from slicepilot.controller.actuators.weight import WeightScale, weight_refusal
from slicepilot.controller.system.cgroup import CpuGroup, CpuHierarchy, cgroup_mounts
from slicepilot.controller.system.cgroup_paths import groups_of, managers, unified
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


@dataclass(frozen=True)
class Finding:
    """A finding about a knob: whether the knob can still move, and a text for the user, which may be empty."""

    moves: bool
    text: str


def of_weight(group: CpuGroup, weighs_pod: bool, nice_range: tuple[int, int]) -> Finding:
    """About nice, by the weight of the group that is weighed and the levels that the slice's bounds allow."""
    try:
        weighed = pod_of(group) if weighs_pod else group
        if why := weight_refusal(weighed):
            return Finding(False, why)
        file = weighed.path / ("cpu.shares" if weighed.version == 1 else "cpu.weight")
        scale = WeightScale.of(weighed, int(file.read_bytes()))
    except (ActuatorError, OSError, ValueError):  # gone, or somebody else's: what opens it says so
        return Finding(True, "")
    low, high = map(int, nice_range)
    same = scale.same(low, high)
    texts = [f"nice {run[0]} to {run[-1]} are weight {scale.weight_of(run[0])}" for run in same]
    text = f"beside {file} = {scale.base} {', '.join(texts)}" if texts else ""
    return Finding(same != [range(low, high + 1)], text)


def notes_on(pid: int, group: Path | None) -> list[str]:
    """What else keeps the CPU knobs of a UPF from acting as expected: frozen groups, idle groups above."""
    result = [f"{folder} is frozen: nothing in it runs" for folder in _frozen(pid)]
    for parent in () if group is None else group.parents:
        if not (parent / "cpu.idle").exists():
            break
        with contextlib.suppress(OSError):
            if (parent / "cpu.idle").read_bytes().strip() == b"1":
                result.append(f"{parent}/cpu.idle is 1: all in it get what others leave, whatever their own weights")
    return result


def _frozen(pid: int) -> list[Path]:
    """Groups of a process that are frozen: by ``cgroup.events`` of version 2, ``freezer.state`` of version 1."""
    result = []
    with contextlib.suppress(OSError):
        mounts = cgroup_mounts()
        for controllers, path in groups_of(pid):
            mount = next((item for item in mounts if item.is_named(controllers)), None)
            if mount is None:
                continue
            folder = mount.root / path.lstrip("/")
            for name, sign in (("cgroup.events", "frozen 1"), ("freezer.state", "FROZEN")):
                with contextlib.suppress(OSError):
                    if sign in (folder / name).read_text().splitlines():
                        result.append(folder)
    return result


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
