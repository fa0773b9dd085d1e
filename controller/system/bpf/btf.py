"""The members of structures in BTF, the kernel's format of types (Documentation/bpf/btf.rst).

libbpf reads it too, but its functions take lists of variable arguments and C strings of its own; what is needed here is
which members a structure has, and where. The data come from the kernel, which has checked them; they are checked again,
since a mistake here would be about where to write.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

KERNEL = Path("/sys/kernel/btf/vmlinux")
MAGIC = 0xEB9F
# Magic, version, flags, length of this, offset and length of types, and of strings.
_HEADER = struct.Struct("=HBBIIIII")
_TYPE = struct.Struct("=III")  # name, info, size or type
_MEMBER = struct.Struct("=III")  # name, type, offset in bits
INT, PTR, ARRAY, STRUCT, UNION, ENUM, FWD, TYPEDEF, VOLATILE, CONST, RESTRICT = range(1, 12)
FUNC, FUNC_PROTO, VAR, DATASEC, FLOAT, DECL_TAG, TYPE_TAG, ENUM64 = range(12, 20)
_MORE_BYTES = {INT: 4, ARRAY: 12, VAR: 4, DECL_TAG: 4}
_EACH_BYTES = {STRUCT: 12, UNION: 12, ENUM: 8, FUNC_PROTO: 8, DATASEC: 12, ENUM64: 12}
_SAME_AS = frozenset({TYPEDEF, VOLATILE, CONST, RESTRICT, TYPE_TAG})
MOST_STEPS = 32


class BtfError(ValueError):
    """Data that are no BTF, or a type that does not exist; the message says which."""


def unusable(file: Path = KERNEL) -> str | None:
    """Why the kernel's own types cannot be used; None where they can be.

    A kernel that was built with another compiler's tools may have a file with a header and nothing behind it
    (cilium/ebpf#1902).
    """
    try:
        with file.open("rb") as stream:
            head = stream.read(_HEADER.size)
        size = file.stat().st_size
    except OSError:
        return f"{file} is missing"
    if len(head) < _HEADER.size:
        return f"{file} is damaged: {size} bytes"
    magic, _, _, length, types_at, types_bytes, strings_at, strings_bytes = _HEADER.unpack(head)
    whole = length + max(types_at + types_bytes, strings_at + strings_bytes)
    if magic != MAGIC or not types_bytes or not strings_bytes or size < whole:
        return f"{file} is damaged: {size} bytes"
    return None


@dataclass(frozen=True)
class Member:
    """One member of a structure; those of a union or structure without a name stand in for it.

    Attributes:
        name: of the member.
        at: its offset in bytes of the whole.
        bytes: its size.
        integer: whether it is a number.
    """

    name: str
    at: int
    bytes: int
    integer: bool


class Btf:
    """Types by number.

    Args:
        data: as the kernel gives them out.

    Raises:
        BtfError: they are none.
    """

    def __init__(self, data: bytes) -> None:
        try:
            magic, version, _, length, types_at, types_bytes, strings_at, strings_bytes = _HEADER.unpack_from(data)
        except struct.error as error:
            raise BtfError(f"BTF of {len(data)} bytes: {error}") from None
        if (magic, version) != (MAGIC, 1):
            raise BtfError(f"BTF: magic {magic:#x}, version {version}; expected {MAGIC:#x}, 1")
        self._types = data[length + types_at : length + types_at + types_bytes]
        self._strings = data[length + strings_at : length + strings_at + strings_bytes]
        self._offsets = self._type_offsets()
        self._steps = 0

    def members(self, number: int) -> tuple[Member, ...]:
        """Members of a structure, also by a type that is another name for it; raises BtfError for other types."""
        self._steps = 0
        return tuple(self._members(self._real(number), 0))

    def size(self, number: int) -> int:
        """Size in bytes of a number, an array, a structure or a union; raises BtfError."""
        length = 1
        for _ in range(MOST_STEPS):
            number = self._real(number)
            kind, _, size, more = self._type(number)
            if kind in (INT, STRUCT, UNION, ENUM, ENUM64, FLOAT):
                return length * size
            if kind == PTR:
                return length * 8
            if kind != ARRAY:
                break
            number, _, elements = struct.unpack_from("=III", self._types, more)
            length *= elements
        raise BtfError(f"BTF: type {number} has no size")

    def _members(self, number: int, offset: int) -> list[Member]:
        kind, count, _, more = self._type(number)
        self._steps += 1
        if kind not in (STRUCT, UNION) or self._steps > MOST_STEPS:
            raise BtfError(f"BTF: type {number} is no structure, or one of too many in another")
        bit_fields = _TYPE.unpack_from(self._types, self._offset(number))[1] >> 31
        result: list[Member] = []
        for index in range(count):
            name_at, member, bits = _MEMBER.unpack_from(self._types, more + index * _MEMBER.size)
            if bit_fields and bits >> 24:
                raise BtfError(f"BTF: type {number} has bit fields")
            if bits % 8:
                raise BtfError(f"BTF: type {number} has a member at bit {bits}")
            name, at = self._name(name_at), offset + (bits & 0xFFFFFF if bit_fields else bits) // 8
            real = self._real(member)
            if not name:
                result += self._members(real, at)
            else:
                result.append(Member(name, at, self.size(real), self._type(real)[0] == INT))
        return result

    def _real(self, number: int) -> int:
        """The type that a typedef or qualifier refers to."""
        for _ in range(MOST_STEPS):
            kind, _, aimed, _ = self._type(number)
            if kind not in _SAME_AS:
                return number
            number = aimed
        raise BtfError(f"BTF: type {number} leads nowhere")

    def _type(self, number: int) -> tuple[int, int, int, int]:
        """Kind, number of parts, size or type, and where the parts begin."""
        position = self._offset(number)
        _, info, size = _TYPE.unpack_from(self._types, position)
        return info >> 24 & 0x1F, info & 0xFFFF, size, position + _TYPE.size

    def _offset(self, number: int) -> int:
        if not 1 <= number <= len(self._offsets):
            raise BtfError(f"BTF: no type {number}; expected 1 to {len(self._offsets)}")
        return self._offsets[number - 1]

    def _type_offsets(self) -> list[int]:
        """Where each type begins."""
        positions, at = [], 0
        while at < len(self._types):
            if at + _TYPE.size > len(self._types):
                raise BtfError("BTF: the last type is incomplete")
            positions.append(at)
            info = _TYPE.unpack_from(self._types, at)[1]
            kind, count = info >> 24 & 0x1F, info & 0xFFFF
            if not INT <= kind <= ENUM64:
                raise BtfError(f"BTF: a type of kind {kind}; expected {INT} to {ENUM64}")
            at += _TYPE.size + _MORE_BYTES.get(kind, 0) + count * _EACH_BYTES.get(kind, 0)
        if at != len(self._types):
            raise BtfError("BTF: the last type is incomplete")
        return positions

    def _name(self, at: int) -> str:
        end = self._strings.find(b"\0", at)
        if at > len(self._strings) or end < 0:
            raise BtfError(f"BTF: no name at {at}")
        return self._strings[at:end].decode(errors="replace")
