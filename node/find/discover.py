"""UPFs that run on this machine, with what speaks for and against each; what is not clear is said, and not guessed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slicepilot.configs import ConfigError
from slicepilot.configs.text import printable
from slicepilot.controller.system import cgroup_paths
from slicepilot.controller.system.net import namespaces
from slicepilot.controller.watchdog.lock import controller_of
from slicepilot.node.config.selectors import ComposeSelector, PodSelector, ProcessSelector, UpfSelector
from slicepilot.node.config.traffic import DeviceNames

from .containers import is_of
from .interfaces import Interfaces, far_end, interfaces
from .known import KnownUpf, known
from .locate import COMPOSE_PROJECT, COMPOSE_SERVICE, Finder
from .processes import Process, companions, eldest
from .sockets import GTPU_PORT, PFCP_PORT, Opened, SocketTable

Confidence = Literal["sure", "unclear"]
UNIT_ENDINGS = (".service", ".scope")
MOST_NAMED = 4
MACHINE = Path("/proc/1/ns/net")
TESTBED_GROUP, TESTBEDS = "slicepilot-", Path("/run/slicepilot-testbed")  # see `slicepilot.testbed.lifecycle`


@dataclass(frozen=True)
class DiscoveredUpf:
    """A process that is, or may be, a UPF.

    Attributes:
        process: its main process.
        name: what to call its slice.
        confidence: ``sure`` where program and sockets agree.
        why: the evidence, and what is unclear.
        netns: file of its network namespace.
        netns_name: where ip-netns(8) has a name for that.
        cgroup: its CPU cgroup; None in the root group.
        others: what else runs in that group.
        devices: the interfaces that were discovered.
        selector: identifies it, also after a restart if possible.
        ue_pools: networks that are routed to its TUN device.
        served: TUN devices with the networks that are routed to each, where it has several: a slice each.
        owner: whose it is, where it is marked as another's: another controller, a testbed, a pod; None for nobody's.
    """

    process: Process
    name: str
    confidence: Confidence
    why: tuple[str, ...]
    netns: Path
    netns_name: str | None
    cgroup: Path | None
    others: tuple[str, ...]
    devices: DeviceNames
    selector: UpfSelector
    ue_pools: tuple[str, ...]
    served: tuple[tuple[str, tuple[str, ...]], ...] = ()
    owner: str | None = None


def discover(finder: Finder | None = None) -> list[DiscoveredUpf]:
    """All UPFs, the sure ones first, then by name. Needs root, since the kernel shows sockets of other users' processes
    to root alone.

    The SMF answers PFCP, too, and a gNB takes GTP-U: a process of an unknown program that does only one of the two is
    ``unclear``.
    """
    finder = finder or Finder()
    table = SocketTable()
    candidates: dict[int, tuple[KnownUpf | None, Opened]] = {}
    for process in finder.processes.values():
        kind, opened = known(process), table.opened(process)
        if kind is not None or opened.sockets:
            candidates[process.pid] = kind, opened
    mains = eldest((finder.processes[pid] for pid in candidates), finder.processes)
    result = [_examined(process, *candidates[process.pid], table, finder) for process in mains]
    return sorted(_named_apart(result), key=lambda item: (item.confidence != "sure", item.name))


def devices_of(process: Process, given: DeviceNames, table: SocketTable | None = None) -> DeviceNames:
    """A UPF's interfaces: those that are given, and of the others those that follow from its sockets, its routes
    and the other ends of its veths.

    Raises:
        OSError: its network namespace cannot be entered.
    """
    own = Path(f"/proc/{process.pid}/ns/net")
    present = interfaces(own)
    detected, _ = _devices((table or SocketTable()).opened(process), present)
    names = [item.name for item in dataclasses.fields(DeviceNames)]
    result = DeviceNames(**{name: getattr(given, name) or getattr(detected, name) for name in names})
    if result.n6 is not None and result.n6_netns is None:
        result = dataclasses.replace(_with_far_end(own, result, "n6")[0], n6_far=given.n6_far)
    if result.n3 in present.xdp and result.n3_netns is None:
        result = dataclasses.replace(_with_far_end(own, result, "n3")[0], n3_far=given.n3_far)
    return result


def _examined(
    process: Process, kind: KnownUpf | None, opened: Opened, table: SocketTable, finder: Finder
) -> DiscoveredUpf:
    gtpu, pfcp = opened.at(GTPU_PORT), opened.at(PFCP_PORT)
    in_kernel = [item for item in table.of(process) if item.port == GTPU_PORT and not item.inode]
    why = []
    if kind is not None:
        common = f"its program is called {kind.programs[0]}, as those of free5GC and slicepilot are"
        why = [f"its program is that of {kind.name}" if kind.distinctive else common]
    why += [f"takes GTP-U at {item.address}" for item in gtpu] + [f"takes PFCP at {item.address}" for item in pfcp]
    why += ["the kernel takes GTP-U in its namespace"] if in_kernel and not gtpu else []
    why += [f"has the TUN device {name}" for name in opened.tuns]
    sure = bool((gtpu and pfcp) or (kind is not None and kind.distinctive and (gtpu or pfcp or in_kernel)))
    if not sure:
        why.append(_doubt(kind, bool(gtpu), bool(pfcp)))
    own = Path(f"/proc/{process.pid}/ns/net")
    try:
        present: Interfaces | None = interfaces(own)
    except OSError as error:
        present = None
        why.append(f"its network namespace cannot be entered: {error.strerror}")
    devices, open_questions = _devices(opened, present) if present else (DeviceNames(), [])
    if devices.n6 is not None:
        devices, seen = _with_far_end(own, devices, "n6")
        open_questions.append(seen)
    if present is not None and devices.n3 in present.xdp:
        devices, seen = _with_far_end(own, devices, "n3")
        open_questions.append(seen)
    why += open_questions
    try:
        group = cgroup_paths.of_process(process.pid)
    except FileNotFoundError:  # it has ended
        group = None
    others = tuple(map(str, companions(process, finder.processes))) if group is not None else ()
    why += [] if group is not None else ["is in no CPU cgroup of its own: CPU limits and weights cannot be moved"]
    if others:
        message = ", ".join(others[:MOST_NAMED]) + (", ..." if len(others) > MOST_NAMED else "")
        why.append(f"shares its cgroup with {message}")
    netns_name = _name_of(process.netns)
    return DiscoveredUpf(
        process=process,
        name=_slice_name(process, netns_name, finder),
        confidence="sure" if sure else "unclear",
        why=tuple(map(printable, why)),
        netns=own,
        netns_name=netns_name,
        cgroup=group,
        others=others,
        devices=devices,
        selector=_selector(process, netns_name, finder),
        ue_pools=present.behind.get(devices.tun or "", ()) if present else (),
        served=tuple((name, present.behind.get(name, ())) for name in opened.tuns) if present else (),
        owner=_owner(process, group, finder),
    )


def _owner(process: Process, group: Path | None, finder: Finder) -> str | None:
    """The owner of a UPF, by the lock of its cgroup, the group of a running testbed, or its container."""
    if group is not None and (holder := controller_of(group)) is not None:
        return f"controlled by {holder}"
    for name in process.group_names:
        if name.startswith(TESTBED_GROUP) and (TESTBEDS / name.removeprefix(TESTBED_GROUP)).is_dir():
            return f"of the testbed {printable(name.removeprefix(TESTBED_GROUP))}"
    for item in finder.containers:
        if item.pod is not None and item.has(process.group_names):
            return f"of the pod {printable(f'{item.pod.namespace}/{item.pod.name}')}"
    return None


def _doubt(kind: KnownUpf | None, gtpu: bool, pfcp: bool) -> str:
    if gtpu:
        return "takes GTP-U only: may be a gNB, or a UPF whose control plane is another process"
    if pfcp:
        return "takes PFCP only: may be an SMF, or a UPF whose user plane is another process"
    assert kind is not None
    return f"takes neither GTP-U nor PFCP: {kind.name} may not have started yet, or this is another program of its name"


def _devices(opened: Opened, present: Interfaces) -> tuple[DeviceNames, list[str]]:
    """Interfaces by role, and what remains unknown."""
    doubts = []

    def holder(port: int) -> str | None:
        held = {present.addresses.get(item.address) for item in opened.at(port) if not item.anywhere}
        return held.pop() if len(held) == 1 else None

    n3, n4 = holder(GTPU_PORT), holder(PFCP_PORT)
    carriers = present.carriers
    if n3 is None:
        n3 = carriers[0] if len(carriers) == 1 else next((name for name in carriers if name in present.xdp), None)
    if n3 is None:
        doubts.append(f"n3 is one of {', '.join(carriers) or 'none'}: it takes GTP-U at any address")
    rest = [name for name in carriers if name not in {n3, n4}]
    n6 = present.default if present.default not in {None, "lo"} else rest[0] if len(rest) == 1 else None
    if n6 is None and len(carriers) > 1:
        doubts.append(f"n6 is one of {', '.join(rest) or ', '.join(carriers)}: there is no default route")
    if n6 is not None and n6 == n3:
        doubts.append(f"n3 and n6 are both {n6}: what it limits is both of them")
    tun = opened.tuns[0] if len(opened.tuns) == 1 else None
    if len(opened.tuns) > 1:
        doubts.append(f"tun is one of {', '.join(opened.tuns)}")
    return DeviceNames(n3=n3, tun=tun, n6=n6, n4=n4), doubts


def _with_far_end(netns: Path, devices: DeviceNames, role: Literal["n3", "n6"]) -> tuple[DeviceNames, str]:
    """The other end of N6, or of an N3 with XDP, where that is in a namespace that has a name, or in the machine's own.

    What an XDP program on N3 sends on is seen by no hook there.
    """
    name = devices.n6 if role == "n6" else devices.n3
    assert name is not None
    far = _far_end(netns, name)
    if far is None and role == "n6":
        return devices, f"the far end of {name} was not found: its egress cannot be controlled"
    if far is None:
        return devices, f"{name} has an XDP program, and its far end was not found: what XDP takes is not measured"
    where, device = far
    result = dataclasses.replace(devices, **{f"{role}_netns": where, f"{role}_far": device})
    if role == "n6":
        return result, f"the far end of {name} is {device} in {where}"
    return result, f"{name} has an XDP program: measured at its far end, {device} in {where}"


def _far_end(netns: Path, device: str) -> tuple[str, str] | None:
    """Name, or else path, of the namespace, and the interface."""
    named = sorted(namespaces.NAMED.iterdir()) if namespaces.NAMED.is_dir() else []
    try:
        far = far_end(netns, device, [*named, MACHINE])
    except OSError:
        return None
    return None if far is None else (far.netns.name if far.netns in named else str(far.netns), far.device)


def _name_of(netns: tuple[int, int] | None) -> str | None:
    """The name of a namespace in ip-netns(8); None if it has none."""
    result = None if netns is None else namespaces.find(netns)
    return result.name if result is not None and result.parent == namespaces.NAMED else None


def _units(process: Process) -> list[str]:
    return [part for part in sorted(process.group_names) if part.endswith(UNIT_ENDINGS)]


def _slice_name(process: Process, netns_name: str | None, finder: Finder) -> str:
    """A name for its slice: of the container, unit or namespace, else program and pid."""
    for item in finder.containers:
        if item.name and item.has(process.group_names):
            return _plain(item.name if item.pod is None else item.pod.name)
    for unit in _units(process):
        if unit.endswith(".service"):
            return _plain(unit.removesuffix(".service").replace("@", "-"))
    return _plain(netns_name or f"{process.program or process.name}-{process.pid}")


def _plain(name: str) -> str:
    kept = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "_.-") else "-" for letter in name)
    return (kept.lstrip("-_.") or "upf")[:60]


def _named_apart(result: list[DiscoveredUpf]) -> list[DiscoveredUpf]:
    """Make names unique."""
    names = [item.name for item in result]
    return [
        item if names.count(item.name) == 1 else dataclasses.replace(item, name=f"{item.name}-{item.process.pid}")
        for item in result
    ]


def _selector(process: Process, netns_name: str | None, finder: Finder) -> UpfSelector:
    """A selector that fits only this process now, preferably by a durable name from its owner."""
    user = str(process.user)
    program = ProcessSelector(process.program or process.name)
    inside = [item for item in finder.containers if item.has(process.group_names)]
    # A scope that a runtime has named after its container goes with that.
    units = [unit for unit in _units(process) if not any(is_of(unit, item.identity) for item in inside)]
    tries = [UpfSelector(unit=unit, user=user) for unit in units]
    for item in inside:
        if item.pod is not None:
            tries += [
                UpfSelector(pod=PodSelector(item.pod.name, item.pod.namespace, container))
                for container in (None, item.pod.container)
            ]
        service, project = item.labels.get(COMPOSE_SERVICE), item.labels.get(COMPOSE_PROJECT)
        if service:
            tries.append(UpfSelector(compose=ComposeSelector(service, project)))
        tries += [UpfSelector(container=item.name)] if item.name else []
    if netns_name is not None:
        tries.append(UpfSelector(process=program, netns=netns_name, user=user))
    tries.append(UpfSelector(process=program, user=user))
    tries += [
        UpfSelector(process=ProcessSelector(program.name, (argument,)), netns=netns_name, user=user)
        for argument in process.arguments[1:]
        if argument and "\n" not in argument
    ]
    for selector in tries:
        try:
            if finder.find("", selector).process.pid == process.pid:
                return selector
        except ConfigError:
            continue
    return UpfSelector(pid=process.pid)
