"""The PFCP program on N4 of every slice, and the memory it writes."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from slicepilot.controller.system.bpf.libbpf import BpfObject
from slicepilot.controller.system.bpf.ringbuf import RingBuffer

from . import layout
from .attachments import Hook, Hooks
from .layout import FOLDER, mapped
from .points import SlicePoints


class PfcpProbe:
    """Times PFCP requests until their answers, for slices with an N4 point.

    Args:
        points: one per slice, in order.
        report: put every transaction into `events` too?

    Attributes:
        transactions: `layout.PFCP` by slice and kind (`layout.PFCP_KINDS`), (S, 7).
        events: `layout.PFCP_EVENT`.

    Raises:
        ProbeError: something that is needed is missing; nothing stays attached.
    """

    def __init__(self, points: Sequence[SlicePoints], *, report: bool = False) -> None:
        kinds = len(layout.PFCP_KINDS)
        self._object = BpfObject(
            FOLDER / "pfcp.bpf.o",
            {".rodata.pfcp": struct.pack("=I", report)},
            {"transactions": len(points) * kinds},
        )
        try:
            self.transactions = mapped(self._object, "transactions", layout.PFCP).reshape(len(points), kinds)
            self.events = RingBuffer(self._object.map("pfcp_events"), layout.PFCP_EVENT)
            program = self._object.program("n4_message").fd
            self.hooks = Hooks(
                Hook(item.n4.facing(direction), program, "n4", index)
                for index, item in enumerate(points)
                if item.n4
                for direction in ("ingress", "egress")
            )
        except BaseException:
            self._object.close()
            raise

    def __enter__(self) -> PfcpProbe:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        try:
            self.hooks.close()
        finally:
            self.events.close()
            self._object.close()
