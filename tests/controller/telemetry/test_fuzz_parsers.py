"""The BPF programs on real devices count packets of any kind as an independent reader does.

Frames are written to TAP and TUN devices of a namespace, on which the programs are attached as they are for a UPF; a
write returns when the programs have run.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import strategies as st

from slicepilot.controller.system.bpf.errors import ProbeError
from slicepilot.controller.telemetry import flows, layout
from slicepilot.controller.telemetry.layout import mapped
from slicepilot.controller.telemetry.n4.capture import Capture
from slicepilot.controller.telemetry.packets import PacketProbe
from slicepilot.controller.telemetry.pfcp import PfcpProbe
from slicepilot.controller.telemetry.points import NetPoint, Ports, SlicePoints, Traffic
from tests.controller.namespaces import Namespace
from tests.effort import examples
from tests.fuzzing import fuzz

from . import frames, reference
from .conftest import NAPI, NAPI_FRAGS, NO_PI, TAP, TUN, Packets, open_tun

PORT = 8080
ETHERTYPE_AT = 12

# Slices a to d share an N3; e is a service.
SHARES = (
    reference.Share(teids=(0x10,), pools=("10.60.0.0/16",)),
    reference.Share(teids=(0x20,), pools=("2001:db8:60::/48", "10.60.3.0/24")),
    reference.Share(teids=(0x30,), qfis=(5, 6, 16)),
    reference.Share(teids=(0x30,), qfis=(7, 9)),
)
SERVICE = len(SHARES)


class Rig:
    """Devices that a test writes frames to, and programs on them.

    Attributes:
        pages: the same as "n3", but what is behind the first part of a write lies in pages of its own, as drivers leave
            it that split headers from data.
    """

    DEVICES: ClassVar[dict[str, int]] = {
        "n3": TAP | NO_PI,
        "pages": TAP | NO_PI | NAPI | NAPI_FRAGS,
        "tun": TUN,
        "n6": TAP | NO_PI,
        "requests": TAP | NO_PI,
        "answers": TAP | NO_PI,
        "n4": TAP | NO_PI,
        "idle": TAP | NO_PI,
    }

    def __init__(self, stack: contextlib.ExitStack, *, by_qfi: bool) -> None:
        self.home = Namespace()
        stack.callback(self.home.close)
        self._files: dict[str, int] = {}
        for name, flags in self.DEVICES.items():
            self._files[name] = open_tun(self.home.path, name, flags)
            stack.callback(os.close, self._files[name])
            self.home.sh(f"ip link set {name} up")
        self.by_qfi = by_qfi
        self.shares = SHARES if by_qfi else SHARES[:2]
        self.nobody = len(self.shares) + 1
        self.probes = {
            name: stack.enter_context(PacketProbe(self._points(name), by_flow=True)) for name in ("n3", "pages")
        }
        self._seen = {name: self._table(name) for name in self.probes}
        self._senders = {
            name: mapped(item.object, ".bss.sender_slices", "u8", writable=True) for name, item in self.probes.items()
        }
        self._senders_of = {
            name: mapped(item.object, ".bss.senders_of", ("u4", layout.MAX_SLICES), writable=True)[0]
            for name, item in self.probes.items()
        }

    def _at(self, device: str) -> NetPoint:
        return NetPoint(self.home.path, device)

    def _points(self, n3: str) -> list[SlicePoints]:
        """Only the first probe has all points."""
        full = n3 == "n3"
        tun, n6 = (self._at("tun"), self._at("n6")) if full else (None, self._at("idle"))
        result = [
            SlicePoints(
                f"s{number}",
                self._at(n3),
                tun,
                n6,
                traffic=Traffic(tuple(map(ip_network, item.pools)), item.teids, item.qfis),
            )
            for number, item in enumerate(self.shares)
        ]
        request, answers = (self._at(name if full else "idle") for name in ("requests", "answers"))
        return [*result, SlicePoints("service", request, n6=answers, ports=Ports((PORT,)))]

    def write(self, device: str, frame: bytes, linear: int | None = None) -> None:
        """Have a frame arrive; ``linear``: how long the first part of the buffer is. Frames without a whole link header
        cannot."""
        if self.DEVICES[device] & TUN:
            os.write(self._files[device], b"\0\0" + frame[ETHERTYPE_AT:])  # struct tun_pi
        elif self.DEVICES[device] & NAPI_FRAGS:
            parts = [frame[:linear], frame[linear:]] if linear is not None and linear < len(frame) else [frame]
            os.writev(self._files[device], parts)
        else:
            os.write(self._files[device], frame)

    def forget(self) -> None:
        """All that the programs have learned of senders and flows."""
        for name, probe in self.probes.items():
            self._senders[name][:] = self._senders_of[name][:] = probe.flows_of[:] = 0
            positions = np.flatnonzero(probe.flow_keys)
            probe.flows[positions] = np.zeros(1, layout.FLOW)
            probe.flow_keys[:] = 0
            probe.slices["timing"]["proven"] = 0

    def moved(self, name: str = "n3") -> dict[tuple[str, int], int]:
        """Every counter that has changed since the last call, by name and slice, and by how much."""
        now = self._table(name)
        difference, self._seen[name] = now - self._seen[name], now
        return {
            (COUNTERS[row], slice_): int(difference[row, slice_])
            for row, slice_ in zip(*(axis.tolist() for axis in np.nonzero(difference)), strict=True)
        }

    def _table(self, name: str) -> np.ndarray[Any, Any]:
        item = self.probes[name].slices
        rows = [item["n3"][field] for field in N3_FIELDS]
        for at in (layout.AT_TUN, layout.AT_N6):
            rows += [*(item["exit"][:, at][field] for field in EXIT_FIELDS), item["delay"][:, at].sum(axis=-1)]
        return np.array(rows, np.int64)


N3_FIELDS = ("packets", "bytes", "malformed", "other", "timed", "unproven", "joined")
EXIT_FIELDS = ("packets", "bytes", "missed", "unreported", "answered_bytes")
COUNTERS = [f"n3 {field}" for field in N3_FIELDS] + [
    f"{at} {field}" for at in ("tun", "n6") for field in (*EXIT_FIELDS, "found")
]


@contextlib.contextmanager
def _rig(*, by_qfi: bool) -> Iterator[Rig]:
    if os.geteuid() != 0 or not Path("/dev/net/tun").exists():
        pytest.skip("needs root and /dev/net/tun: network namespaces")
    with contextlib.ExitStack() as stack:
        try:
            made = Rig(stack, by_qfi=by_qfi)
        except ProbeError as error:
            pytest.skip(str(error))
        yield made


@pytest.fixture(name="rig", scope="module")
def _by_qfi() -> Iterator[Rig]:
    with _rig(by_qfi=True) as made:
        yield made


@pytest.fixture(name="any_rig", scope="module", params=["by conversation", "by UE"])
def _both(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with _rig(by_qfi=request.param == "by conversation") as made:
        yield made


# -- N3 ------------------------------------------------------------------------------------------------------------


def enters(rig: Rig, frame: bytes, name: str = "n3", linear: int | None = None) -> reference.N3:
    """Has a frame arrive at N3, and says what came of it by the reference, which is what was counted."""
    expected = reference.read_n3(frame)
    rig.write(name, frame, linear)
    moved, known = rig.moved(name), flows.read(rig.probes[name])
    if name == "pages" and expected.far and moved == {("n3 malformed", rig.nobody): 1}:
        return reference.N3("malformed")
    if expected.what != "counted":
        counter = {"passed": {}, "malformed": {("n3 malformed", rig.nobody): 1}, "other": {("n3 other", rig.nobody): 1}}
        assert moved == counter[expected.what], expected
        assert not known
        return expected
    assert expected.inner is not None
    owner = reference.owner(rig.shares, expected)
    slice_ = rig.nobody if owner is None else owner
    counted = {("n3 packets", slice_): 1, ("n3 bytes", slice_): expected.inner.bytes}
    if owner is None:
        assert moved == counted, expected
        assert not known
        return expected
    assert moved == counted | {("n3 timed", slice_): 1}, expected
    assert [(item.slice, item.teid, item.qfi, item.packets, item.bytes) for item in known] == [
        (owner, expected.teid, expected.qfi, 1, expected.inner.bytes)
    ]
    return expected


def good(**options: Any) -> bytes:
    item = Packets()
    return item.n3(item.gtpu(item.ipv4(item.udp(bytes(100))), 0x10, **options))


def n3_cases() -> list[bytes]:
    """What was once read wrongly, and what no draw is likely to bring."""
    item = Packets()
    inner = item.ipv4(item.udp(bytes(40)))
    whole = good()
    version, long_udp, short_udp, long_ip, beyond = (bytearray(whole) for _ in range(5))
    version[14] = 0x65
    struct.pack_into("!H", long_udp, 14 + 24, 1400)
    struct.pack_into("!H", short_udp, 14 + 24, 7)
    struct.pack_into("!H", long_ip, 14 + 2, 1400)
    struct.pack_into("!H", beyond, 14 + 24, 8 + 16 + 60)  # UDP ends within the inner packet
    first, lies = bytearray(whole), bytearray(whole)
    for part in (first, lies):
        struct.pack_into("!H", part, 14 + 6, 0x2000)
        struct.pack_into("!H", part, 14 + 24, 1400)
    inner_at = 14 + 20 + 8 + 16
    struct.pack_into("!H", first, inner_at + 2, 1400 - 8 - 16)
    struct.pack_into("!H", lies, inner_at + 2, 65535)  # more than the datagram of which this is the first part
    datagram = item.udp(item.gtpu(inner, 0x20), 2152, 2152)
    ends: dict[str, Any] = {"source": "fd00::1", "destination": "fd00::2"}
    fragments = [
        item.frame(item.ipv6(struct.pack("!BBHI", 17, 0, offset, 9) + datagram, protocol=44, **ends))
        for offset in (0, 1, 8, 9)
    ]
    # A first fragment that ends before its frame does, within GTP-U's header.
    fragments.append(fragments[1][: 14 + 4] + struct.pack("!H", 19) + fragments[1][14 + 6 :])
    chains = [good(extensions=((0x40, bytes(2)),) * number) for number in (5, 6)]
    return [bytes(case) for case in (version, long_udp, short_udp, long_ip, beyond, first, lies, *fragments, *chains)]


@pytest.mark.fuzz
def test_packets_at_n3(rig: Rig) -> None:
    def check(frame: bytes) -> None:
        if len(frame) >= 14:
            rig.forget()
            enters(rig, frame)

    fuzz(frames.n3(), check, examples(2000), [b"", *n3_cases()])


@pytest.mark.fuzz
def test_packets_at_n3_in_pages(rig: Rig) -> None:
    """The same whatever part of a packet a driver has put where."""

    def check(case: tuple[bytes, int]) -> None:
        frame, linear = case
        if len(frame) >= 14:
            rig.forget()
            enters(rig, frame, "pages", linear)

    cases = [(frame, linear) for frame in n3_cases() for linear in (14, 34, 60)]
    fuzz(st.tuples(frames.n3(), st.integers(14, 300)), check, examples(1000), cases)


def test_a_packet_that_ends_anywhere(rig: Rig) -> None:
    """At every octet, with lengths that say so and with those of the whole."""
    item = Packets()
    for inner in (item.ipv4(item.udp(bytes(20)), options=bytes([1] * 8)), item.ipv6(item.udp(bytes(20)))):
        gtpu = item.gtpu(inner, 0x10, extensions=((0x40, bytes(6)),))
        for whole in (item.n3(gtpu), item.n3_v6(gtpu)):
            for end in range(14, len(whole)):
                rig.forget()
                enters(rig, whole[:end])
        for end in range(len(gtpu)):
            for whole in (item.n3(gtpu[:end]), item.n3_v6(gtpu[:end])):
                rig.forget()
                enters(rig, whole)


# -- beyond the UPF ------------------------------------------------------------------------------------------------


@pytest.mark.fuzz
@pytest.mark.parametrize("point", ["n6", "tun"])
def test_packets_that_leave(any_rig: Rig, point: str) -> None:
    """They are the slice's whose sender has come by N3, and matched or missed once."""
    rig, who = any_rig, reference.conversation if any_rig.by_qfi else reference.sender

    def check(case: tuple[bytes, bytes]) -> None:
        came, leaves = case
        rig.forget()
        owners = {}
        if len(came) >= 14:
            entered = enters(rig, came)
            if entered.inner is not None:
                owners[who(entered.inner)] = reference.owner(rig.shares, entered)
        if len(leaves) < 14 or (point == "tun" and reference.read_frame(leaves) is None):
            return
        if point == "tun" and leaves[ETHERTYPE_AT : ETHERTYPE_AT + 2] not in (b"\x08\x00", b"\x86\xdd"):
            return  # tagged: a TUN device has no tags
        expected = reference.read_exit(leaves)
        rig.write(point, leaves)
        moved = rig.moved()
        if expected is None:
            assert moved == {}
            return
        owner = owners.get(who(expected))
        slice_ = rig.nobody if owner is None else owner
        result = [moved.pop((f"{point} {how}", slice_), 0) for how in ("found", "missed")]
        assert moved == {(f"{point} packets", slice_): 1, (f"{point} bytes", slice_): expected.bytes}, expected
        assert sum(result) == (0 if owner is None else 1)

    strategy = frames.inner().flatmap(
        lambda inner: st.tuples(
            frames.frame(frames.outer(frames.gtpu(st.just(inner)), 2152, 2152)),
            frames.frame(st.one_of(st.just(inner), frames.inner())),
        )
    )
    inner = Packets().ipv4(Packets().udp(bytes(100)))
    fuzz(strategy, check, examples(750), [(good(), Packets().frame(inner)), (good(), b"")])


