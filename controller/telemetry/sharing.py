"""Several slices behind one interface: tables that distinguish their packets (``bpf/sharing.h``, ``services.h``)."""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network

from slicepilot.configs import ConfigError
from slicepilot.controller.system.bpf.libbpf import BpfObject, Map

from .layout import QFI_NONE
from .points import NetPoint, SlicePoints, users

BY_QFI = 1 << 31
GROUP_BITS, MAPPED_BITS = 32, 96

Network = IPv4Network | IPv6Network
Way = tuple[int, int] | tuple[int, Network]
"""A group with the TEID of one of its tunnels, or with a pool."""
Owners = tuple[int, ...]
"""A slice, or several that are distinguished by QFI."""


@dataclass(slots=True)
class _Learned:
    owners: Owners
    sessions: set[object] = field(default_factory=set)


class Sharing:
    """Fills the tables: with what is given once, with what sessions bring as they come and go.

    Raises:
        ConfigError: it is unclear which packets are whose.
    """

    def __init__(self, points: Sequence[SlicePoints], loaded: BpfObject) -> None:
        self._points = points
        self._tunnels, self._pools, self._qfis = (loaded.map(f"shared_{name}") for name in ("tunnels", "pools", "qfis"))
        shared = {point: indices for point, indices in users(points, "n3").items() if len(indices) > 1}
        self._groups = {point: number for number, point in enumerate(shared)}
        self._anchors: dict[Owners, int] = {}
        self._given: dict[Way, Owners] = {}
        self._learned: dict[Way, _Learned] = {}
        self._ways_of: dict[object, list[Way]] = {}
        for group, members in enumerate(shared.values()):
            for way, owners in self._ways(group, members).items():
                if (two := self.contenders(owners)) is not None:
                    raise ConfigError(
                        f"{self._named(two)}: {_spoken(way)} belongs to both; expected pools, TEIDs or QFIs that are "
                        "one slice's"
                    )
                self._given[way] = tuple(owners)
                self._lead(way, tuple(owners))
        self._prefixes = {(what.version, what.prefixlen) for _, what in self._given if not isinstance(what, int)}

    def class_of(self, point: NetPoint) -> int | None:
        """Number of the group that shares an N3; None for the N3 of a single slice."""
        return self._groups.get(point)

    def contenders(self, owners: Sequence[int]) -> Owners | None:
        """Two of some slices that no QFI distinguishes; None where all are distinguished."""
        result: dict[int, int] = {}
        for index in owners:
            for qfi in self._qfis_of(index) or range(QFI_NONE + 1):
                if (other := result.setdefault(qfi, index)) != index:
                    return other, index
        return None

    def claim(self, session: object, owners: Owners, teids: Collection[int], addresses: Collection[Network]) -> str:
        """Have packets of a session counted as its slices'; returns why they cannot be, or nothing.

        Packets are identified by tunnel, and by the UE's address, which a UE could forge, only where no tunnel is
        known. If a tunnel or address belongs to another slice already, by configuration or an earlier claim, the whole
        session is left out. A second claim of the same session replaces the first.
        """
        self.release(session)
        if (two := self.contenders(owners)) is not None:
            return f"fits both {self._named(two)}"
        groups: dict[int, list[int]] = {}
        for index in owners:
            if (group := self.class_of(self._points[index].n3)) is not None:
                groups.setdefault(group, []).append(index)
        ways = self._ways_of[session] = []
        try:
            for group, members in groups.items():
                report: list[Way] = [(group, teid) for teid in teids]
                by_address: list[Way] = [(group, address) for address in addresses]
                for way in report + by_address:
                    if (others := self._held_by(way)) is not None and others != tuple(members):
                        self.release(session)
                        return f"{_spoken(way)} is {self._named(others)}'s"
                for way in report or by_address:
                    self._add(way, tuple(members), session)
                    ways.append(way)
        except OSError as error:
            self.release(session)
            return str(error)
        return ""

    def release(self, session: object) -> None:
        """What a session has claimed is nobody's from now on, unless other sessions have claimed it too."""
        for way in self._ways_of.pop(session, ()):
            item = self._learned[way]
            item.sessions.discard(session)
            if not item.sessions:
                del self._learned[way]
                if way not in self._given:
                    table, key = self._key(way)
                    table.delete(key)

    def _add(self, way: Way, owners: Owners, session: object) -> None:
        item = self._learned.get(way)
        if item is None:
            if way not in self._given:
                self._lead(way, owners)
            item = self._learned[way] = _Learned(owners)
        item.sessions.add(session)

    def _held_by(self, way: Way) -> Owners | None:
        """Whose a tunnel or an address is already."""
        if way in self._learned:
            return self._learned[way].owners
        group, what = way
        if isinstance(what, int):
            return self._given.get(way)
        for version, length in sorted(self._prefixes, reverse=True):
            if version == what.version and length <= what.prefixlen:
                owners = self._given.get((group, what.supernet(new_prefix=length)))
                if owners is not None:
                    return owners
        return None

    def _ways(self, group: int, members: Sequence[int]) -> dict[Way, list[int]]:
        ways: dict[Way, list[int]] = {}
        for index in members:
            traffic = self._points[index].traffic
            if traffic is None:
                others = ", ".join(self._points[other].name for other in members if other != index)
                raise ConfigError(
                    f"slices.{self._points[index].name}: its N3 is also that of {others}; expected traffic.ue_pools "
                    "or traffic.teids in each, which say whose packets are whose, or traffic.dnns or traffic.s_nssai, "
                    "by which it is learned"
                )
            for teid in traffic.teids:
                ways.setdefault((group, teid), []).append(index)
            for pool in traffic.ue_pools:
                ways.setdefault((group, pool), []).append(index)
        return ways

    def _lead(self, way: Way, owners: Owners) -> None:
        value = next(iter(owners))
        if len(owners) > 1 or self._qfis_of(value):
            value = self._anchor(owners) | BY_QFI
        table, key = self._key(way)
        table.update(key, struct.pack("=I", value))

    def _anchor(self, owners: Owners) -> int:
        """Number under which QFIs lead to these slices."""
        if owners not in self._anchors:
            number = len(self._anchors)
            by_qfi = {qfi: index for index in owners for qfi in self._qfis_of(index) or range(QFI_NONE + 1)}
            for qfi, index in by_qfi.items():
                self._qfis.update(struct.pack("=2I", number, qfi), struct.pack("=I", index))
            self._anchors[owners] = number
        return self._anchors[owners]

    def _named(self, owners: Sequence[int]) -> str:
        return " and ".join(self._points[index].name for index in owners)

    def _qfis_of(self, index: int) -> tuple[int, ...]:
        traffic = self._points[index].traffic
        return () if traffic is None else traffic.qfis

    def _key(self, way: Way) -> tuple[Map, bytes]:
        group, what = way
        if isinstance(what, int):
            return self._tunnels, struct.pack("=2I", group, what)
        if what.version == 4:
            bits, address = MAPPED_BITS + what.prefixlen, b"\0" * 10 + b"\xff\xff" + what.network_address.packed
        else:
            bits, address = what.prefixlen, what.network_address.packed
        return self._pools, struct.pack("=2I16s", GROUP_BITS + bits, group, address)


