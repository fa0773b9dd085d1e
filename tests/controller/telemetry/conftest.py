"""Packets built by hand, programs to run them through, and networks to send them over."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slicepilot.controller.system.bpf.errors import ProbeError
from slicepilot.controller.system.net.namespaces import inside
from slicepilot.controller.telemetry import layout
from slicepilot.controller.telemetry.packets import PacketPrograms
from slicepilot.controller.telemetry.points import NetPoint, SlicePoints
from tests.controller.namespaces import Namespace

ETHERNET_V4, ETHERNET_V6 = bytes(12) + b"\x08\x00", bytes(12) + b"\x86\xdd"
NOWHERE = SlicePoints("a", NetPoint("none", "n3"), None, NetPoint("none", "n6"))


# -- packets -----------------------------------------------------------------------------------------------------


def checksum(data: bytes) -> int:
    data += bytes(len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


@dataclass
class Packets:
    """Builders; addresses are text."""

    ue: str = "10.60.0.2"
    sink: str = "10.103.0.2"
    ue6: str = "2001:db8:60::2"
    sink6: str = "2001:db8:103::2"

    def udp(self, payload: bytes, source: int = 40000, destination: int = 6000) -> bytes:
        return struct.pack("!HHHH", source, destination, 8 + len(payload), 0) + payload

    def ipv4(
        self,
        payload: bytes,
        *,
        source: str | None = None,
        destination: str | None = None,
        protocol: int = 17,
        identity: int = 0,
        flags: int = 0x4000,
        ttl: int = 64,
        tos: int = 0,
        options: bytes = b"",
    ) -> bytes:
        words = 5 + len(options) // 4
        head = struct.pack(
            "!BBHHHBBH4s4s",
            0x40 | words,
            tos,
            4 * words + len(payload),
            identity,
            flags,
            ttl,
            protocol,
            0,
            socket.inet_aton(source or self.ue),
            socket.inet_aton(destination or self.sink),
        )
        head += options
        return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + payload

    def ipv6(
        self,
        payload: bytes,
        *,
        source: str | None = None,
        destination: str | None = None,
        protocol: int = 17,
        hops: int = 64,
        flow: int = 0,
    ) -> bytes:
        addresses = [socket.inet_pton(socket.AF_INET6, a) for a in (source or self.ue6, destination or self.sink6)]
        return struct.pack("!IHBB", 6 << 28 | flow, len(payload), protocol, hops) + b"".join(addresses) + payload

    def gtpu(
        self,
        inner: bytes,
        teid: int = 1,
        qfi: int | None = 9,
        *,
        kind: int = 255,
        sequence: int | None = None,
        extensions: tuple[tuple[int, bytes], ...] = (),
    ) -> bytes:
        """Extension headers as (type, content without length and next type), the PDU Session Container last."""
        chain = list(extensions)
        if qfi is not None:
            chain.append((0x85, bytes([0x10, qfi])))
        optional = b""
        flags = 0x30
        if chain or sequence is not None:
            flags |= (0x04 if chain else 0) | (0x02 if sequence is not None else 0)
            optional = struct.pack("!HBB", sequence or 0, 0, chain[0][0] if chain else 0)
            for i, (_, content) in enumerate(chain):
                following = chain[i + 1][0] if i + 1 < len(chain) else 0
                optional += bytes([(len(content) + 2) // 4]) + content + bytes([following])
        return struct.pack("!BBHI", flags, kind, len(optional) + len(inner), teid) + optional + inner

    def n3(self, gtpu: bytes, *, port: int = 2152, **ip: Any) -> bytes:
        """As a frame, outer IPv4."""
        outer = self.ipv4(self.udp(gtpu, 2152, port), source="10.100.0.1", destination="10.100.0.2", **ip)
        return ETHERNET_V4 + outer

    def n3_v6(self, gtpu: bytes) -> bytes:
        return ETHERNET_V6 + self.ipv6(self.udp(gtpu, 2152, 2152), source="fd00::1", destination="fd00::2")

    def frame(self, packet: bytes) -> bytes:
        return (ETHERNET_V4 if packet[0] >> 4 == 4 else ETHERNET_V6) + packet


@pytest.fixture
def packets() -> Packets:
    return Packets()


# -- programs ------------------------------------------------------------------------------------------------------


@dataclass
class Bench:
    """The packet programs of one slice, run on made-up frames by the kernel's own test facility."""

    programs: PacketPrograms

    @property
    def slices(self) -> Any:
        return self.programs.slices

    def run(self, program: str, frame: bytes) -> int:
        """What the program returned, as a signed number."""
        answer = self.programs.object.program(program).test_run(frame)
        return answer - (1 << 32) if answer >> 31 else answer

    def enter(self, frame: bytes) -> int:
        return self.run("n3_ingress", frame)

    def leave(self, packet: bytes) -> int:
        return self.run("n6_exit", Packets().frame(packet))

    def counts(self) -> tuple[int, int, int]:
        """Packets at N3, matched at N6, missed at N6."""
        exits = self.slices[0]["exit"][layout.AT_N6]
        return (
            int(self.slices[0]["n3"]["packets"]),
            int(self.slices[0]["delay"][layout.AT_N6].sum()),
            int(exits["missed"]),
        )


