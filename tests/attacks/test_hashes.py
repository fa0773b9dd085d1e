"""No UE can compute a packet that the probe takes for somebody else's, or choose where in its tables a packet lands.

An earlier probe told conversations and packets apart by the multiplicative hash of `Unkeyed`, which can be inverted.
The attacks here solve it, so they would work at once on any probe that hashes like that.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import struct
from collections.abc import Iterator

import pytest

from slicepilot.controller.system.bpf.errors import ProbeError
from slicepilot.controller.telemetry import flows
from slicepilot.controller.telemetry.layout import AT_N6
from slicepilot.controller.telemetry.packets import PacketProbe
from slicepilot.controller.telemetry.points import NetPoint, Ports, SlicePoints, Traffic
from tests.controller.namespaces import Namespace
from tests.controller.telemetry.conftest import NO_PI, TAP, Packets, bench_of, loaded, open_tun

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: BPF")

WORD, HALF = (1 << 64) - 1, (1 << 32) - 1
FACTOR, SHIFT = 0x9E3779B97F4A7C15, 29
UDP = 17
TEID, VICTIM, ATTACKER = 0x30, 5, 9  # QFIs


class Unkeyed:
    """What the earlier hash was, and how it is solved."""

    @staticmethod
    def mix(state: int, word: int) -> int:
        product = (state ^ word) * FACTOR & WORD
        return product ^ product >> SHIFT

    @staticmethod
    def unmix(mixed: int, state: int) -> int:
        """The word that leads from one state to another."""
        product = mixed
        for _ in range(3):
            product = mixed ^ product >> SHIFT
        return product * pow(FACTOR, -1, 1 << 64) & WORD ^ state

    @classmethod
    def conversation(cls, packet: bytes) -> int:
        """Of UDP."""
        state = UDP
        addresses = packet[12:20] if packet[0] >> 4 == 4 else packet[8:40]
        for (word,) in struct.iter_unpack("=Q", addresses):
            state = cls.mix(state, word)
        at = 20 if packet[0] >> 4 == 4 else 40
        return cls.mix(state, struct.unpack_from("=I", packet, at)[0])

    @classmethod
    def packet(cls, packet: bytes) -> int:
        """Of UDP over IPv4 with at least 32 octets of payload."""
        addresses, identity, ports = (
            struct.unpack_from(kind, packet, at)[0] for kind, at in (("=Q", 12), ("=I", 4), ("=I", 20))
        )
        state = cls.mix(len(packet) << 8 | UDP, addresses)
        for word in (identity, ports, *struct.unpack_from("=4Q", packet, 28)):
            state = cls.mix(state, word)
        state = (state ^ state >> 32) * 0xD6E8FEB86659FD93 & WORD
        return state ^ state >> 32

    @classmethod
    def twin4(cls, victim: bytes, source: str) -> tuple[str, int, int]:
        """Destination and ports with which another sender is in a victim's conversation: without any search."""
        goal = cls.unmix(cls.conversation(victim), 0)  # before the ports: only its lower half is up to them
        [sender] = struct.unpack("=I", socket.inet_aton(source))
        low = (UDP ^ sender) * FACTOR & HALF
        upper = goal >> 32
        product = upper
        for _ in range(2):
            product = upper ^ product >> SHIFT
        state = (product << 32 | low) * pow(FACTOR, -1, 1 << 64) & WORD
        destination = socket.inet_ntoa(struct.pack("=I", state >> 32))
        mixed = cls.mix(UDP, (state >> 32) << 32 | sender)
        ports = struct.pack("=I", (mixed ^ goal) & HALF)
        return destination, *struct.unpack("!HH", ports)

    @classmethod
    def twin6(cls, victim: bytes, source: str, ports: tuple[int, int]) -> str:
        """The destination with which another sender is in it, from any ports: its second half has room for any hash."""
        address = socket.inet_pton(socket.AF_INET6, source)
        destination = bytes([0x20, 1, *bytes(6)])
        state = UDP
        for (word,) in struct.iter_unpack("=Q", address + destination):
            state = cls.mix(state, word)
        [own] = struct.unpack("=I", struct.pack("!HH", *ports))
        goal = cls.unmix(cls.conversation(victim), 0) ^ own
        return socket.inet_ntop(socket.AF_INET6, destination + struct.pack("=Q", cls.unmix(goal, state)))


