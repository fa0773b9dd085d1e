"""How a packet is put on its way through a UPF, and what it passes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from ipaddress import ip_address

from .ends import Ends
from .packets import DISCARD_PORT, GTPU_PORT, Address, g_pdu, marked, udp_packet
from .senders import DatagramSender, LinkSender, Sender
from .sessions import Session
from .taps import Place

LOOPBACK = "lo"
# Hops of a packet. Of two the UPF's namespace takes one, and nobody behind can route it any further; behind an uplink
# with routers of its own it needs some more.
NEAR_HOPS, FAR_HOPS = 2, 8
_THIS_MACHINE = {4: "127.0.0.1", 6: "::1"}


class NothingToSendError(Exception):
    """What would have to be known, and how it can be said."""


@dataclass(frozen=True)
class Stop:
    """Where packets of a direction can be seen.

    Attributes:
        place: the interface; outgoing: whether they go out of it there.
        tunnelled: whether they are in a G-PDU.
        passed: what having been seen here means.
    """

    place: Place
    outgoing: bool
    tunnelled: bool
    passed: str


@dataclass(frozen=True)
class Way(ABC):
    """One direction of a slice.

    Attributes:
        ends: of the slice; session: the packets' own.
        host: of the data network, which uplink is sent to and downlink comes from.
    """

    ends: Ends
    session: Session
    host: Address

    @property
    @abstractmethod
    def stops(self) -> tuple[Stop, ...]:
        """What packets pass, in order; they have arrived at the last."""

    @property
    @abstractmethod
    def path(self) -> str:
        """Between which addresses they are sent, and from where."""

    @abstractmethod
    def opened(self) -> Sender:
        """What sends packets; raises OSError."""

    @abstractmethod
    def packet(self, mark: bytes) -> bytes:
        """What it is given to send, for a mark."""


@dataclass(frozen=True)
class Uplink(Way):
    """From the radio side, in a tunnel.

    Attributes:
        upf: the UPF's address at N3; gnb: whom packets come from.
        near: whether they start in the UPF's own namespace, for want of another side of N3 that is known.
    """

    upf: Address
    gnb: Address
    near: bool

    @property
    def stops(self) -> tuple[Stop, ...]:
        """As `Way.stops`."""
        ends = self.ends
        if self.near:
            found = [Stop(Place(ends.netns, LOOPBACK), False, True, f"reached {self.upf} from within")]
        else:
            found = [] if ends.in_xdp else [Stop(ends.n3, False, True, "reached N3")]
        if ends.tun is not None:
            found.append(Stop(ends.tun, False, False, "left the UPF for its TUN device"))
        if not ends.in_xdp:
            found.append(Stop(ends.n6, True, False, "left on N6"))
        found += [Stop(ends.n6_far, False, False, "arrived at its far end")] if ends.n6_far is not None else []
        found += [Stop(ends.beyond, False, False, "arrived behind it")] if ends.beyond is not None else []
        return tuple(found)

    @property
    def path(self) -> str:
        """As `Way.path`."""
        source = "within its namespace" if self.near else f"{self.gnb}"
        return f"UE {self.session.ue} through TEID {self.session.teid:#x} at {self.upf}, from {source}, to {self.host}"

    def opened(self) -> Sender:
        """As `Way.opened`."""
        ends = self.ends
        if self.near or ends.n3_far is None:
            return DatagramSender(ends.netns, self.upf, GTPU_PORT, source=self.gnb)
        return LinkSender(ends.n3_far, ends.n3)

    def packet(self, mark: bytes) -> bytes:
        """As `Way.packet`."""
        ue, hops = self.session.ue, NEAR_HOPS if self.ends.beyond is None else FAR_HOPS
        inner = udp_packet(ue, self.host, DISCARD_PORT, marked(mark, ue.version), hops)
        assert self.session.teid is not None
        datagram = g_pdu(self.session.teid, self.session.qfi, inner)
        return datagram if self.near else udp_packet(self.gnb, self.upf, GTPU_PORT, datagram)


@dataclass(frozen=True)
class Downlink(Way):
    """From the data network: over the link of N6, else as the namespace behind it routes, else from within."""

    @property
    def _from(self) -> Place | None:
        return self.ends.n6_far or self.ends.beyond

    @property
    def stops(self) -> tuple[Stop, ...]:
        """As `Way.stops`."""
        ends = self.ends
        found = [Stop(ends.n6, False, False, "reached N6")] if self._from is not None and not ends.in_xdp else []
        if ends.tun is not None:
            found.append(Stop(ends.tun, True, False, "reached the UPF's TUN device"))
        if not ends.in_xdp:
            found.append(Stop(ends.n3, True, True, "left the UPF on N3"))
        found += [Stop(ends.n3_far, False, True, "arrived at the radio side")] if ends.n3_far is not None else []
        return tuple(found)

    @property
    def path(self) -> str:
        """As `Way.path`."""
        return f"{self.host if self._from is not None else 'within its namespace'} to UE {self.session.ue}"

    def opened(self) -> Sender:
        """As `Way.opened`."""
        ends, ue = self.ends, self.session.ue
        if ends.n6_far is not None:
            return LinkSender(ends.n6_far, ends.n6)
        if ends.beyond is not None:
            return DatagramSender(ends.beyond.netns, ue, DISCARD_PORT, hops=FAR_HOPS)
        return DatagramSender(ends.netns, ue, DISCARD_PORT, hops=NEAR_HOPS)

    def packet(self, mark: bytes) -> bytes:
        """As `Way.packet`."""
        ue = self.session.ue
        payload = marked(mark, ue.version)
        return payload if self.ends.n6_far is None else udp_packet(self.host, ue, DISCARD_PORT, payload, NEAR_HOPS)


def uplink(ends: Ends, session: Session, host: Address | None) -> Uplink:
    """The way of a session's uplink; raises NothingToSendError."""
    if session.teid is None:
        raise NothingToSendError("the UPF's end of its tunnel is not known: test_session.teid says it")
    upf = session.upf or ends.upf_address(None if session.gnb is None else session.gnb.version)
    if upf is None:
        raise NothingToSendError(f"{ends.n3.device} has no address of the radio side's family that GTP-U could go to")
    if ends.in_xdp and (ends.n6_far or ends.beyond) is None:
        raise NothingToSendError(f"what XDP sends is seen at the far end of {ends.n6.device} only, which is not known")
    gnb = session.gnb or ends.radio_address(upf.version)
    near = ends.n3_far is None or gnb is None
    if near and ends.in_xdp:
        raise NothingToSendError(
            f"XDP takes only what comes over {ends.n3.device}: that takes its far end, with an address there or "
            "test_session.gnb"
        )
    return Uplink(ends, session, _known(host, session), upf, gnb or ip_address(_THIS_MACHINE[upf.version]), near)


def downlink(ends: Ends, session: Session, host: Address | None) -> Downlink:
    """The way of a session's downlink; raises NothingToSendError."""
    if ends.in_xdp and (ends.n6_far or ends.beyond) is None:
        raise NothingToSendError(f"XDP takes only what comes over {ends.n6.device}, whose far end is not known")
    if ends.in_xdp and ends.n3_far is None:
        raise NothingToSendError(f"what XDP sends is seen at the far end of {ends.n3.device} only, which is not known")
    return Downlink(ends, session, _known(host, session))


def _known(host: Address | None, session: Session) -> Address:
    if host is None:
        raise NothingToSendError(
            f"no address of IPv{session.ue.version} is known beyond N6: test_session.host says one"
        )
    return host
