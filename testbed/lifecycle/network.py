"""The testbed's network: namespaces, veth pairs, addresses, routes and the shared uplink's rate, by netlink."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pyroute2 import NetlinkError, NetNS, netns

from slicepilot.configs import ConfigError
from slicepilot.controller.actuators.egress import EgressRate
from slicepilot.controller.actuators.uplink import ClassfulUplink, SliceClass
from slicepilot.controller.system.net.namespaces import inside
from slicepilot.env.simulator.scenario import UplinkClass

from .journal import TestbedJournal, uninterrupted
from .layout import SINK_ADDRESS, UPLINK_ADDRESS, Layout, SlicePlan, netns_path
from .processes import ProgramError

# Room for GTP-U, UDP, IP and the extension header around an inner packet of 1500 bytes.
N3_MTU = 1600
UPLINK_MTU = 1500
FIRST_CLASS = 2
SYSCTLS = {
    "net/ipv4/ip_forward": "1",
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
    # Nothing but the load's packets: no router solicitations, no multicast listener reports.
    "net/ipv6/conf/all/disable_ipv6": "1",
    "net/ipv6/conf/default/disable_ipv6": "1",
}


def build(layout: Layout, journal: TestbedJournal, uplink_mbps: float, uplink_queue_ms: float) -> None:
    """Make all namespaces and links.

    Raises:
        ConfigError: a namespace of that name exists already.
        ProgramError: the kernel refuses.
    """
    try:
        _build(layout, journal, uplink_mbps, uplink_queue_ms)
    except (NetlinkError, OSError) as error:
        raise ProgramError(f"network of testbed {layout.name!r}: {error}") from error


def _build(layout: Layout, journal: TestbedJournal, uplink_mbps: float, uplink_queue_ms: float) -> None:
    for name in layout.namespaces:
        _make_namespace(name, journal)
    sockets = {name: NetNS(name, flags=0) for name in layout.namespaces}
    try:
        for name, socket in sockets.items():
            socket.link("set", index=1, state="up")
            inside(netns_path(name), _set_sysctls)
        for plan in layout.slices:
            _connect_slice(plan, layout, sockets)
        router, data_network = sockets[layout.router], sockets[layout.data_network]
        _veth(router, layout.data_network, "uplink", "n6", peer=data_network, mtu=UPLINK_MTU)
        _address(router, "uplink", UPLINK_ADDRESS)
        _address(data_network, "n6", SINK_ADDRESS)
        data_network.route("add", dst="10.60.0.0/16", gateway=UPLINK_ADDRESS)
        Uplink(layout, uplink_mbps, uplink_queue_ms).close()
    finally:
        for socket in sockets.values():
            socket.close()


def _make_namespace(name: str, journal: TestbedJournal) -> None:
    if netns_path(name).exists():
        raise ConfigError(
            f"network namespace {name!r} exists and is not this testbed's; use another name for the testbed"
        )
    journal.record("netns", name=name)
    with uninterrupted():  # it works in a child process, which would go on
        netns.create(name)


def _set_sysctls() -> None:
    for key, value in SYSCTLS.items():
        path = Path("/proc/sys") / key
        if path.exists():  # a kernel without IPv6 has nothing to switch off
            path.write_text(value)


def _connect_slice(plan: SlicePlan, layout: Layout, sockets: dict[str, NetNS]) -> None:
    """N3 and N4 to the radio side, N6 to the router, and the routes between."""
    ran, router, upf = sockets[layout.ran], sockets[layout.router], sockets[plan.netns]
    for link, mine, theirs in (("n3", plan.n3_upf, plan.n3_ran), ("n4", plan.n4_upf, plan.n4_smf)):
        _veth(upf, layout.ran, link, f"{link}-{plan.index}", peer=ran, mtu=N3_MTU)
        _address(upf, link, mine)
        _address(ran, f"{link}-{plan.index}", theirs)
    _veth(upf, layout.router, "n6", f"n6-{plan.index}", peer=router, mtu=1500)
    _address(upf, "n6", plan.n6_upf)
    _address(router, f"n6-{plan.index}", plan.n6_router)
    upf.route("add", dst="default", gateway=plan.n6_router)
    router.route("add", dst=plan.ue_pool, gateway=plan.n6_upf)


def _veth(socket: NetNS, peer_namespace: str, name: str, peer_name: str, peer: NetNS, mtu: int) -> None:
    """Make a veth pair between this namespace and the peer's, both ends up."""
    socket.link(
        "add",
        ifname=name,
        kind="veth",
        mtu=mtu,
        peer={"ifname": peer_name, "net_ns_fd": peer_namespace, "mtu": mtu},
    )
    socket.link("set", index=_index(socket, name), state="up")
    peer.link("set", index=_index(peer, peer_name), state="up")


def _index(socket: NetNS, name: str) -> int:
    result = list(socket.link_lookup(ifname=name))
    if not result:
        raise OSError(f"interface {name!r} has gone")
    return int(result[0])


def _address(socket: NetNS, name: str, address: str) -> None:
    socket.addr("add", index=_index(socket, name), address=address, prefixlen=24)


class Uplink:
    """The shared uplink's rate, a shaper on the router's side of it, that outlives this object.

    Args:
        queue_ms: how long its queue may grow, at any rate; with classes each of them has a queue of so much at that
            rate.
        classes: of all slices by name (`slicepilot.controller.actuators.uplink`); empty: a FIFO.
    """

    def __init__(
        self, layout: Layout, rate_mbps: float, queue_ms: float, classes: Mapping[str, UplinkClass] | None = None
    ) -> None:
        self._queue_ms = queue_ms
        netns = netns_path(layout.router)
        self._shaper: EgressRate | ClassfulUplink
        if classes:
            packets = self._packets(rate_mbps)
            own = [_slice_class(plan, classes[plan.name], rate_mbps, packets) for plan in layout.slices]
            self._shaper = ClassfulUplink("uplink", netns, rate_mbps, own)
        else:
            self._shaper = EgressRate("uplink", netns)
            self.set_rate(rate_mbps)

    def set_rate(self, rate_mbps: float) -> None:
        """Set the rate, in a few microseconds; raises ActuatorError."""
        if isinstance(self._shaper, ClassfulUplink):
            self._shaper.set_rate(rate_mbps)
        else:
            self._shaper.set(rate_mbps)
            self._shaper.set_queue(self._packets(rate_mbps))

    def close(self) -> None:
        """Release the socket; the rate stays."""
        self._shaper.close()

    def _packets(self, rate_mbps: float) -> int:
        return max(2, round(rate_mbps * 1e3 * self._queue_ms / (8 * UPLINK_MTU)))


def _slice_class(plan: SlicePlan, each: UplinkClass, rate_mbps: float, packets: int) -> SliceClass:
    ceiling = each.ceiling_mbps or rate_mbps
    number = FIRST_CLASS + plan.index
    return SliceClass(number, each.guarantee_mbps, ceiling, each.priority, packets, sources=plan.ue_pool)


def remove_namespace(name: str) -> None:
    """Remove a namespace; its links go with it. One that is gone already is fine."""
    path = netns_path(name)
    if path.exists():
        netns.remove(name)
    if os.path.lexists(path):
        path.unlink(missing_ok=True)