class SharedUpf:
    """N3 and N6 of a UPF whose two slices are told by QFI, as devices that a test writes frames to."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        home = Namespace()
        stack.callback(home.close)
        self._files: dict[str, int] = {}
        for name in ("n3", "n6"):
            self._files[name] = open_tun(home.path, name, TAP | NO_PI)
            stack.callback(os.close, self._files[name])
            home.sh(f"ip link set {name} up")
        n3, n6 = (NetPoint(home.path, name) for name in ("n3", "n6"))
        slices = [
            SlicePoints(f"{qfi}", n3, n6=n6, traffic=Traffic(teids=(TEID,), qfis=(qfi,))) for qfi in (VICTIM, ATTACKER)
        ]
        self.probe = stack.enter_context(PacketProbe(slices))

    def forward(self, inner: bytes, qfi: int) -> None:
        """A packet comes by N3 and leaves by N6."""
        item = Packets()
        os.write(self._files["n3"], item.n3(item.gtpu(inner, TEID, qfi)))
        os.write(self._files["n6"], item.frame(inner))

    def carried(self) -> list[int]:
        """Packets at N6 of the victim, the attacker and nobody."""
        return [int(count) for count in self.probe.slices["exit"][:, AT_N6]["packets"]]


@pytest.fixture(name="upf")
def _upf() -> Iterator[SharedUpf]:
    with contextlib.ExitStack() as stack:
        try:
            made = SharedUpf(stack)
        except ProbeError as error:
            pytest.skip(str(error))
        yield made


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("first", [True, False], ids=["the attacker comes first", "the victim comes first"])
def test_a_conversation_that_was_computed_takes_no_packet_of_another_slice(
    upf: SharedUpf, version: int, first: bool
) -> None:
    """With the earlier hash all packets of whoever comes second counted, and were shaped, as the other slice's."""
    item = Packets()
    if version == 4:
        victim = item.ipv4(item.udp(bytes(100), 40000, 5004))
        destination, *ports = Unkeyed.twin4(victim, "10.60.0.9")
        twin = item.ipv4(item.udp(bytes(38), *ports), source="10.60.0.9", destination=destination)
    else:
        victim = item.ipv6(item.udp(bytes(100), 40000, 5004))
        destination = Unkeyed.twin6(victim, "2001:db8:60:9::1", (4000, 9))
        twin = item.ipv6(item.udp(bytes(38), 4000, 9), source="2001:db8:60:9::1", destination=destination)
    assert Unkeyed.conversation(twin) == Unkeyed.conversation(victim)
    sent = [(twin, ATTACKER), (victim, VICTIM)]
    for inner, qfi in sent if first else reversed(sent):
        for _ in range(5):
            upf.forward(inner, qfi)
    assert upf.carried() == [5, 5, 0]


def test_an_identifier_that_was_computed_answers_no_request_of_another_client() -> None:
    """The first octets of a request are its client's choice; an answer to one client ended the other's request."""
    item, port = Packets(), 8080
    service = SlicePoints("a", NetPoint("none", "s"), n6=NetPoint("none", "s", "egress"), ports=Ports((port,), 8))

    def state(client: str, source_port: int) -> int:
        """Of the earlier hash, before the identifier."""
        words = struct.unpack("=2I", socket.inet_aton(client) + socket.inet_aton(item.sink))
        ports = struct.unpack("=I", struct.pack("!HH", source_port, port))
        return Unkeyed.mix(Unkeyed.mix(words[0] << 32 | words[1], *ports), UDP)

    identifier = b"victim's"
    chosen = Unkeyed.unmix(Unkeyed.mix(state(item.ue, 40000), *struct.unpack("=Q", identifier)), state("10.60.0.9", 9))
    with loaded(service) as bench:
        bench.run(
            "service_request", item.frame(item.ipv4(item.udp(struct.pack("=Q", chosen), 9, port), source="10.60.0.9"))
        )
        bench.run("service_request", item.frame(item.ipv4(item.udp(identifier, 40000, port))))
        assert bench.slices[0]["n3"]["joined"] == 0
        answer = item.ipv4(item.udp(identifier, port, 40000), source=item.sink, destination=item.ue)
        for _ in range(2):
            bench.run("service_answer", item.frame(answer))
        assert bench.slices[0]["exit"][AT_N6]["answered_bytes"] == 28 + 8
        assert bench.slices[0]["delay"][AT_N6].sum() == 1


def test_nobody_chooses_which_packets_are_timed() -> None:
    """Else a UE hides its packets, or has all of them timed, so that records of others are overwritten early."""
    item, every, sent = Packets(), 64, 256
    aimed = (
        packet
        for number in itertools.count()
        if (Unkeyed.packet(packet := item.ipv4(item.udp(struct.pack("=4Q", number, 0, 0, 0)))) >> 32)
        < (1 << 32) // every
    )
    with bench_of() as bench:
        bench.slices["timing"]["enter_up_to"] = (1 << 32) // every - 1
        for packet in itertools.islice(aimed, sent):
            bench.enter(item.n3(item.gtpu(packet)))
        assert bench.slices[0]["n3"]["timed"] < sent / 8  # 4 on average; 32 and more once in 10^18 runs


def test_nobody_chooses_flows_that_leave_another_flow_without_a_place() -> None:
    """A flow is kept in one of four places near its home, which followed from its TEID."""
    item, places, victim = Packets(), 1024, 1
    inner = item.ipv4(item.udp(bytes(40)))

    def home(teid: int) -> int:
        return ((1 << 63 | 64 << 32 | teid) * FACTOR & WORD) >> 48 & (places - 1)

    beside = itertools.islice((teid for teid in itertools.count(2) if home(teid) == home(victim)), 4)
    with bench_of() as bench:
        for teid in (*beside, victim):
            bench.enter(item.n3(item.gtpu(inner, teid, None)))
        assert bench.slices[0]["n3"]["crowded"] == 0
        assert victim in [flow.teid for flow in flows.read(bench.programs)]


def test_every_load_hashes_under_a_secret_of_its_own() -> None:
    """Which packets are timed tells two loads apart."""
    item = Packets()

    def timed() -> list[int]:
        with bench_of() as bench:
            bench.slices["timing"]["enter_up_to"], result = (1 << 31) - 1, []
            for number in range(128):
                bench.enter(item.n3(item.gtpu(item.ipv4(item.udp(struct.pack("=4Q", number, 0, 0, 0))))))
                result.append(int(bench.slices[0]["n3"]["timed"]))
        return result

    assert timed() != timed()