@contextlib.contextmanager
def loaded(*points: SlicePoints, **options: Any) -> Iterator[Bench]:
    try:
        programs = PacketPrograms(points, **options)
    except ProbeError as error:
        pytest.skip(str(error))
    with contextlib.closing(programs):
        yield Bench(programs)


bench_of = functools.partial(loaded, NOWHERE, by_flow=True)


@pytest.fixture
def bench() -> Iterator[Bench]:
    with bench_of() as made:
        yield made


# -- networks ------------------------------------------------------------------------------------------------------

TUNSETIFF = 0x400454CA
TUN, TAP, NAPI, NAPI_FRAGS, NO_PI = 0x1, 0x2, 0x10, 0x20, 0x1000  # linux/if_tun.h


def open_tun(netns: Path, name: str, flags: int) -> int:
    """Make a TUN or TAP device in a namespace; its descriptor."""

    def work() -> int:
        file = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
        fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
        return file

    return inside(netns, work)


class Forwarder:
    """A UPF's data path in a few lines: takes GTP-U off packets and writes them to a TUN device of its own."""

    def __init__(self, home: Namespace, header_bytes: int = 16) -> None:
        self._tun = open_tun(home.path, "tun", TUN | NO_PI)
        home.sh("ip link set tun up; ip route add 10.60.0.0/24 dev tun; ip -6 route add 2001:db8:60::/48 dev tun")
        self._socket = home.socket(socket.AF_INET6)
        self._socket.bind(("::", 2152))
        self._header_bytes = header_bytes
        self.paused = threading.Event()
        self._thread = threading.Thread(target=self._forward)
        self._stop = False
        self._socket.settimeout(0.02)
        self._thread.start()

    def _forward(self) -> None:
        while not self._stop:
            if self.paused.is_set():
                self.paused.wait(0.001)
                continue
            with contextlib.suppress(TimeoutError):
                os.write(self._tun, self._socket.recv(2048)[self._header_bytes :])

    def close(self) -> None:
        if self._stop:
            return
        self._stop = True
        self._thread.join()
        self._socket.close()
        os.close(self._tun)


