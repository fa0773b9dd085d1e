"""A node with Cilium's map of rates (`edt.bpf.c`): namespaces, links and mounts of our own, the map with the kernel's
types. What Cilium's agent would write is written by the test, into the same map and the same files."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slicepilot.controller.actuators.cilium.choice import CiliumPaths
from slicepilot.controller.actuators.cilium.layout import DEFAULT_HORIZON_NS, NAME, VALUE_BYTES, key_of
from slicepilot.controller.system.bpf.libbpf import BpfObject, Map
from slicepilot.controller.system.bpf.pinned import PinnedMap
from tests.controller.namespaces import Namespace

SOURCE = Path(__file__).with_name("edt.bpf.c")
PLAIN, PRIORITY, DIRECTION, MOVED, UNNAMED, LARGER, OTHER_FLAGS = range(7)
CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000
MS_REC, MS_PRIVATE = 16384, 1 << 18
ENDPOINT = 1234
_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


@contextlib.contextmanager
def own_namespaces() -> Iterator[None]:
    """Mounts and links of this thread, and of what it starts meanwhile, are its own; afterwards it is back."""
    folder = Path.cwd()
    before = [(os.open(f"/proc/thread-self/ns/{name}", os.O_RDONLY), flag) for name, flag in
              (("mnt", CLONE_NEWNS), ("net", CLONE_NEWNET))]  # fmt: skip
    _checked(_libc.unshare(CLONE_NEWNS | CLONE_NEWNET), "unshare")
    try:
        _checked(_libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "mount")
        run("ip", "link", "set", "lo", "up")
        yield
    finally:
        for descriptor, flag in before:
            _checked(_libc.setns(descriptor, flag), "setns")
            os.close(descriptor)
        os.chdir(folder)


def mount_bpffs(at: Path) -> None:
    """In the mount namespace of the caller."""
    at.mkdir(parents=True, exist_ok=True)
    _checked(_libc.mount(b"bpf", os.fsencode(at), b"bpf", 0, b"mode=0700"), f"mount bpf at {at}")


def pin(descriptor: int, path: Path) -> None:
    """bpf(BPF_OBJ_PIN), by libbpf."""
    path.parent.mkdir(parents=True, exist_ok=True)
    library = ctypes.CDLL("libbpf.so.1", use_errno=True)
    result = library.bpf_obj_pin(descriptor, os.fsencode(path))
    if result:
        raise OSError(-result, os.strerror(-result))


@functools.cache
def compiled(layout: int, folder: Path) -> Path:
    """The map with a layout."""
    target = folder / f"edt-{layout}.bpf.o"
    headers = f"/usr/include/{os.uname().machine}-linux-gnu"
    command = ["clang", "-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Werror", "-idirafter", headers]
    run(*command, f"-DLAYOUT={layout}", "-c", str(SOURCE), "-o", str(target))
    return target


def run(*command: str) -> str:
    """A command that has to succeed; what it says."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


def untyped_map(
    key_bytes: int = 8, value_bytes: int = VALUE_BYTES, name: str = NAME, kind: int = 1, flags: int = 1
) -> int:
    """A map as Cilium's agent made it up to 1.18 or so: without types. A descriptor, to be closed."""
    attribute = struct.pack("=IIIIIII16s", kind, key_bytes, value_bytes, 1024, flags, 0, 0, name.encode())
    held = ctypes.create_string_buffer(attribute, 72)
    number = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
    descriptor = int(_libc.syscall(number, 0, held, len(held)))
    _checked(-1 if descriptor < 0 else 0, "create a map")
    return descriptor


def value_of(bytes_per_s: int, last_ns: int = 0, horizon_ns: int = DEFAULT_HORIZON_NS, prio: int = 0) -> bytes:
    """As the agent writes it (bwmap.Edt.BinaryValue)."""
    return struct.pack("<QQQI28x", bytes_per_s, last_ns, horizon_ns, prio)


ORIGINAL = value_of(6_250_000, last_ns=77, prio=9)
"""50 Mbit/s."""


class Agent:
    """What Cilium's agent would write: files and entries."""

    def __init__(self, folder: Path) -> None:
        self.paths = CiliumPaths(folder / "bpf" / "tc" / "globals" / NAME, folder / "state")
        self.paths.state.mkdir(mode=0o755)
        mount_bpffs(folder / "bpf")

    def pin(self, descriptor: int) -> None:
        self.paths.pin.unlink(missing_ok=True)
        pin(descriptor, self.paths.pin)

    def endpoint(self, number: int, link: str, ifindex: int, **more: Any) -> Path:
        """State of an endpoint, as it would be restored."""
        document = {"ID": number, "IfName": link, "IfIndex": ifindex, "K8sNamespace": "core", "K8sPodName": "upf-0"}
        folder = self.paths.state / str(number)
        folder.mkdir(exist_ok=True)
        (folder / "ep_config.json").write_text(json.dumps(document | more))
        return folder

    def write(self, endpoint: int, value: bytes) -> None:
        """An entry, made or replaced."""
        results = PinnedMap.open(self.paths.pin)
        library = ctypes.CDLL("libbpf.so.1", use_errno=True)
        result = library.bpf_map_update_elem(results.descriptor, key_of(endpoint), value, ctypes.c_uint64(0))
        results.close()
        assert result == 0, os.strerror(-result)

    def read(self, endpoint: int) -> bytes:
        result = PinnedMap.open(self.paths.pin)
        value = result.lookup(key_of(endpoint), VALUE_BYTES)
        result.close()
        assert value is not None
        return value

    def delete(self, endpoint: int) -> None:
        results = PinnedMap.open(self.paths.pin)
        result = ctypes.CDLL("libbpf.so.1", use_errno=True).bpf_map_delete_elem(results.descriptor, key_of(endpoint))
        results.close()
        assert result == 0, os.strerror(-result)


class Pod:
    """A namespace with ``eth0``, whose other end is ``lxcN`` here."""

    def __init__(self, number: int = 1, device: str = "eth0") -> None:
        self.link, self.device = f"lxc{number}", device
        self._namespace = Namespace()
        self.pid, self.netns = self._namespace.pid, self._namespace.path
        run("ip", "link", "add", self.link, "type", "veth", "peer", "name", device, "netns", str(self.pid))
        run("ip", "link", "set", self.link, "up")
        self.tool("ip", "link", "set", device, "up")

    @property
    def ifindex(self) -> int:
        return socket.if_nametoindex(self.link)

    def tool(self, *command: str) -> str:
        return run("nsenter", f"--net={self.netns}", *command)

    def close(self) -> None:
        """The namespace goes, with its links: the first to notice that is the kernel, a little later."""
        self._namespace.close()
        deadline = time.monotonic() + 10
        while self.link in [name for _, name in socket.if_nameindex()]:
            assert time.monotonic() < deadline, f"{self.link} stays"
            time.sleep(0.01)


def typed_map(layout: int, folder: Path) -> BpfObject:
    """An object whose ``cilium_throttle`` has this layout, in the kernel, with its types."""
    return BpfObject(compiled(layout, folder))


def map_of(made: BpfObject) -> Map:
    return made.map(NAME)
