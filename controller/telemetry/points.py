"""Where a slice is measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Literal

from slicepilot.env.slices import SNssai

Direction = Literal["ingress", "egress"]


@dataclass(frozen=True, slots=True)
class NetPoint:
    """One hook of one interface.

    Attributes:
        netns: a name (``ip netns``) or a path (``/proc/PID/ns/net``).
        device: name of the interface.
        direction: which hook.
        behind: namespace and name of the interface at the other end (veth(4)). It identifies this interface instead of
            ``device``, since container runtimes create it with a random name for every container.
    """

    netns: str | Path
    device: str
    direction: Direction = "ingress"
    behind: tuple[Path, str] | None = None

    def facing(self, direction: Direction) -> NetPoint:
        """The hook of the same interface for the given direction."""
        return dataclasses.replace(self, direction=direction)

    def __str__(self) -> str:
        device = self.device if self.behind is None else f"the other end of {self.behind[1]},"
        return f"{device} {self.direction} in network namespace {self.netns}"


@dataclass(frozen=True, slots=True)
class Traffic:
    """Which packets of an N3 that several slices share are one slice's: those of its tunnels, and of others those whose
    UE has an address of its pools. Tunnels are given, or learned from sessions that fit all that is said of these.

    Attributes:
        ue_pools: of the UEs' addresses; of IPv6 /64 or shorter, what a UE owns (TS 23.501, clause 5.8.2.2.3).
        teids: of the UPF's ends of its tunnels.
        qfis: QoS flows; none: all. The same tunnel or pool may belong to several slices of which each has its own.
        dnns: of sessions; none: any.
        s_nssai: of sessions; None: any.
    """

    ue_pools: tuple[IPv4Network | IPv6Network, ...] = ()
    teids: tuple[int, ...] = ()
    qfis: tuple[int, ...] = ()
    dnns: tuple[str, ...] = ()
    s_nssai: SNssai | None = None

    @property
    def learned(self) -> bool:
        """Whether sessions say whose packets are whose."""
        return bool(self.dnns) or self.s_nssai is not None

    @property
    def given(self) -> bool:
        return bool(self.ue_pools or self.teids)


@dataclass(frozen=True, slots=True)
class Ports:
    """Where a slice that is no UPF, but a service, takes its requests.

    Attributes:
        numbers: of TCP and UDP ports.
        echoed_octets: that answers over UDP repeat of the beginning of their request: 0, 2, 4 or 8.
    """

    numbers: tuple[int, ...]
    echoed_octets: int = 0


@dataclass(frozen=True, slots=True)
class SlicePoints:
    """Everything one slice is measured at.

    Attributes:
        name: the slice.
        n3: where GTP-U from the radio arrives; where XDP takes it before any hook, the far end that it leaves by.
        tun: where the UPF hands inner packets to the kernel; ingress, since what is written to a TUN device arrives
            there.
        n6: where they leave. Several slices may name the same point, for instance the far end of a shared uplink.
        n4: interface with PFCP, both directions of which are watched.
        cgroup: folder of the slice's CPU cgroup, under version 1 or 2; groups below it count too.
        traffic: its part of ``n3``, where others have the same; ``tun`` and ``n6`` may be the same then as well.
        ports: of a service: it takes requests there, by ``n3``, and its answers leave by ``n6``; no UPF has any.
    """

    name: str
    n3: NetPoint
    tun: NetPoint | None = None
    n6: NetPoint | None = None
    n4: NetPoint | None = None
    cgroup: Path | None = None
    traffic: Traffic | None = None
    ports: Ports | None = None


def users(
    points: Sequence[SlicePoints], role: Literal["n3", "tun", "n6"], *, services: bool = False
) -> dict[NetPoint, list[int]]:
    """Each point of a role, with the indices of the UPFs' slices that have it, or of the services'."""
    result: dict[NetPoint, list[int]] = {}
    for index, item in enumerate(points):
        point: NetPoint | None = getattr(item, role)
        if point is not None and (item.ports is not None) is services:
            result.setdefault(point, []).append(index)
    return result