# -- services ------------------------------------------------------------------------------------------------------


@pytest.mark.fuzz
@pytest.mark.parametrize("answer", [False, True], ids=["requests", "answers"])
def test_packets_of_services(rig: Rig, answer: bool) -> None:
    device, point = ("answers", "n6") if answer else ("requests", "n3")

    def check(frame: bytes) -> None:
        if len(frame) < 14:
            return
        expected = reference.read_exchange(frame, {PORT: SERVICE}, answer=answer)
        rig.write(device, frame)
        moved = rig.moved()
        for also in ("n3 joined", "n6 found"):  # by what has come before
            assert moved.pop((also, SERVICE), 0) <= 1
        moved.pop(("n6 answered_bytes", SERVICE), 0)
        if expected is None:
            assert moved == {}
        else:
            assert moved == {(f"{point} packets", SERVICE): 1, (f"{point} bytes", SERVICE): expected[1]}

    item = Packets()
    whole = item.frame(item.ipv4(item.udp(b"question", PORT, PORT)))
    version = bytearray(whole)
    version[14] = 0x55
    fuzz(frames.frame(frames.inner()), check, examples(750), [whole, bytes(version)])


# -- N4 ------------------------------------------------------------------------------------------------------------


@pytest.mark.fuzz
def test_messages_on_n4(rig: Rig) -> None:
    """Copied octet by octet, or counted as what could not be; and the transactions that they belong to."""
    addresses = [ip_address(item) for item in (frames.UPF, frames.UPF6)]
    points = [SlicePoints("a", NetPoint("none", "n3"), n4=NetPoint(rig.home.path, "n4"))]
    with (
        contextlib.closing(Capture([NetPoint(rig.home.path, "n4")])) as capture,
        contextlib.closing(PfcpProbe(points)) as probe,
    ):
        capture.watch(5, 0, addresses)

        def counted() -> dict[tuple[str, str], int]:
            return {
                (kind, what): sum(int(probe.transactions[0, number][field]) for field in names)
                for number, kind in enumerate(layout.PFCP_KINDS)
                for what, names in (("request", ("requests",)), ("answer", ("answers", "orphans")))
            }

        def captured() -> np.ndarray[Any, Any]:
            return np.array([capture.counters[0][field] for field in ("messages", "unread", "lost")], np.int64)

        def check(frame: bytes) -> None:
            if len(frame) < 14:
                return
            transaction = reference.read_transaction(frame)
            message = reference.read_n4(frame, [item.packed for item in addresses])
            before, totals = counted(), captured()
            rig.write("n4", frame)
            after = counted()
            assert {key: after[key] - before[key] for key in after if after[key] != before[key]} == (
                {} if transaction is None else {transaction: 1}
            )
            heard = capture.next()
            assert capture.next() is None
            unread = message is not None and not message.whole
            assert (captured() - totals).tolist() == [message is not None, unread, 0]
            if message is None or unread:
                assert heard is None
                return
            assert heard is not None
            assert (heard.octets, heard.upf, heard.sent) == (message.octets, 5, False)
            assert (heard.own, heard.other) == tuple(
                item.ljust(16, b"\0") for item in (message.ip.destination, message.ip.source)
            )
            assert (heard.own_port, heard.other_port) == (message.destination_port, message.source_port)

        item = Packets()
        request = struct.pack("!BBHQI", 0x21, 50, 12, 7, 1 << 8)
        ends: dict[str, Any] = {"source": frames.RAN6, "destination": frames.UPF6}
        datagram = item.udp(request, 8805, 8805)
        atomic, first = (
            item.frame(item.ipv6(struct.pack("!BBHI", 17, 0, more, 9) + datagram, protocol=44, **ends))
            for more in (0, 1)
        )
        short = item.udp(request, 8805, 8805)[:4] + struct.pack("!H", 9) + datagram[6:]
        lies = item.frame(item.ipv6(short, **ends))
        strategy = st.one_of(
            frames.frame(frames.outer(frames.pfcp(), None, 8805)),
            frames.frame(frames.outer(frames.pfcp(), 8805, 40000)),
        )
        fuzz(strategy, check, examples(750), [atomic, first, lies])
