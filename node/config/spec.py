"""One node with UPFs and services of others: ``configs/nodes/NAME.yaml`` or a file of the operator's, validated."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, ConfigDict, Field

from ...configs import load
from ...controller.telemetry.points import Ports, Traffic
from ...env.knobs import KnobName
from ...env.slices import SliceSet, SliceSpec, SNssai

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
Text = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00\n]*$")]


def _pool(text: str) -> str:
    try:
        pool = ip_network(text)
    except ValueError as error:
        raise ValueError(f"{text}: {error}; accepted: a network such as 10.45.0.0/16") from None
    if pool.prefixlen > LONGEST_PREFIX[pool.version]:
        raise ValueError(f"{text}: longer than what a UE owns; accepted: /64 or shorter")
    return text


def _address(text: str) -> str:
    try:
        address = ip_address(text)
    except ValueError as error:
        raise ValueError(f"{error}; accepted: an IP address such as 10.45.0.2") from None
    if address.is_multicast or address.is_unspecified or address.is_loopback or text.partition("%")[2]:
        raise ValueError(f"{text}: not that of a host; accepted: a unicast address such as 10.45.0.2")
    return text


Host = Annotated[str, Field(max_length=64), AfterValidator(_address)]
Pool = Annotated[str, Field(max_length=64), AfterValidator(_pool)]
# Labels of 1 to 63 characters, 99 in all with the dots between them (TS 23.003, clause 9.1).
Dnn = Annotated[str, Field(max_length=99, pattern=r"^[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*$")]
Selector = TypeVar("Selector", bound="UpfSelector")
Device = Annotated[str, Field(min_length=1, max_length=15, pattern=r"^[^\s/\x00]+$")]
LONGEST_PREFIX = {4: 32, 6: 64}  # a UE owns a /64 (TS 23.501, clause 5.8.2.2.3)
LEAST_ID = 6  # digits of a container's id


@dataclass(frozen=True)
class ProcessSelector:
    """By program: ``name`` is its file name or what it calls itself, and each of ``args`` is on its command line."""

    __pydantic_config__ = _STRICT
    name: Text
    args: tuple[Text, ...] = ()

    def __str__(self) -> str:
        return " ".join((self.name, *self.args))


@dataclass(frozen=True)
class ComposeSelector:
    """By Docker Compose: a service, and its project where several have one of that name."""

    __pydantic_config__ = _STRICT
    service: Text
    project: Text | None = None

    def __str__(self) -> str:
        return self.service if self.project is None else f"{self.project}/{self.service}"


@dataclass(frozen=True)
class UpfSelector:
    """Which process is a slice's UPF. Several conditions have to hold together; at least one is given.

    Attributes:
        role: what it is called in a slice, and in messages.
        pid: its number; a UPF that restarts is not found again by it.
        process: program and arguments.
        unit: systemd unit, for instance ``open5gs-upfd@embb.service``.
        container: id (six digits or more) or name.
        compose: Docker Compose's labels.
        cgroup: a folder of its CPU cgroup, version 1 or 2; groups below it count.
        netns: network namespace, a name (``ip netns``) or a path.
        user: that it runs as, name or number. Anybody can give a process any name: say it beside ``process``.
    """

    __pydantic_config__ = _STRICT
    role: ClassVar[Literal["upf", "service"]] = "upf"
    pid: Annotated[int, Field(ge=1)] | None = None
    process: ProcessSelector | None = None
    unit: Text | None = None
    container: Text | None = None
    compose: ComposeSelector | None = None
    cgroup: Text | None = None
    netns: Text | None = None
    user: Text | None = None

    def __str__(self) -> str:
        given = ((one.name, getattr(self, one.name)) for one in dataclasses.fields(self))
        return ", ".join(f"{name} = {value}" for name, value in given if value is not None)


@dataclass(frozen=True)
class ServiceSelector(UpfSelector):
    """Which process is a slice's service, in the same way."""

    __pydantic_config__ = _STRICT
    role = "service"


def _check_selector(selector: Selector) -> Selector:
    if selector == type(selector)(user=selector.user):
        names = ", ".join(one.name for one in dataclasses.fields(selector) if one.name != "user")
        raise ValueError(f"nothing says which process it is; accepted: at least one of {names}")
    return selector


@dataclass(frozen=True)
class DeviceNames:
    """Interfaces of a UPF, where they are not called n3, n6 and n4 and cannot be told.

    ``n6_netns`` is the network namespace of N6's far end, to measure behind a shared uplink, and ``n6_far`` the
    interface there, where it is neither the other end of n6 nor called n6. ``n3_netns`` and ``n3_far`` are the same for
    N3, to measure before XDP on n3, which takes packets before any hook of n3 itself.
    """

    __pydantic_config__ = _STRICT
    n3: Device | None = None
    tun: Device | None = None
    n6: Device | None = None
    n6_netns: Text | None = None
    n6_far: Device | None = None
    n4: Device | None = None
    n3_netns: Text | None = None
    n3_far: Device | None = None


