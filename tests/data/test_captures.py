"""Frames of pcapng, of either byte order and any clock; blocks that lie."""

from __future__ import annotations

import struct

import pytest

from slicepilot.data.captures import LONGEST, MOST_INTERFACES, Frame, frames
from slicepilot.data.faults import DatasetError


def block(order: str, kind: int, body: bytes) -> bytes:
    body += bytes(-len(body) % 4)
    length = struct.pack(f"{order}I", 12 + len(body))
    return struct.pack(f"{order}I", kind) + length + body + length


def section(order: str) -> bytes:
    return block(order, 0x0A0D0D0A, struct.pack(f"{order}IHHq", 0x1A2B3C4D, 1, 0, -1))


def interface(order: str, options: bytes = b"", snap: int = 0) -> bytes:
    return block(order, 1, struct.pack(f"{order}HHI", 101, 0, snap) + options)


def packet(order: str, ticks: int, data: bytes, number: int = 0, kept: int | None = None) -> bytes:
    head = (number, ticks >> 32, ticks & 0xFFFFFFFF, len(data) if kept is None else kept, len(data))
    return block(order, 6, struct.pack(f"{order}IIIII", *head) + data)


@pytest.mark.parametrize("order", ["<", ">"])
def test_clocks_of_interfaces(order: str) -> None:
    binary = struct.pack(f"{order}HHB3x", 9, 1, 0x80 | 10)  # 1/1024 s
    later = struct.pack(f"{order}HHq", 14, 8, 100)
    content = section(order) + interface(order) + interface(order, binary + later, snap=200)
    content += packet(order, 5, b"a") + packet(order, 512, b"bc", number=1)
    content += section(order) + interface(order) + packet(order, 7, b"")
    expected = [
        Frame(5000, b"a", 101, LONGEST),
        Frame(100_500_000_000, b"bc", 101, 200),
        Frame(7000, b"", 101, LONGEST),
    ]
    assert list(frames("f", [content])) == expected
    assert list(frames("f", (content[at : at + 1] for at in range(len(content))))) == expected


@pytest.mark.parametrize(
    ("blocks", "problem"),
    [
        (packet("<", 5, b"a"), "block 2: too short, or of an interface that is not declared"),
        (interface("<") + packet("<", 5, b"a", kept=9), "block 3: too short"),
        (block("<", 3, bytes(8)), "block 2: a packet without a time"),
        (interface("<") * (MOST_INTERFACES + 1), f"more than {MOST_INTERFACES} interfaces"),
        (struct.pack("<II", 5, 4 * LONGEST + 4), "block 2: 1048580 bytes"),
        (struct.pack("<II", 5, 8), "block 2: 8 bytes"),
        (struct.pack("<II", 5, 40), "ends amid block 2"),
        (b"\x0a\x0d\x0d\x0a" + bytes(24), "block 2: no byte order"),
    ],
)
def test_blocks_that_lie(blocks: bytes, problem: str) -> None:
    with pytest.raises(DatasetError, match=f"^f: {problem}.*; expected a whole capture$"):
        list(frames("f", [section("<") + blocks]))
