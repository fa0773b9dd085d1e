"""BPF maps that other programs have pinned: opened, looked at, read and changed by bpf(2) alone.

The supervisor restores through this, so it needs nothing beside the standard library. Structures and commands:
linux/bpf.h (``union bpf_attr``, ``struct bpf_map_info``, ``struct bpf_btf_info``).
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from .libc import bpf

BPF_MAP_LOOKUP_ELEM, BPF_MAP_UPDATE_ELEM, BPF_OBJ_GET, BPF_OBJ_GET_INFO_BY_FD, BPF_BTF_GET_FD_BY_ID = 1, 2, 7, 15, 19
ELEMENTS = (BPF_MAP_LOOKUP_ELEM, BPF_MAP_UPDATE_ELEM)
"""All that a process needs which has its maps open."""
BPF_EXIST = 2
_MAP_INFO = struct.Struct("=IIIIII16sIIQQIIIIQ")
_BTF_INFO = struct.Struct("=QIIQII")
_ELEMENT = struct.Struct("=IxxxxQQQ")  # map_fd, key, value, flags
MOST_BTF_BYTES = 16 << 20  # include/uapi/linux/btf.h, BTF_MAX_SIZE is of the same order
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class NotRootsError(Exception):
    """A part of the path to a file that other users can change; the message says which."""


@dataclass(frozen=True)
class MapInfo:
    """The kernel's description of a map (``struct bpf_map_info``).

    Attributes:
        kind: ``enum bpf_map_type``; 1 is a hash.
        id: of this map, until it is gone; the kernel counts on before it uses a number again.
        key_bytes, value_bytes, max_entries, flags: as it was made.
        name: at most 15 characters.
        btf_id: of the types of its keys and values; 0 where its maker has given none.
        key_type, value_type: numbers of these types in there.
    """

    kind: int
    id: int
    key_bytes: int
    value_bytes: int
    max_entries: int
    flags: int
    name: str
    btf_id: int
    key_type: int
    value_type: int


class PinnedMap:
    """A map by a descriptor, which is closed with `close`.

    Args:
        descriptor: of a map; owned.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def open(cls, path: Path) -> PinnedMap:
        """Open the map that is pinned at a path, checking at each step that only root can have made it.

        Raises:
            FileNotFoundError: nothing is pinned there.
            NotRootsError: a folder on the way, or the pin, is somebody else's, writable by others, or a link of others.
            OSError: the kernel refuses it: no right to it, or no map.
        """
        result = _roots_own(path)
        try:
            # By the descriptor, which leads to what was looked at, whatever becomes of the path meanwhile.
            name = ctypes.create_string_buffer(f"/proc/self/fd/{result}".encode())
            attribute = struct.pack("=QII", ctypes.addressof(name), 0, 0)
            return cls(_bpf(BPF_OBJ_GET, attribute))
        finally:
            os.close(result)

    def info(self) -> MapInfo:
        """The map's description; raises OSError, also for other kinds of objects."""
        buffer = ctypes.create_string_buffer(_MAP_INFO.size)
        _bpf(BPF_OBJ_GET_INFO_BY_FD, _info_attribute(self.descriptor, buffer))
        kind, number, key, value, entries, flags, name, *rest = _MAP_INFO.unpack(buffer.raw)
        return MapInfo(
            kind, number, key, value, entries, flags, name.partition(b"\0")[0].decode(errors="replace"), *rest[4:7]
        )

    def lookup(self, key: bytes, value_bytes: int) -> bytes | None:
        """The value of a key; None where there is none. Raises OSError."""
        value = ctypes.create_string_buffer(value_bytes)
        try:
            self._element(BPF_MAP_LOOKUP_ELEM, key, value, 0)
        except FileNotFoundError:
            return None
        return value.raw

    def replace(self, key: bytes, value: bytes) -> bool:
        """Replace the value of a key; whether it had a value. Makes no key. Raises OSError."""
        try:
            self._element(BPF_MAP_UPDATE_ELEM, key, ctypes.create_string_buffer(value, len(value)), BPF_EXIST)
        except FileNotFoundError:
            return False
        return True

    def close(self) -> None:
        """Release the descriptor; safe to repeat."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _element(self, command: int, key: bytes, value: ctypes.Array[ctypes.c_char], flags: int) -> None:
        held = ctypes.create_string_buffer(key, len(key))
        _bpf(
            command, _ELEMENT.pack(self.descriptor, ctypes.addressof(held), ctypes.addressof(value), flags), held, value
        )


def type_data(btf_id: int) -> bytes:
    """The types with this number, as the kernel has them (Documentation/bpf/btf.rst); raises OSError."""
    descriptor = _bpf(BPF_BTF_GET_FD_BY_ID, struct.pack("=III", btf_id, 0, 0))
    try:
        size = _BTF_INFO.unpack(_btf_info(descriptor, b"")[0])[1]
        if size > MOST_BTF_BYTES:
            raise OSError(errno.E2BIG, f"BTF of {size} bytes")
        return _btf_info(descriptor, bytes(size))[1]
    finally:
        os.close(descriptor)


def _btf_info(descriptor: int, room: bytes) -> tuple[bytes, bytes]:
    data = ctypes.create_string_buffer(room, max(len(room), 1))
    request = _BTF_INFO.pack(ctypes.addressof(data), len(room), 0, 0, 0, 0)
    buffer = ctypes.create_string_buffer(request, _BTF_INFO.size)
    _bpf(BPF_OBJ_GET_INFO_BY_FD, _info_attribute(descriptor, buffer), data)
    return buffer.raw, data.raw[: len(room)]


def _info_attribute(descriptor: int, buffer: ctypes.Array[ctypes.c_char]) -> bytes:
    return struct.pack("=IIQ", descriptor, len(buffer), ctypes.addressof(buffer))


def _bpf(command: int, attribute: bytes, *_keep: object) -> int:
    """bpf(2); what an attribute points at is handed in as well, so that it lives until then. Raises OSError."""
    return bpf(command, ctypes.create_string_buffer(attribute, len(attribute)))


def _roots_own(path: Path) -> int:
    """Descriptor (O_PATH) of a file; every step to it is root's and can be changed by root alone.

    A folder that others may write to is taken where it is sticky, as bpffs is by default: nobody but root can put
    another thing there instead of what is root's.
    """
    if not path.is_absolute():
        raise NotRootsError(f"{path}: expected an absolute path")
    opened = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    steps = path.parts[1:]
    for index, name in enumerate(steps):
        try:
            result = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=opened)
        finally:
            os.close(opened)
        opened, status = result, os.fstat(result)
        report = Path("/", *steps[: index + 1])
        why = ""
        if stat.S_ISLNK(status.st_mode):
            why = "is a link; expected the path itself"
        elif status.st_uid != 0:
            why = f"is user {status.st_uid}'s; expected root's"
        elif status.st_mode & WRITABLE_BY_OTHERS and not (
            stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        ):
            why = "can be changed by others; expected what root alone can write to"
        if why:
            os.close(opened)
            raise NotRootsError(f"{report} {why}")
    return opened
