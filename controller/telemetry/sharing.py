"""Several slices behind one interface: tables that tell their packets apart (``bpf/sharing.h``, ``services.h``)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network

from ...configs import ConfigError
from ..system.bpf.libbpf import BpfObject, Map
from .layout import QFI_NONE
from .points import NetPoint, SlicePoints, users

BY_QFI = 1 << 31
GROUP_BITS, MAPPED_BITS = 32, 96

Way = tuple[int, int] | tuple[int, IPv4Network | IPv6Network]
"""A group with the TEID of one of its tunnels, or with a pool."""


class Sharing:
    """Fills the tables.

    Raises:
        ConfigError: it is not said, or not clear, which packets are whose.
    """

    def __init__(self, points: Sequence[SlicePoints], loaded: BpfObject) -> None:
        self._points = points
        self._tunnels, self._pools, self._qfis = (loaded.map(f"shared_{name}") for name in ("tunnels", "pools", "qfis"))
        shared = {point: indices for point, indices in users(points, "n3").items() if len(indices) > 1}
        self._groups = {point: number for number, point in enumerate(shared)}
        for group, members in enumerate(shared.values()):
            for way, owners in self._ways(group, members).items():
                self._lead(way, owners)

    def class_of(self, point: NetPoint) -> int | None:
        """Number of the group that shares an N3; None for one of a slice of its own."""
        return self._groups.get(point)

    def _ways(self, group: int, members: Sequence[int]) -> dict[Way, list[int]]:
        ways: dict[Way, list[int]] = {}
        for index in members:
            traffic = self._points[index].traffic
            if traffic is None:
                others = ", ".join(self._points[other].name for other in members if other != index)
                raise ConfigError(
                    f"slices.{self._points[index].name}: its N3 is also that of {others}; accepted: traffic.ue_pools "
                    "or traffic.teids in each, which say whose packets are whose"
                )
            for teid in traffic.teids:
                ways.setdefault((group, teid), []).append(index)
            for pool in traffic.ue_pools:
                ways.setdefault((group, pool), []).append(index)
        return ways

    def _lead(self, way: Way, owners: Sequence[int]) -> None:
        first = owners[0]
        value = first
        if len(owners) > 1 or self._qfis_of(first):
            value = first | BY_QFI
            for qfi, index in self._by_qfi(way, owners).items():
                self._qfis.update(struct.pack("=2I", first, qfi), struct.pack("=I", index))
        table, key = self._place(way)
        table.update(key, struct.pack("=I", value))

    def _by_qfi(self, way: Way, owners: Sequence[int]) -> dict[int, int]:
        found: dict[int, int] = {}
        for index in owners:
            for qfi in self._qfis_of(index) or range(QFI_NONE + 1):
                if (other := found.setdefault(qfi, index)) != index:
                    names = f"{self._points[other].name} and {self._points[index].name}"
                    raise ConfigError(
                        f"{names}: {_spoken(way)} belongs to both; accepted: pools, TEIDs or QFIs that are one slice's"
                    )
        return found

    def _qfis_of(self, index: int) -> tuple[int, ...]:
        traffic = self._points[index].traffic
        return () if traffic is None else traffic.qfis

    def _place(self, way: Way) -> tuple[Map, bytes]:
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
        places: each interface that services are at: where requests come in, where answers leave.

    Raises:
        ConfigError: two services at one interface have a port in common, or answers that leave by several ways.
    """

    def __init__(self, points: Sequence[SlicePoints], loaded: BpfObject) -> None:
        self.places: list[tuple[NetPoint, NetPoint]] = []
        table = loaded.map("service_ports")
        for number, (point, indices) in enumerate(users(points, "n3", services=True).items()):
            owners: dict[int, SlicePoints] = {}
            first = points[indices[0]]
            for index in indices:
                one = points[index]
                assert one.ports is not None
                if one.n6 != first.n6:
                    raise ConfigError(
                        f"slices.{one.name}: its answers are measured elsewhere than those of {first.name}, at the same"
                        " interface; accepted: the same far_netns in both"
                    )
                for port in one.ports.numbers:
                    if (other := owners.setdefault(port, one)) is not one:
                        raise ConfigError(
                            f"slices.{one.name}: port {port} of {point.device} is also that of {other.name}; accepted: "
                            "ports that are one slice's"
                        )
                    value = struct.pack("=2I", index, one.ports.echoed_octets)
                    table.update(struct.pack("=I", number << 16 | port), value)
            assert first.n6 is not None
            self.places.append((point, first.n6))


def told_by_qfi(points: Sequence[SlicePoints]) -> bool:
    """Whether packets of one UE may belong to several slices."""
    return any(one.traffic is not None and one.traffic.qfis for one in points)


def _spoken(way: Way) -> str:
    _, what = way
    return f"TEID {what:#x}" if isinstance(what, int) else f"pool {what}"