@dataclass(frozen=True)
class TrafficSpec:
    """Which packets of a UPF, or of an N3, are one slice's, where several slices share it.

    Attributes:
        ue_pools: the UEs' addresses; of IPv6 /64 or shorter.
        teids: the UPF's ends of its tunnels; they count for more than addresses, which a UE could forge.
        qfis: QoS flows of these; none: all. Slices with the same pool or tunnel have each their own.
        dnns: sessions with one of these DNNs are the slice's; their tunnels are learned as the UPF sets them up on N4.
        s_nssai: sessions with the slice's own S-NSSAI are; with ``dnns`` those that fit both.
    """

    __pydantic_config__ = _STRICT
    ue_pools: tuple[Pool, ...] = ()
    teids: tuple[Annotated[int, Field(ge=1, lt=1 << 32)], ...] = ()
    qfis: tuple[Annotated[int, Field(ge=0, le=63)], ...] = ()
    dnns: tuple[Dnn, ...] = ()
    s_nssai: bool = False

    def selected(self, s_nssai: SNssai) -> Traffic:
        """As the probe takes it, for a slice of this S-NSSAI."""
        pools = tuple(map(ip_network, self.ue_pools))
        return Traffic(pools, self.teids, self.qfis, self.dnns, s_nssai if self.s_nssai else None)


def _check_traffic(traffic: TrafficSpec) -> TrafficSpec:
    if not (traffic.ue_pools or traffic.teids or traffic.dnns or traffic.s_nssai):
        raise ValueError("nothing says whose packets they are; accepted: ue_pools, teids, dnns, s_nssai")
    return traffic


@dataclass(frozen=True)
class SessionSpec:
    """A PDU session of a slice that `slicepilot node check --send` may send packets through.

    Attributes:
        ue: address of the UE, which gets a packet (UDP port 9, discard) or twenty-one.
        teid: the UPF's end of the uplink tunnel; none: uplink is not tried.
        qfi: QoS flow of the uplink; none: packets have no PDU Session Container.
        gnb: address of the radio side that uplink comes from; none: that of N3's far end.
        host: address behind N6 that uplink is sent to and downlink comes from; none: the nearest one.
    """

    __pydantic_config__ = _STRICT
    ue: Host
    teid: Annotated[int, Field(ge=1, lt=1 << 32)] | None = None
    qfi: Annotated[int, Field(ge=0, le=63)] | None = None
    gnb: Host | None = None
    host: Host | None = None

    @property
    def far_host(self) -> IPv4Address | IPv6Address | None:
        """``host`` as an address."""
        return None if self.host is None else ip_address(self.host)


def _check_session(session: SessionSpec) -> SessionSpec:
    version = ip_address(session.ue).version
    if session.far_host is not None and session.far_host.version != version:
        raise ValueError(f"host = {session.host}: not of the UE's family; accepted: an address of IPv{version}")
    return session


@dataclass(frozen=True)
class ListensSpec:
    """Where a service takes requests, and its answers leave.

    Attributes:
        device: interface, in the service's network namespace.
        ports: TCP and UDP ports that it takes requests at.
        far_netns: network namespace of the other end of ``device``, a veth: answers are measured there then, behind
            the shaper of ``device``, whose rate can be set.
        echoed_octets: of an identifier that answers over UDP begin with as their requests do (DNS: 2); tells requests
            of one conversation apart.
    """

    __pydantic_config__ = _STRICT
    device: Device
    ports: Annotated[tuple[Annotated[int, Field(ge=1, le=65535)], ...], Field(min_length=1, max_length=64)]
    far_netns: Text | None = None
    echoed_octets: Literal[0, 2, 4, 8] = 0

    @property
    def selected(self) -> Ports:
        """As the probe takes it."""
        return Ports(tuple(dict.fromkeys(self.ports)), self.echoed_octets)


