"""The packet programs on every point of every slice, and the memory they write."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from slicepilot.configs import ConfigError
from slicepilot.controller.system.bpf.libbpf import BpfObject, RunStats
from slicepilot.controller.system.bpf.ringbuf import RingBuffer

from . import layout
from .attachments import Hook, Hooks
from .layout import FOLDER, mapped
from .points import SlicePoints, users
from .sharing import ServicePorts, Sharing, split_by_qfi
from .window import ALL, PacketWindow

WAITING = 65536  # conversations with services that are remembered
SECRET_OCTETS = 16  # of bpf/siphash.h: every load has its own, which is kept nowhere


class PacketPrograms:
    """The packet programs and their memory, loaded but not attached.

    Args:
        points: one per slice, in order.
        report_every: one packet in that many also goes into the ring buffer `events`; 0: none.
        timed_per_s: time about so many packets of a slice per second at most, by timing every second, fourth and so on
            of more; decided when a window ends. 0: as many as there are.
        by_flow: keep figures by flow too; costs each packet some 20 ns at each point.
        uplink_mbps: rate of the shared uplink; inf: unknown, its use reads 0.

    Attributes:
        slices: what was counted since the start, `layout.SLICE` by slice, and last what belongs to none.
        flows, flow_keys: see `flows`; flows_of: how many there are, by slice.
        events: `layout.PACKET_EVENT`.
        sharing: which packets are whose, where slices share an N3; services: at which ports they are.
        window: what happened since it was ended last.

    Raises:
        ConfigError: no slices, too many, or points that do not go together.
        ProbeError: something that is needed is missing.
    """

    def __init__(
        self,
        points: Sequence[SlicePoints],
        *,
        report_every: int = 0,
        timed_per_s: int = 0,
        by_flow: bool = False,
        uplink_mbps: float = float("inf"),
    ) -> None:
        if not 1 <= len(points) <= layout.MAX_SLICES:
            raise ConfigError(f"slices = {len(points)}; expected 1 to {layout.MAX_SLICES}")
        if len({point.n6 is None for point in points}) > 1:
            raise ConfigError("n6 = given for some slices only; expected for all of them, or for none")
        self.points = tuple(points)
        self.object = BpfObject(
            FOLDER / "packets.bpf.o",
            {
                ".rodata.packets": _constants(points, report_every, by_flow),
                ".rodata.secret": os.urandom(SECRET_OCTETS),
            },
            {
                "slices": len(points) + 1,
                "flights": len(points),
                "requests": WAITING if any(point.ports for point in points) else 1,
            },
        )
        try:
            self.slices = mapped(self.object, "slices", layout.SLICE, writable=True)
            self.slices["timing"]["enter_up_to"] = self.slices["timing"]["leave_up_to"] = ALL
            services = [point.ports is not None for point in points]
            self.window = PacketWindow(self.slices[:-1], _last(points), services, uplink_mbps, timed_per_s)
            self.flows = mapped(self.object, "flows", layout.FLOW, writable=True)
            self.flow_keys = mapped(self.object, ".bss.flow_keys", "u8", writable=True)
            self.flows_of = mapped(self.object, ".bss.flows_of", ("u4", layout.MAX_SLICES), writable=True)[0]
            self.sharing = Sharing(points, self.object)
            self.services = ServicePorts(points, self.object)
            self.events = RingBuffer(self.object.map("packet_events"), layout.PACKET_EVENT)
        except BaseException:
            self.object.close()
            raise

    def close(self) -> None:
        self.events.close()
        self.object.close()


class PacketProbe(PacketPrograms):
    """Counts and times the packets of slices; arguments as for `PacketPrograms`.

    Raises:
        ConfigError, ProbeError: as there, or a point is not there; nothing stays attached.
    """

    def __init__(self, points: Sequence[SlicePoints], **options: Any) -> None:
        super().__init__(points, **options)
        try:
            self.hooks = Hooks(self._plan())
        except BaseException:
            super().close()
            raise

    def __enter__(self) -> PacketProbe:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cost(self) -> dict[str, RunStats]:
        """Runs and run time by point ("n3", "tun", "n6"), while `libbpf.count_run_time` is on."""
        return self.hooks.cost()

    def close(self) -> None:
        """Detach everything that was attached, then unload."""
        try:
            self.hooks.close()
        finally:
            super().close()

    def _plan(self) -> Iterator[Hook]:
        n3, tun, n6 = (self.object.program(name).fd for name in ("n3_ingress", "tun_ingress", "n6_exit"))
        for point, indices in users(self.points, "n3").items():
            group = self.sharing.class_of(point)
            yield Hook(point, n3, "n3", indices[0] if group is None else layout.CLASS_GROUP | group)
        for point, indices in users(self.points, "tun").items():
            yield Hook(point, tun, "tun", _class_of(indices), may_wait=True)
        for point, indices in users(self.points, "n6").items():
            yield Hook(point, n6, "n6", _class_of(indices))
        request, answer = (self.object.program(f"service_{name}").fd for name in ("request", "answer"))
        for number, (came, left) in enumerate(self.services.interfaces):
            yield Hook(came, request, "n3", number)
            yield Hook(left, answer, "n6", number)


def _class_of(indices: Sequence[int]) -> int:
    return indices[0] if len(indices) == 1 else layout.CLASS_SHARED


def _last(points: Sequence[SlicePoints]) -> int:
    return layout.AT_TUN if points[0].n6 is None else layout.AT_N6


def _constants(points: Sequence[SlicePoints], report_every: int, by_flow: bool) -> bytes:
    """``config`` of packets.bpf.c; one in so many random 32-bit numbers is not above the second."""
    shared = any(len(indices) > 1 for at in ("tun", "n6") for indices in users(points, at).values())
    reported = (1 << 32) // max(report_every, 1) - 1, bool(report_every)
    return struct.pack("=7I", len(points), *reported, _last(points), by_flow, split_by_qfi(points), shared)