class Network:
    """gNB - N3 - UPF - N6 - data network, with N4 beside N3; one slice."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.ran, self.upf, self.dn = (Namespace() for _ in range(3))
        for item in (self.ran, self.upf, self.dn):
            stack.callback(item.close)
        for name, number in (("n3", 100), ("n4", 101)):
            self._veth(self.ran, name, self.upf, name, f"10.{number}.0", f"fd00:{number}:")
        self._veth(self.upf, "n6", self.dn, "n6", "10.102.0", "fd00:102:")
        for item in (self.upf, self.dn):
            item.sh(
                "sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0"
                " net.ipv6.conf.all.forwarding=1"
            )
        self.upf.sh("ip route add default via 10.102.0.2; ip -6 route add default via fd00:102::2")
        self.dn.sh("ip addr add 10.103.0.2/32 dev lo; ip -6 addr add 2001:db8:103::2/128 dev lo")
        self.gnb = self.ran.socket()
        self.gnb.bind(("10.100.0.1", 2152))
        stack.callback(self.gnb.close)

    @staticmethod
    def _veth(left: Namespace, name: str, right: Namespace, peer: str, v4: str, v6: str) -> None:
        left.sh(f"ip link add {name} mtu 1600 type veth peer name {peer} mtu 1600 netns {right.pid}")
        for number, item, device in ((1, left, name), (2, right, peer)):
            item.sh(
                f"ip addr add {v4}.{number}/24 dev {device}; ip -6 addr add {v6}:{number}/64 dev {device} nodad;"
                f" ip link set {device} up"
            )

    def points(self, *, tun: bool = True, n6: bool = True, n4: bool = False, cgroup: Path | None = None) -> SlicePoints:
        return SlicePoints(
            "a",
            NetPoint(self.upf.path, "n3"),
            NetPoint(self.upf.path, "tun") if tun else None,
            NetPoint(self.dn.path, "n6") if n6 else None,
            NetPoint(self.upf.path, "n4") if n4 else None,
            cgroup,
        )

    def send(self, gtpu: bytes) -> None:
        self.gnb.sendto(gtpu, ("10.100.0.2", 2152))

    def sink(self, port: int = 6000) -> socket.socket:
        sink = self.dn.socket()
        sink.bind(("10.103.0.2", port))
        sink.settimeout(2.0)
        return sink


@pytest.fixture
def lone() -> Iterator[Namespace]:
    """A namespace with interfaces called n3 and n6, and no packets."""
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespaces")
    with contextlib.ExitStack() as stack:
        made = Namespace()
        stack.callback(made.close)
        made.sh("ip link add n3 type veth peer name n6; ip link set n3 up; ip link set n6 up")
        yield made


@pytest.fixture
def network() -> Iterator[Network]:
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespaces")
    if not Path("/dev/net/tun").exists():
        pytest.skip("needs /dev/net/tun")
    with contextlib.ExitStack() as stack:
        yield Network(stack)


@pytest.fixture
def forwarder(network: Network) -> Iterator[Forwarder]:
    with contextlib.closing(Forwarder(network.upf)) as made:
        yield made


# -- N4 ------------------------------------------------------------------------------------------------------------

N4_ADDRESSES = {socket.AF_INET: "10.101.0.{}", socket.AF_INET6: "fd00:101::{}"}


@dataclass
class Peers:
    """SMF and UPF, each bound to the PFCP port."""

    smf: socket.socket
    upf: socket.socket

    def to_upf(self, octets: bytes) -> None:
        self.smf.sendto(octets, self.upf.getsockname())
        assert self.upf.recv(65536) == octets

    def from_upf(self, octets: bytes) -> None:
        self.upf.sendto(octets, self.smf.getsockname())
        assert self.smf.recv(65536) == octets

    def ask(self, request: bytes, answer: bytes | None, by_upf: bool = False, after_s: float = 0.0) -> None:
        forth, back = (self.from_upf, self.to_upf) if by_upf else (self.to_upf, self.from_upf)
        forth(request)
        time.sleep(after_s)
        if answer is not None:
            back(answer)


@pytest.fixture(params=list(N4_ADDRESSES), ids=["ipv4", "ipv6"])
def peers(request: pytest.FixtureRequest, network: Network) -> Iterator[Peers]:
    with contextlib.ExitStack() as stack:
        ends = []
        for home, number in ((network.ran, 1), (network.upf, 2)):
            end = stack.enter_context(contextlib.closing(home.socket(request.param)))
            end.bind((N4_ADDRESSES[request.param].format(number), 8805))
            end.settimeout(2.0)
            ends.append(end)
        yield Peers(*ends)
