"""The memory shared with the BPF programs, as NumPy types: ``bpf/layout.h`` field by field.

`mapped` compares only the sizes with what was compiled; structs are padded to 64 bytes, so a field that is added in
the padding, or moved, goes unnoticed there. `tests/controller/telemetry/test_layout.py` compares the offsets.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slicepilot.controller.system.bpf.libbpf import BpfObject

FOLDER = Path(__file__).parent / "bpf"
"""Where the compiled programs are."""

MAX_SLICES = 256
MAX_CPUS = 1024
BUCKETS = 448
FLOWS = 1024
MARKS = 8
FLOW_VALID = 1 << 63
QFI_NONE = 64
AT_TUN, AT_N6 = 0, 1

CLASS_SHARED = 0x0FFF
CLASS_GROUP = 0x4000
CLASS_BARE_IP = 0x8000
SHAPER_FIRST = 16

RUNNING_SLICE = 0x3FF
WAITER_SHIFT, WAIT_UNIT_SHIFT = 52, 10

PFCP_KINDS = ("heartbeat", "association", "establishment", "modification", "deletion", "report", "other")


def _without_padding(kind: np.dtype[Any]) -> np.dtype[Any]:
    """The same layout without fields for the padding, which numba does not support."""
    return kind[[name for name in kind.names or () if kind[name].base.kind != "V"]]


N3 = np.dtype(
    [
        ("packets", "u8"),
        ("bytes", "u8"),
        ("malformed", "u8"),
        ("other", "u8"),
        ("timed", "u8"),
        ("unproven", "u8"),
        ("joined", "u8"),
        ("crowded", "u8"),
        ("mark_ns", "u8", MARKS),
    ]
)
EXIT = _without_padding(
    np.dtype(
        [
            ("packets", "u8"),
            ("bytes", "u8"),
            ("missed", "u8"),
            ("unreported", "u8"),
            ("last_left_ns", "u8"),
            ("next", "u4"),
            ("", "V4"),
            ("answered_bytes", "u8"),
            ("_", "V8"),
        ]
    )
)
TIMING = _without_padding(np.dtype([("enter_up_to", "u4"), ("leave_up_to", "u4"), ("proven", "u4"), ("", "V52")]))
SLICE = np.dtype([("n3", N3), ("timing", TIMING), ("exit", EXIT, 2), ("delay", "u4", (2, BUCKETS))])
FLOW = np.dtype(
    [
        ("packets", "u8"),
        ("bytes", "u8"),
        ("", "V48"),
        ("carried_bytes", "u8"),
        ("_", "V56"),
        ("delay", "u4", (2, BUCKETS)),
    ]
)
PFCP = np.dtype(
    [
        ("requests", "u8"),
        ("answers", "u8"),
        ("retransmissions", "u8"),
        ("orphans", "u8"),
        ("", "V32"),
        ("latency", "u4", BUCKETS),
    ]
)
SCHED = _without_padding(
    np.dtype(
        [("cpu_ns", "u8"), ("waits", "u8"), ("wait_ns", "u8"), ("waiting", "u8"), ("", "V32"), ("wait", "u4", BUCKETS)]
    )
)
RUNNING = _without_padding(
    np.dtype([("since_ns_and_slice", "u8"), ("exec_start_ns", "u8"), ("idle_ns", "u8"), ("", "V40")])
)

PACKET_EVENT = np.dtype([("n3_ns", "u8"), ("exit_ns", "u8"), ("slice", "u2"), ("bytes", "u2"), ("", "V4")])
PFCP_EVENT = np.dtype(
    [("request_ns", "u8"), ("answer_ns", "u8"), ("slice", "u2"), ("type", "u1"), ("kind", "u1"), ("sequence", "u4")]
)

N4_OCTETS = 4096
N4_COUNTERS = np.dtype([("messages", "u8"), ("unread", "u8"), ("lost", "u8"), ("", "V40")])
N4_HEADER = struct.Struct("=3Q16s16s4H2B")
"""Header of ``struct n4_message``; its octets follow."""


def mapped(loaded: BpfObject, name: str, dtype: npt.DTypeLike, *, writable: bool = False) -> npt.NDArray[Any]:
    """An mmapable array, or a data section, as the programs see it: a view that changes while it is read.

    Raises:
        ProbeError: the object was compiled from another layout than this.
    """
    array, element = loaded.map(name), np.dtype(dtype)
    count, rest = divmod(array.max_entries * array.value_bytes, element.itemsize)
    if rest or (array.max_entries > 1 and array.value_bytes != element.itemsize):
        raise loaded.other_sources(f"{name} of {array.value_bytes} bytes each, expected {element.itemsize}")
    return np.frombuffer(array.memory(writable), element, count)