@dataclass(frozen=True, kw_only=True)
class NodeSlice(SliceSpec):
    """A slice and its UPF, or the service that it is.

    Attributes:
        upf: which process; service: likewise, of a slice that is no UPF. One of the two is given.
        traffic: which of a UPF's packets, where other slices have the same UPF or the same N3.
        devices: where a UPF's packets pass.
        listens: where a service's packets pass.
        leave: knobs that are not to be moved, whatever they would do.
        own_cgroup: whether its UPF, in mode ``live``, may be moved into a CPU cgroup that is made for it where it has
            none of its own, with the threads of NAPI that take its packets. All slices of the UPF have to allow it.
        test_session: what may be sent through, where that is asked for.
    """

    __pydantic_config__ = _STRICT
    upf: Annotated[UpfSelector, AfterValidator(_check_selector)] | None = None
    service: Annotated[ServiceSelector, AfterValidator(_check_selector)] | None = None
    traffic: Annotated[TrafficSpec, AfterValidator(_check_traffic)] | None = None
    devices: DeviceNames = DeviceNames()
    listens: ListensSpec | None = None
    leave: tuple[KnobName, ...] = ()
    own_cgroup: bool = False
    test_session: Annotated[SessionSpec, AfterValidator(_check_session)] | None = None

    @property
    def selector(self) -> UpfSelector:
        """Which process it is, UPF or service."""
        found = self.upf or self.service
        assert found is not None
        return found

    def promised(self) -> SliceSpec:
        """The same without the UPF."""
        return SliceSpec(**{one.name: getattr(self, one.name) for one in dataclasses.fields(SliceSpec)})


@dataclass(frozen=True)
class NodeSpec:
    """One node.

    Attributes:
        name: folders and sockets of its controller are named after it.
        slices: in order.
        uplink_mbps: rate of the N6 uplink that they share; none: not known, and taken for unlimited.
        cpus: that the UPFs may use; none: those of this process.
        quota_period_ms: of CPU limits.
        n3_buffer_packets: what a UPF's N3 socket holds; with Linux' default of 212,992 octets some 110 of full size.
        hardware: configuration of the identified hardware that a simulator of this node uses.
    """

    __pydantic_config__ = _STRICT
    name: Name
    slices: Annotated[tuple[NodeSlice, ...], Field(min_length=1, max_length=64)]
    uplink_mbps: Annotated[float, Field(gt=0)] | None = None
    cpus: Annotated[float, Field(gt=0, le=4096)] | None = None
    quota_period_ms: Annotated[float, Field(ge=1, le=1000)] = 100.0
    n3_buffer_packets: Annotated[float, Field(gt=0)] = 110.0
    hardware: str = "testbed"

    @classmethod
    def from_yaml(cls, name_or_path: str) -> NodeSpec:
        """Load ``configs/nodes/NAME.yaml`` or a user's file; raises ConfigError."""
        return load("nodes", name_or_path, CheckedNodeSpec)

    @property
    def promised(self) -> SliceSet:
        """The slices, with nothing of where they are."""
        return SliceSet(tuple(one.promised() for one in self.slices))

    def promised_within(self, cpus: Mapping[str, float]) -> SliceSet:
        """The same with no more threads than CPUs that each slice's UPF can use."""
        specs = [(one, min(one.upf_threads, cpus[one.name])) for one in self.promised.slices]
        return SliceSet(tuple(dataclasses.replace(one, upf_threads=threads) for one, threads in specs))


def _check_kind(one: NodeSlice) -> None:
    where = f"slices.{one.name}"
    if (one.upf is None) is (one.service is None):
        given = "neither is given" if one.upf is None else "both are given"
        raise ValueError(f"{where}: upf, service: {given}; accepted: upf for a UPF, service for any other program")
    if one.service is not None and one.listens is None:
        raise ValueError(f"{where}: listens: not given; accepted: device and ports of the service")
    foreign = ("traffic", "devices") if one.service is not None else ("listens",)
    for key in foreign:
        if getattr(one, key) not in (None, DeviceNames()):
            raise ValueError(f"{where}: {key}: not of a {one.selector.role}; accepted: without it")


def _check(spec: NodeSpec) -> NodeSpec:
    for one in spec.slices:
        _check_kind(one)
    for key in ("name", "s_nssai"):
        seen: set[Any] = set()
        for one in spec.slices:
            value = getattr(one, key)
            if value in seen:
                raise ValueError(f"slices: {key} = {value}: twice; accepted: each slice its own")
            seen.add(value)
    for one in spec.slices:
        _check_own(one)
    return spec


def _check_own(one: NodeSlice) -> None:
    """Refuse a session of other UEs than the slice's."""
    session, traffic = one.test_session, one.traffic
    if session is None or traffic is None or session.teid in traffic.teids:
        return
    if not any(ip_address(session.ue) in ip_network(pool) for pool in traffic.ue_pools):
        accepted = ", ".join((*traffic.ue_pools, *(f"teid {teid}" for teid in traffic.teids)))
        raise ValueError(f"slices: {one.name}: test_session.ue = {session.ue}: not the slice's; accepted: {accepted}")


CheckedNodeSpec: Any = Annotated[NodeSpec, AfterValidator(_check)]
