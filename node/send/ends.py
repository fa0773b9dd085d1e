"""Where the packets of a slice enter its UPF and leave it, and what lies on the other side."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from slicepilot.configs import ConfigError
from slicepilot.controller.system.net import namespaces
from slicepilot.controller.telemetry.points import NetPoint, SlicePoints
from slicepilot.node.find.interfaces import far_end
from slicepilot.node.find.sockets import GTPU_PORT, SocketTable
from slicepilot.node.find.xdp import forwards_in_xdp
from slicepilot.node.live.backend import NodeBackend
from slicepilot.node.live.points import firsts

from .links import interface, route_to
from .packets import Address
from .sessions import N3Look
from .taps import Place

MACHINE = Path("/proc/1/ns/net")


@dataclass(frozen=True)
class Ends:
    """Of one slice.

    Attributes:
        n3, n6: the UPF's own interfaces; tun: of its TUN device, None without one.
        n3_far, n6_far: other ends of their veth pairs; None where they are not in a namespace that can be found.
        beyond: where N6 is measured, if that is neither `n6` nor `n6_far`: behind an uplink that slices share.
        in_xdp: whether the UPF forwards in XDP: then nothing can be seen at its own interfaces.
        bound: address of its GTP-U socket; None where it has none, or takes packets to any address.
    """

    n3: Place
    n6: Place
    tun: Place | None
    n3_far: Place | None
    n6_far: Place | None
    beyond: Place | None
    in_xdp: bool
    bound: Address | None

    @property
    def netns(self) -> Path:
        """Of the UPF."""
        return self.n3.netns

    def upf_address(self, family: int | None) -> Address | None:
        """Where the UPF takes GTP-U; of a family, if that is given."""
        if self.bound is not None:
            return self.bound if family in {None, self.bound.version} else None
        found = interface(self.n3)
        return next((one for one in found.addresses if family in {None, one.version}), None) if found else None

    def radio_address(self, family: int) -> Address | None:
        """An address of the other side of N3."""
        found = None if self.n3_far is None else interface(self.n3_far)
        return None if found is None else found.address_of(family)

    def host(self, family: int) -> Address | None:
        """An address of the data network that packets can be sent to: the nearest one that N6 leads to."""
        found = list(self._hosts(family))
        return next(
            (one for one in found if route_to(self.netns, one).device == self.n6.device), next(iter(found), None)
        )

    def _hosts(self, family: int) -> Iterator[Address]:
        for place in (self.beyond, self.n6_far):
            there = None if place is None else interface(place)
            if there is not None and (address := there.address_of(family)) is not None:
                yield address
        outside = ip_address("192.0.2.1" if family == 4 else "2001:db8::1")  # for documentation: the default route's
        with contextlib.suppress(OSError):
            if (gateway := route_to(self.netns, outside).gateway) is not None and gateway.version == family:
                yield gateway

    def look(self, points: SlicePoints) -> N3Look:
        """Where traffic on N3 can be seen: not on an interface whose XDP program takes it before."""
        far = self.n3_far if self.in_xdp else None
        return N3Look(far or self.n3, far is not None, points)


def ends_of(backend: NodeBackend, index: int) -> Ends:
    """Of a slice by its number; raises ConfigError where it is not known by which interface it sends towards N6."""
    points, target = backend.source.packets.points[index], backend.targets[index]
    found, devices = backend.found[points.name], backend.spec.slices[index].devices
    if target.egress_device is None:
        raise ConfigError(
            f"slices.{points.name}.devices.n6: not known by which interface it sends towards N6; accepted: its name"
        )
    netns = backend.found[firsts(backend.found)[points.name]].netns  # one path for slices of one namespace
    n3, n6 = (Place(netns, name) for name in (backend.n3[points.name], target.egress_device))
    given = [namespaces.path_of(one) for one in (devices.n3_netns, devices.n6_netns) if one is not None]
    n6_far = _far(n6, given)
    measured = None if points.n6 is None or points.n6.direction == "egress" else _place(points.n6)
    beyond = None if measured is None or (n6_far is not None and _same(measured, n6_far)) else measured
    bound = {one.address for one in SocketTable().opened(found.process).at(GTPU_PORT) if not one.anywhere}
    return Ends(
        n3=n3,
        n6=n6,
        tun=None if points.tun is None else Place(netns, points.tun.device),
        n3_far=_far(n3, given),
        n6_far=n6_far,
        beyond=beyond,
        in_xdp=forwards_in_xdp(found, n3.device),
        bound=ip_address(bound.pop()) if len(bound) == 1 else None,
    )


def _far(near: Place, given: list[Path]) -> Place | None:
    named = sorted(namespaces.NAMED.iterdir()) if namespaces.NAMED.is_dir() else []
    found = far_end(near.netns, near.device, [*given, *named, MACHINE])
    return None if found is None else Place(found.netns, found.device)


def _place(point: NetPoint) -> Place:
    return Place(namespaces.path_of(point.netns), point.device)


def _same(one: Place, other: Place) -> bool:
    return one.device == other.device and namespaces.identity(one.netns) == namespaces.identity(other.netns)
