"""Finds the points and the cgroup of a UPF that is named by network namespace, process or container."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from slicepilot.configs import ConfigError
from slicepilot.configs.text import printable
from slicepilot.controller.system import cgroup_paths as cgroups
from slicepilot.controller.system.bpf.errors import ProbeError
from slicepilot.controller.system.cgroup_paths import GroupFolders
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.net import namespaces
from slicepilot.controller.system.net.links import Link, links, other_end
from slicepilot.controller.system.net.rtnetlink import RouteSocket

from .points import NetPoint, Ports, SlicePoints


@dataclass(frozen=True)
class Upf:
    """One UPF: a name for it, the file of its network namespace, and its CPU cgroup where it has its own."""

    name: str
    netns: Path
    cgroup: Path | None


def by_netns(name: str, option: str = "--netns") -> Upf:
    """The UPF of a network namespace, given by name or path; raises ConfigError, ProbeError. ``option`` names the
    namespace in messages."""
    path = namespaces.path_of(name)
    try:
        there = path.exists()
    except PermissionError as error:
        raise ProbeError(f"{option} = {name}: this network namespace may not be entered: run as root") from error
    if not there:
        named = sorted(entry.name for entry in namespaces.NAMED.iterdir()) if namespaces.NAMED.is_dir() else []
        raise ConfigError(f"{option} = {name}: no such network namespace; expected {', '.join(named) or 'none here'}")
    groups = _groups_in(path)
    return Upf(Path(name).name, path, groups.pop() if len(groups) == 1 else None)


def by_pid(pid: int) -> Upf:
    """The UPF that is a process; raises ConfigError, ProbeError."""
    try:
        name = printable(Path(f"/proc/{pid}/comm").read_text(errors="replace").strip())
        return Upf(f"{name}-{pid}", Path(f"/proc/{pid}/ns/net"), cgroups.of_process(pid))
    except (FileNotFoundError, ProcessLookupError) as error:
        raise ConfigError(f"--pid = {pid}: no such process; expected the id of a running process") from error


def by_container(identity: str) -> Upf:
    """The UPF of a container (Docker, containerd, CRI-O): its id, or the beginning of it, is in the name of its cgroup.

    Raises:
        ConfigError: the id fits no process, or more than one container.
    """
    if len(identity) < 6:
        raise ConfigError(f"--container = {identity}: too short to identify a container; expected 6 digits or more")
    result: dict[str, int] = {}
    folders = GroupFolders()  # somebody's own subtree may have groups of any name
    for pid in sorted(_pids()):
        try:
            groups = cgroups.groups_of(pid)
        except OSError:  # it has ended
            continue
        for part in folders.names(groups):
            if identity in part:
                result.setdefault(part, pid)
    if not result:
        raise ConfigError(
            f"--container = {identity}: no process in such a cgroup; expected the id of a running container"
        )
    upfs = {upf.netns.stat().st_ino: upf for upf in map(by_pid, result.values())}
    if len(upfs) > 1:
        raise ConfigError(f"--container = {identity}: fits {', '.join(sorted(result))}; expected more of its id")
    [upf] = upfs.values()
    return Upf(identity[:12], upf.netns, upf.cgroup)


@dataclass(frozen=True)
class Devices:
    """Names of interfaces that somebody gave; None: look for them.

    ``n6`` is in ``n6_netns`` where that is given, and ``near`` is then the UPF's own interface on the way there.
    ``n3_netns`` is where N3's far end is, ``n3_far`` the interface there.
    """

    n3: str | None = None
    tun: str | None = None
    n6: str | None = None
    n6_netns: str | None = None
    n4: str | None = None
    near: str | None = None
    n3_netns: str | None = None
    n3_far: str | None = None


def points_of(upf: Upf, devices: Devices, label: str = "--") -> SlicePoints:
    """Where to measure a UPF.

    N3 is the interface of that name, or the only interface beside the loopback. With a namespace for its far end it is
    measured as packets leave there, since XDP on the UPF's own interface takes them before any hook. N6 with a
    namespace of its own is measured as packets come in there (at the other end of the UPF's interface, or behind a
    shared uplink), else as packets leave the UPF's interface. In messages ``label`` precedes the names of fields.

    Raises:
        ConfigError: an interface is not there, or there are several to choose from.
        ProbeError: the namespace cannot be entered.
    """
    there = _links(upf.netns)
    n3 = NetPoint(upf.netns, n3_device(upf, devices.n3, label))
    if devices.n3_netns is not None:
        far = by_netns(devices.n3_netns, _option(label, "n3_netns"))
        n3 = _far(upf.netns, n3.device, far, devices.n3_far, "n3", label).facing("egress")
    tun = _named(f"{label}tun", devices.tun, there) or next(
        (link.name for link in there.values() if link.kind == "tun" and link.bare_ip), None
    )
    if devices.n6_netns is not None:
        near, far = n6_device(upf, devices.near, label), by_netns(devices.n6_netns, _option(label, "n6_netns"))
        n6: NetPoint | None = _far(upf.netns, near, far, devices.n6, "n6", label)
    else:
        own = n6_device(upf, devices.n6, label)
        n6 = NetPoint(upf.netns, own, "egress") if own else None
    n4 = _named_or_usual("n4", devices.n4, there, label)
    if tun is None and n6 is None:
        raise ConfigError(f"{label}tun or {label}n6: {upf.name} has no TUN device; expected {', '.join(there)}")
    return SlicePoints(
        upf.name,
        n3,
        NetPoint(upf.netns, tun) if tun else None,
        n6,
        NetPoint(upf.netns, n4) if n4 else None,
        upf.cgroup,
    )


def points_of_service(service: Upf, device: str, far_netns: str | None, ports: Ports, label: str = "--") -> SlicePoints:
    """Where to measure a service: requests as they come in by its interface, answers as they leave by the same, or with
    ``far_netns`` as they come in at the other end of that veth pair, behind any shaper of the interface.

    Raises:
        ConfigError: an interface is not there, or has no other end in that namespace.
        ProbeError: a namespace cannot be entered.
    """
    _named(f"{label}device", device, _links(service.netns))
    came = NetPoint(service.netns, device)
    left = came.facing("egress")
    if far_netns is not None:
        far = by_netns(far_netns, f"{label}far_netns").netns
        end = _end_in(far, service.netns, device)
        # Numbers of interfaces identify them within a namespace only.
        if end is None or namespaces.identity(far) == namespaces.identity(service.netns):
            raise ConfigError(
                f"{label}far_netns = {far_netns}: the other end of {device} is not there; expected the network "
                "namespace of the other end of a veth pair"
            )
        left = NetPoint(far, end.name, behind=(service.netns, device))
    return SlicePoints(service.name, came, n6=left, cgroup=service.cgroup, ports=ports)


def _option(label: str, field: str) -> str:
    """What a field is called where it is given: an option of a command, or a field of a file."""
    return f"{label}{field.replace('_', '-')}" if label == "--" else f"{label}{field}"


def _far(netns: Path, near: str | None, far: Upf, name: str | None, role: str, label: str) -> NetPoint:
    """A far end in a namespace of its own: the interface of that name, else the other end of the UPF's, else the
    interface that is called what it is for."""
    there = _links(far.netns)
    if name is None and near is not None and (end := _end_in(far.netns, netns, near)) is not None:
        return NetPoint(far.netns, end.name, behind=(netns, near))
    option = _option(label, role if label == "--" else f"{role}_far")
    if name is None and role not in there:
        what = f"the other end of {near} is not there" if near is not None else f"no interface {role} there"
        raise ConfigError(
            f"{_option(label, f'{role}_netns')} = {far.name}: {what}; expected the network namespace of the far end, "
            f"or {option}: one of {', '.join(there)}"
        )
    name = name or role
    if name not in there:
        raise ConfigError(f"{option} = {name}: no such interface in {far.name}; expected {', '.join(there)}")
    return NetPoint(far.netns, name)


def n3_device(upf: Upf, named: str | None = None, label: str = "--") -> str:
    """The UPF's own interface for N3; arguments and what is raised as for `points_of`."""
    there = _links(upf.netns)
    n3 = _named_or_usual("n3", named, there, label)
    if n3 is not None:
        return n3
    ethernet = [link.name for link in there.values() if not link.bare_ip and link.name != "lo"]
    if len(ethernet) != 1:
        raise ConfigError(f"{label}n3: which interface of {upf.name}? expected {', '.join(ethernet) or 'none there'}")
    return ethernet[0]


