"""Where a slice's packets pass, and which of them are its own."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from slicepilot.controller.telemetry.points import Ports, Traffic
from slicepilot.env.slices import SNssai

from .selectors import STRICT, Text

LONGEST_PREFIX = {4: 32, 6: 64}  # a UE owns a /64 (TS 23.501, clause 5.8.2.2.3)


def _pool(text: str) -> str:
    try:
        pool = ip_network(text)
    except ValueError as error:
        raise ValueError(f"{text}: {error}; expected a network such as 10.45.0.0/16") from None
    if pool.prefixlen > LONGEST_PREFIX[pool.version]:
        raise ValueError(f"{text}: longer than what a UE owns; expected /64 or shorter")
    return text


def _address(text: str) -> str:
    try:
        address = ip_address(text)
    except ValueError as error:
        raise ValueError(f"{error}; expected an IP address such as 10.45.0.2") from None
    if address.is_multicast or address.is_unspecified or address.is_loopback or text.partition("%")[2]:
        raise ValueError(f"{text}: not that of a host; expected a unicast address such as 10.45.0.2")
    return text


Host = Annotated[str, Field(max_length=64), AfterValidator(_address)]
Pool = Annotated[str, Field(max_length=64), AfterValidator(_pool)]
# Labels of 1 to 63 characters, 99 in all with the dots between them (TS 23.003, clause 9.1).
Dnn = Annotated[str, Field(max_length=99, pattern=r"^[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*$")]
Device = Annotated[str, Field(min_length=1, max_length=15, pattern=r"^[^\s/\x00]+$")]


@dataclass(frozen=True)
class DeviceNames:
    """Interfaces of a UPF, where they are not called n3, n6 and n4 and cannot be discovered.

    ``n6_netns`` is the network namespace of N6's far end, to measure behind a shared uplink, and ``n6_far`` the
    interface there, where it is neither the other end of n6 nor called n6. ``n3_netns`` and ``n3_far`` are the same for
    N3, to measure before XDP on n3, which takes packets before any hook of n3 itself.
    """

    __pydantic_config__ = STRICT
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
    """Which packets of a UPF or N3 that several slices share belong to a slice.

    Attributes:
        ue_pools: the UEs' addresses; of IPv6 /64 or shorter.
        teids: the UPF's ends of its tunnels; they count for more than addresses, which a UE could forge.
        qfis: QoS flows of these; none: all. Slices with the same pool or tunnel have each their own.
        dnns: sessions with one of these DNNs are the slice's; their tunnels are learned as the UPF sets them up on N4.
        s_nssai: sessions with the slice's own S-NSSAI are; with ``dnns`` those that fit both.
    """

    __pydantic_config__ = STRICT
    ue_pools: tuple[Pool, ...] = ()
    teids: tuple[Annotated[int, Field(ge=1, lt=1 << 32)], ...] = ()
    qfis: tuple[Annotated[int, Field(ge=0, le=63)], ...] = ()
    dnns: tuple[Dnn, ...] = ()
    s_nssai: bool = False

    def selected(self, s_nssai: SNssai) -> Traffic:
        """The same for the probe, for a slice of this S-NSSAI."""
        pools = tuple(map(ip_network, self.ue_pools))
        return Traffic(pools, self.teids, self.qfis, self.dnns, s_nssai if self.s_nssai else None)


def check_traffic(traffic: TrafficSpec) -> TrafficSpec:
    """The same; raises ValueError if it selects no packets."""
    if not (traffic.ue_pools or traffic.teids or traffic.dnns or traffic.s_nssai):
        raise ValueError("nothing says whose packets they are; expected ue_pools, teids, dnns, s_nssai")
    return traffic


@dataclass(frozen=True)
class ListensSpec:
    """Where a service takes requests, and its answers leave.

    Attributes:
        device: interface, in the service's network namespace.
        ports: TCP and UDP ports that it takes requests at.
        far_netns: network namespace of the other end of ``device``, a veth: answers are measured there then, behind
            the shaper of ``device``, whose rate can be set.
        echoed_octets: length of the identifier at the beginning of requests and their answers over UDP (DNS: 2), which
            distinguishes requests of the same conversation.
    """

    __pydantic_config__ = STRICT
    device: Device
    ports: Annotated[tuple[Annotated[int, Field(ge=1, le=65535)], ...], Field(min_length=1, max_length=64)]
    far_netns: Text | None = None
    echoed_octets: Literal[0, 2, 4, 8] = 0

    @property
    def selected(self) -> Ports:
        """The ports for the probe."""
        return Ports(tuple(dict.fromkeys(self.ports)), self.echoed_octets)
