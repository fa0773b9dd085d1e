"""The types of layout.py are the structs of bpf/layout.h, by the type information (BTF) of the compiled programs."""

import struct
from typing import Any

import numpy as np
import pytest

from slicepilot.controller.system.bpf.btf import STRUCT, Btf
from slicepilot.controller.telemetry import layout

STRUCTS = {
    "n3_counters": layout.N3,
    "exit_counters": layout.EXIT,
    "timing": layout.TIMING,
    "slice_stats": layout.SLICE,
    "flow_stats": layout.FLOW,
    "pfcp_stats": layout.PFCP,
    "n4_counters": layout.N4_COUNTERS,
    "sched_stats": layout.SCHED,
    "running": layout.RUNNING,
}
"""All but events, whose structs clang leaves out of the BTF."""


def section(data: bytes, name: bytes) -> bytes:
    """A section of an ELF file (64 bits, little-endian)."""
    (headers_at,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", data, headers_at + size * index) for index in range(count)]
    names_at = sections[names][4]
    for name_at, _, _, _, at, length in sections:
        if data[names_at + name_at :].startswith(name + b"\0"):
            return data[at : at + length]
    raise AssertionError(f"no section {name!r}")


def structs() -> dict[str, tuple[int, dict[str, tuple[int, int]]]]:
    """Size, and offset and size of each member, of all structs in the programs."""
    result = {}
    for name in ("packets", "pfcp", "n4", "sched"):
        path = layout.FOLDER / f"{name}.bpf.o"
        if not path.exists():
            pytest.skip("`make bpf` first")
        btf = Btf(section(path.read_bytes(), b".BTF"))
        for number, at in enumerate(btf._offsets, 1):
            known = btf._name(struct.unpack_from("=I", btf._types, at)[0])
            if known in STRUCTS and btf._type(number)[0] == STRUCT:
                members = {member.name: (member.at, member.bytes) for member in btf.members(number)}
                result[known] = btf.size(number), members
    return result


def fields(kind: np.dtype[Any]) -> dict[str, tuple[int, int]]:
    """Offset and size of each field but padding."""
    assert kind.fields is not None
    return {
        name: (at, of.itemsize)
        for name, (of, at, *_) in kind.fields.items()
        if of.base.kind != "V" or of.base.fields is not None
    }


def test_offsets_are_those_of_the_compiled_structs() -> None:
    compiled = structs()
    assert {name: (kind.itemsize, fields(kind)) for name, kind in STRUCTS.items()} == compiled