def n6_device(upf: Upf, named: str | None = None, label: str = "--") -> str | None:
    """The interface through which a UPF sends towards N6: as named, else n6, else none; raises as `points_of`."""
    return _named_or_usual("n6", named, _links(upf.netns), label)


def _named(option: str, name: str | None, there: dict[str, Link]) -> str | None:
    if name is not None and name not in there:
        raise ConfigError(f"{option} = {name}: no such interface; expected {', '.join(there)}")
    return name


def _named_or_usual(role: str, name: str | None, there: dict[str, Link], label: str) -> str | None:
    """The interface for a role: as named, else the one that is called like the role, else none."""
    return _named(f"{label}{role}", name, there) or (role if role in there else None)


def _links(netns: Path) -> dict[str, Link]:
    try:
        with closing(RouteSocket(netns)) as route:
            return links(route)
    except ActuatorError as error:
        if error.errno in (errno.EPERM, errno.EACCES):
            raise ProbeError(f"network namespace {netns} cannot be entered: run as root") from error
        raise ProbeError(str(error)) from error


def _end_in(far: Path, netns: Path, device: str) -> Link | None:
    """The other end of a namespace's veth interface, in another."""
    try:
        return other_end(netns, device, far)
    except (ActuatorError, OSError) as error:
        raise ProbeError(str(error)) from error


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _groups_in(netns: Path) -> set[Path | None]:
    """CPU groups of the processes in a namespace."""
    wanted = namespaces.identity(netns)
    result = set()
    for pid in _pids():
        try:
            if namespaces.identity(Path(f"/proc/{pid}/ns/net")) == wanted:
                result.add(cgroups.of_process(pid))
        except OSError:  # it has ended, or is not ours to look at
            continue
    return result
