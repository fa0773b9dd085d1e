"""BPF programs of somebody else on TCX hooks, and detaching of ours by force: what a second agent on the node does.

Commands and structures: linux/bpf.h (``union bpf_attr``).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicepilot.controller.system.bpf.libc import call
from slicepilot.controller.system.net.namespaces import inside

BPF = {"x86_64": 321, "aarch64": 280}.get(platform.machine(), 0)
PROG_LOAD, PROG_QUERY, LINK_CREATE, LINK_UPDATE, LINK_GET_FD_BY_ID, LINK_DETACH = 5, 16, 28, 29, 30, 34
SCHED_CLS, XDP, BEFORE = 3, 6, 1 << 3
ATTACH = {"ingress": 46, "egress": 47}
BPF_XDP, XDP_PASS = 37, 2
PASS, DROP, NEXT, REDIRECT = 0, 2, -1, 7  # enum tcx_action_base


def _bpf(command: int, attribute: bytes) -> int:
    held = ctypes.create_string_buffer(attribute, 144)
    return call("syscall", BPF, command, ctypes.addressof(held), 144)


def load(returns: int, name: str = "somebody", kind: int = SCHED_CLS) -> int:
    """Descriptor of a program that returns a number, and does nothing."""
    code = ctypes.create_string_buffer(struct.pack("=BBhiBBhi", 0xB7, 0, 0, returns, 0x95, 0, 0, 0))
    licence = ctypes.create_string_buffer(b"GPL")
    attribute = struct.pack(
        "=IIQQIIQII16s", kind, 2, ctypes.addressof(code), ctypes.addressof(licence), 0, 0, 0, 0, 0, name.encode()
    )
    return _bpf(PROG_LOAD, attribute)


@contextlib.contextmanager
def attached(
    netns: Path, device: str, direction: str, returns: int, *, first: bool = True, name: str = "somebody"
) -> Iterator[None]:
    """Somebody's program, at the head or at the tail of a TCX hook, for the length of a block."""
    with _linked(netns, device, load(returns, name), ATTACH[direction], BEFORE if first else 0):
        yield


@contextlib.contextmanager
def xdp(netns: Path, device: str, returns: int = XDP_PASS) -> Iterator[None]:
    """Somebody's XDP program."""
    with _linked(netns, device, load(returns, kind=XDP), BPF_XDP, 0):
        yield


@contextlib.contextmanager
def _linked(netns: Path, device: str, program: int, kind: int, flags: int) -> Iterator[None]:
    def attach() -> int:
        try:
            return _bpf(LINK_CREATE, struct.pack("=IIII", program, socket.if_nametoindex(device), kind, flags))
        except OSError as error:
            if error.errno == errno.EINVAL:
                pytest.skip("needs TCX: Linux 6.6")
            raise

    try:
        link = inside(netns, attach)
    finally:
        os.close(program)
    try:
        yield
    finally:
        os.close(link)


def links(netns: Path, device: str, direction: str) -> list[int]:
    """Numbers of the links on a TCX hook, in order."""

    def ask() -> list[int]:
        programs, numbers = (ctypes.c_uint32 * 64)(), (ctypes.c_uint32 * 64)()
        attribute = struct.pack(
            "=IIIIQIIQQQQ",
            *(socket.if_nametoindex(device), ATTACH[direction], 0, 0, ctypes.addressof(programs), 64, 0),
            *(0, ctypes.addressof(numbers), 0, 0),
        )
        held = ctypes.create_string_buffer(attribute, 144)
        try:
            call("syscall", BPF, PROG_QUERY, ctypes.addressof(held), 144)
        except FileNotFoundError:
            return []
        return list(numbers[: struct.unpack_from("=I", held.raw, 24)[0]])

    return inside(netns, ask)


def detach(link: int) -> None:
    """Detach a link by its number, as ``bpftool link detach`` does."""
    descriptor = _bpf(LINK_GET_FD_BY_ID, struct.pack("=III", link, 0, 0))
    try:
        _bpf(LINK_DETACH, struct.pack("=I", descriptor))
    finally:
        os.close(descriptor)


def replace(link: int, returns: int) -> None:
    """Have a link of somebody else run another program (BPF_LINK_UPDATE)."""
    descriptor, program = _bpf(LINK_GET_FD_BY_ID, struct.pack("=III", link, 0, 0)), load(returns)
    try:
        _bpf(LINK_UPDATE, struct.pack("=IIII", descriptor, program, 0, 0))
    finally:
        os.close(program)
        os.close(descriptor)
