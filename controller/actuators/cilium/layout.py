"""Keys and values of Cilium's map ``cilium_throttle``: which layouts there are, and how they are recognised.

From Cilium's source (github.com/cilium/cilium; ``struct edt_id`` and ``edt_info`` in bpf/lib/common.h, later
bpf/lib/edt.h, and pkg/maps/bwmap; commits in parentheses):

| | key, 8 bytes | value, 56 bytes | seen in |
|---|---|---|---|
| plain | u64 id | u64 bps, t_last, t_horizon_drop, pad[4] | 1.9 to 1.16 (18cde1cf) |
| priority | u64 id | u64 bps, t_last, t_horizon_drop; u32 prio, pad_32; u64 pad[3] | 02674019 |
| direction | u32 id, u8 direction, u8 pad[3] | the same; the third u64 is a union with tokens | b5b1dfca |

``bps`` is in **bytes** per second, and 0 paces nothing: since there are priorities the program skips such an entry, and
before that BPF's division by 0 gives 0. ``prio`` is one more than the priority, 0 none. ``direction`` is 0 for egress.
Processors here are little-endian, so a key of egress has the same bytes in all three; and the rate and the drop horizon
have the same offsets. Nothing else is ever changed: it is read, and written back as it is.

A map has types (BTF) only if the program that created it supplied them. Cilium's agent creates this map before it loads
its programs. Older agents supply no types (pkg/bpf/map_linux.go, ``NewMap``, 02674019); later agents take the
description from the compiled programs, with types (pkg/maps/bwmap/cell.go, ``NewMapFromRegistry``, 20136678). So a map
without types is checked by name, kind, sizes and flags, and a map with types must have these offsets too.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from slicepilot.controller.system.bpf.btf import Btf, Member
from slicepilot.controller.system.bpf.pinned import MapInfo

NAME = "cilium_throttle"
HASH, NO_PREALLOC = 1, 1
KEY_BYTES, VALUE_BYTES = 8, 56
EGRESS = 0
MOST_ENDPOINT = 0xFFFF  # pkg/endpoint: a uint16, and 0 is none
_KEY = struct.Struct("<IB3x")
_RATE_AT, _LAST_AT, _HORIZON_AT = 0, 8, 16
DEFAULT_HORIZON_NS = 2_000_000_000
"""``DefaultDropHorizon`` of pkg/maps/bwmap/bwmap.go, in every version."""


class LayoutError(ValueError):
    """A map of another layout; the message is one line with the actual and the expected value."""


@dataclass(frozen=True)
class Entry:
    """A value of the map, parsed.

    Attributes:
        bytes_per_s: 0 paces nothing.
        last_ns: departure of the last packet, CLOCK_MONOTONIC; the program's own.
        horizon_ns: packets that would wait for so long or longer are dropped.
    """

    bytes_per_s: int
    last_ns: int
    horizon_ns: int


def key_of(endpoint: int) -> bytes:
    """The key of an endpoint's egress; raises LayoutError for a number that no endpoint can have."""
    if not 0 < endpoint <= MOST_ENDPOINT:
        raise LayoutError(f"endpoint = {endpoint}; expected 1 to {MOST_ENDPOINT}")
    return _KEY.pack(endpoint, EGRESS)


def entry_of(value: bytes) -> Entry:
    """A value of `VALUE_BYTES` as it is read."""
    return Entry(*struct.unpack_from("<QQQ", value))


def changed(value: bytes, bytes_per_s: int, horizon_ns: int | None = None) -> bytes:
    """The same value with another rate, and optionally another horizon; every other byte stays."""
    fresh = bytearray(value)
    struct.pack_into("<Q", fresh, _RATE_AT, bytes_per_s)
    if horizon_ns is not None:
        struct.pack_into("<Q", fresh, _HORIZON_AT, horizon_ns)
    return bytes(fresh)


def check_map(info: MapInfo) -> None:
    """Refuse what is not Cilium's map of rates; raises LayoutError."""
    for what, current, accepted in (
        ("name", info.name, NAME),
        ("type", info.kind, HASH),
        ("key size", info.key_bytes, KEY_BYTES),
        ("value size", info.value_bytes, VALUE_BYTES),
        ("flags", info.flags, NO_PREALLOC),
    ):
        if current != accepted:
            raise LayoutError(f"{what} = {current}; expected {accepted}")


def check_types(types: Btf, info: MapInfo) -> None:
    """Refuse keys and values that have what is read or changed elsewhere; raises LayoutError, BtfError."""
    key = {member.name: member for member in types.members(info.key_type)}
    value = {member.name: member for member in types.members(info.value_type)}
    for name, at, size in (("bps", _RATE_AT, 8), ("t_last", _LAST_AT, 8), ("t_horizon_drop", _HORIZON_AT, 8)):
        _check_member("value", value, name, at, size)
    if "direction" in key:
        _check_member("key", key, "id", 0, 4)
        _check_member("key", key, "direction", 4, 1)
    else:
        _check_member("key", key, "id", 0, 8)


def _check_member(where: str, members: dict[str, Member], name: str, at: int, size: int) -> None:
    member = members.get(name)
    if member is None:
        raise LayoutError(f"{where}.{name}: not in {', '.join(members) or 'it'}; expected Cilium's edt_id and edt_info")
    if (member.at, member.bytes, member.integer) != (at, size, True):
        what = f"{member.bytes} bytes at {member.at}" + ("" if member.integer else ", no number")
        raise LayoutError(f"{where}.{name} = {what}; expected a number of {size} bytes at {at}")
