"""What may have become of packets that were seen at one place and not at the next."""

from __future__ import annotations

import errno
import os

from slicepilot.node.find.interfaces import interfaces

from .links import Interface, interface, route_to, setting
from .packets import Address
from .taps import Place
from .ways import Downlink, Stop, Uplink, Way

UPF_UPLINK = (
    "typical causes: a closed gate, a rate limit, a rule (FAR) that drops or buffers; Open5GS buffers for ever where "
    "the SMF leaves out the interface type (IE 160)"
)
UPF_DOWNLINK = (
    "typical causes: no session has the UE's address, a closed gate, a rule (FAR) that buffers (the UE is idle) or "
    "drops, a gNB that N3 does not lead to"
)
# What the kernel answers of a source that rp_filter does not accept; Linux 6.18 the latter.
_UNTRUSTED = {errno.EXDEV, errno.EINVAL}
REDIRECTED = "a far end without NAPI: a veth takes what XDP redirects to it only with GRO or an XDP program of its own"
FIREWALL = "typical causes: a firewall between them, or a next hop that does not answer"


def cause(way: Way, last: Stop | None, missed: Stop, unknown_tunnel: bool) -> str:
    """In a few words.

    Args:
        way: of the packets.
        last: where they were seen last; None for nowhere.
        missed: where they should have been seen next.
        unknown_tunnel: whether the UPF has sent an Error Indication for the tunnel.

    Raises:
        OSError: the UPF's namespace has gone.
    """
    if unknown_tunnel:
        assert isinstance(way, Uplink)
        return f"the UPF answers that it does not know TEID {way.session.teid:#x} (Error Indication)"
    for stop in (last, missed):
        if stop is not None and (why := _down(stop.place)) is not None:
            return why
    ends = way.ends
    if last is None and ends.in_xdp:
        return f"{UPF_UPLINK if isinstance(way, Uplink) else UPF_DOWNLINK}, {REDIRECTED}"
    if last is None:
        return "they do not come over the link"
    if isinstance(way, Uplink):
        if last.tunnelled:
            return UPF_UPLINK
        if ends.tun is not None and ends.n6 is not None and last.place == ends.tun:
            return _unrouted(ends.tun, ends.n6, way.host, way.session.ue)
        return FIREWALL
    assert isinstance(way, Downlink)
    if ends.tun is not None and ends.n6 is not None and missed.place == ends.tun:
        return _unrouted(ends.n6, ends.tun, way.session.ue, way.host)
    return UPF_DOWNLINK if missed.tunnelled and last.place in {ends.tun, ends.n6} else FIREWALL


def misled(way: Downlink) -> str | None:
    """Why a packet to the UE would not stay with the UPF, so that it must not be sent; None where it would.

    An address that is no UE's here may be somebody's elsewhere.
    """
    ends = way.ends
    if ends.in_xdp:
        return None
    leads = route_to(ends.netns, way.session.ue, way.host, ends.n6.device).device
    if leads is None or leads not in interfaces(ends.netns).carriers:
        return None
    return f"{way.session.ue} is routed to {leads}, and not into the UPF"


def _down(place: Place) -> str | None:
    found: Interface | None = interface(place)
    if found is None:
        return f"{place.device} has gone"
    if not found.up:
        return f"{place.device} is down"
    return None if found.carrier else f"{place.device} has no carrier: its other end is down"


def _unrouted(start: Place, end: Place, to: Address, source: Address) -> str:
    """Why the kernel does not send packets on from one interface to the other, as far as it says."""
    for device in (start.device, end.device):
        if to.version == 6 and setting(start.netns, 6, device, "disable_ipv6"):
            return f"IPv6 is switched off (net.ipv6.conf.{device}.disable_ipv6)"
    if setting(start.netns, to.version, start.device, "forwarding") == 0:
        return f"forwarding is switched off (net.ipv{to.version}.conf.{start.device}.forwarding)"
    there = route_to(start.netns, to, source, start.device)
    if there.refused in _UNTRUSTED and any(
        setting(start.netns, to.version, device, "rp_filter") for device in (start.device, "all")
    ):
        return f"rp_filter drops what comes from {source} by {start.device}, where no route leads back"
    if there.refused:
        return f"no route to {to} ({os.strerror(there.refused)})"
    if there.device != end.device:
        return f"{to} is routed to {there.device}, and not to {end.device}"
    return FIREWALL