class ServicePorts:
    """Fills the table of services' ports.

    Attributes:
        interfaces: each interface that services are at: where requests come in, where answers leave.

    Raises:
        ConfigError: two services at one interface have a port in common, or answers that leave by several ways.
    """

    def __init__(self, points: Sequence[SlicePoints], loaded: BpfObject) -> None:
        self.interfaces: list[tuple[NetPoint, NetPoint]] = []
        table = loaded.map("service_ports")
        for number, (point, indices) in enumerate(users(points, "n3", services=True).items()):
            owners: dict[int, SlicePoints] = {}
            first = points[indices[0]]
            for index in indices:
                item = points[index]
                assert item.ports is not None
                if item.n6 != first.n6:
                    raise ConfigError(
                        f"slices.{item.name}: its answers are measured elsewhere than those of {first.name}, at the "
                        "same interface; expected the same far_netns in both"
                    )
                for port in item.ports.numbers:
                    if (other := owners.setdefault(port, item)) is not item:
                        raise ConfigError(
                            f"slices.{item.name}: port {port} of {point.device} is also that of {other.name}; "
                            "expected ports that are one slice's"
                        )
                    value = struct.pack("=2I", index, item.ports.echoed_octets)
                    table.update(struct.pack("=I", number << 16 | port), value)
            assert first.n6 is not None
            self.interfaces.append((point, first.n6))


def split_by_qfi(points: Sequence[SlicePoints]) -> bool:
    """Whether packets of one UE may belong to several slices."""
    return any(point.traffic is not None and point.traffic.qfis for point in points)


def _spoken(way: Way) -> str:
    _, what = way
    return f"TEID {what:#x}" if isinstance(what, int) else f"pool {what}"
