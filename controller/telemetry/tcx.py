"""A BPF program on a TCX hook, where the kernel has it (Linux 6.6): costs a packet about 100 ns less than a clsact
filter, and goes by itself when the process ends, however it ends."""

from __future__ import annotations

import errno
import struct

from slicepilot.controller.system.bpf.libbpf import BpfObject, RunStats, TcxLink, run_stats
from slicepilot.controller.system.net import namespaces

from .objects import FOLDER
from .points import NetPoint


class Unsupported(Exception):
    """The kernel has no TCX."""


class TcxProgram:
    """One attached program.

    Args:
        point, ifindex: where.
        program: descriptor of a loaded ``tc`` program.
        classid: what the program reads as ``skb->tc_classid``.

    Raises:
        Unsupported: attach it another way.
        ProbeError, OSError: it cannot be attached.
    """

    def __init__(self, point: NetPoint, ifindex: int, program: int, classid: int) -> None:
        self._stub = BpfObject(FOLDER / "stub.bpf.o", {".rodata.stub": struct.pack("=I", classid)})
        try:
            self._stub.map("target").update(struct.pack("=I", 0), struct.pack("=I", program))
            entry = self._stub.program("stub").fd
            self._link = namespaces.inside(point.netns, lambda: TcxLink(entry, ifindex, point.direction))
        except OSError as error:
            self._stub.close()
            if error.errno == errno.EINVAL:
                raise Unsupported from error
            raise

    def cost(self) -> RunStats:
        """Runs and run time, with the program it jumps to (whose own are not counted)."""
        return run_stats(self._stub.program("stub").fd)

    def attached(self) -> bool:
        """Is the device still there?"""
        return self._link.attached()

    def close(self) -> None:
        """Take the program away; safe to repeat."""
        self._link.close()
        self._stub.close()
