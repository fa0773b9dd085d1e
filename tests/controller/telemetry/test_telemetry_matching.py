"""A packet is found again at N6 whatever a forwarder changes, and only that packet."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slicepilot.controller.telemetry import flows, layout
from tests.effort import examples

UNSPEC = -1  # TC_ACT_UNSPEC: on to the next filter

fast = settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])


def matched(bench: Any, packets: Any, inner: bytes, seen_at_n6: bytes) -> bool:
    before = bench.counts()
    assert bench.enter(packets.n3(packets.gtpu(inner))) == UNSPEC
    assert bench.leave(seen_at_n6) == UNSPEC
    entered, result, missed = (now - then for now, then in zip(bench.counts(), before, strict=True))
    assert entered == 1
    assert result + missed == 1
    return result == 1


@fast
@given(
    payload=st.binary(min_size=0, max_size=1300),
    tos=st.integers(0, 255),
    options=st.integers(0, 3),
    protocol=st.sampled_from([1, 6, 17, 47, 50, 132]),
)
def test_ipv4_with_df_and_no_identity(
    bench: Any, packets: Any, payload: bytes, tos: int, options: int, protocol: int
) -> None:
    content = packets.udp(payload) if protocol == 17 else payload
    common = {"protocol": protocol, "options": b"\x01" * 4 * options}
    inner = packets.ipv4(content, ttl=64, tos=0, **common)
    assert matched(bench, packets, inner, packets.ipv4(content, ttl=63, tos=tos, **common))


@fast
@given(
    payload=st.binary(min_size=0, max_size=1300),
    flow=st.integers(0, (1 << 28) - 1),
    protocol=st.sampled_from([6, 17, 50, 58, 0, 44]),
)
def test_ipv6(bench: Any, packets: Any, payload: bytes, flow: int, protocol: int) -> None:
    content = packets.udp(payload) if protocol == 17 else payload
    inner = packets.ipv6(content, hops=64, flow=0, protocol=protocol)
    assert matched(bench, packets, inner, packets.ipv6(content, hops=60, flow=flow, protocol=protocol))


def test_checksums_are_left_out(bench: Any, packets: Any) -> None:
    udp = packets.udp(bytes(100))
    tcp = struct.pack("!HHIIBBHHH", 40000, 80, 7, 9, 0x50, 0x10, 512, 0, 0) + b"data"
    icmp = struct.pack("!BBHHH", 8, 0, 0, 77, 1) + b"ping"
    for protocol, content, at in ((17, udp, 6), (6, tcp, 16), (1, icmp, 2)):
        changed = content[:at] + b"\xab\xcd" + content[at + 2 :]
        assert matched(
            bench, packets, packets.ipv4(content, protocol=protocol), packets.ipv4(changed, protocol=protocol)
        )


@fast
@given(at=st.integers(0, 31), flip=st.integers(1, 255), length=st.integers(40, 1300))
def test_the_first_32_bytes_of_the_payload_tell_packets_apart(
    bench: Any, packets: Any, at: int, flip: int, length: int
) -> None:
    payload = random.Random(length).randbytes(length)
    other = payload[:at] + bytes([payload[at] ^ flip]) + payload[at + 1 :]
    inner, lookalike = (packets.ipv4(packets.udp(p)) for p in (payload, other))
    assert not matched(bench, packets, inner, lookalike)


def test_packets_that_differ_in_anything_else_are_not_taken_for_each_other(bench: Any, packets: Any) -> None:
    payload = b"same payload, of more than thirty-two bytes"
    inner = packets.ipv4(packets.udp(payload))
    packets_of_others = [
        packets.ipv4(packets.udp(payload, source=40001)),
        packets.ipv4(packets.udp(payload, destination=6001)),
        packets.ipv4(packets.udp(payload), destination="10.103.0.3"),
        packets.ipv4(packets.udp(payload), identity=1),
        packets.ipv4(packets.udp(payload + b"!")),
        packets.ipv4(packets.udp(payload), protocol=6),
    ]
    for other in packets_of_others:
        assert not matched(bench, packets, inner, other)


def test_the_end_of_a_frame_is_not_the_end_of_its_packet(bench: Any, packets: Any) -> None:
    inner = packets.ipv4(packets.udp(b"ab"))
    assert matched(bench, packets, inner, inner + bytes(16))  # padded to the least frame


def test_fragments_of_inner_packets_are_told_apart(bench: Any, packets: Any) -> None:
    first, last = (packets.ipv4(bytes(64), identity=5, flags=flags) for flags in (0x2000, 0x0008))
    others_last = packets.ipv4(bytes(64), identity=6, flags=0x0008)
    assert not matched(bench, packets, first, last)
    assert not matched(bench, packets, last, others_last)
    assert matched(bench, packets, last, last)


@fast
@given(
    teid=st.integers(0, 0xFFFFFFFF),
    qfi=st.none() | st.integers(0, 63),
    sequence=st.none() | st.integers(0, 0xFFFF),
    extensions=st.lists(st.tuples(st.sampled_from([0x03, 0x20, 0x40, 0x82, 0xC0]), st.integers(1, 6)), max_size=3),
)
def test_the_tunnel_is_read_through_extension_headers(
    bench: Any,
    packets: Any,
    teid: int,
    qfi: int | None,
    sequence: int | None,
    extensions: list[tuple[int, int]],
) -> None:
    bench.programs.flow_keys[:] = 0
    bench.programs.flows[:] = np.zeros(1, layout.FLOW)
    inner = packets.ipv4(packets.udp(bytes(50)))
    chain = tuple((kind, bytes(4 * words - 2)) for kind, words in extensions)
    bench.enter(packets.n3(packets.gtpu(inner, teid, qfi, sequence=sequence, extensions=chain)))
    [flow] = flows.read(bench.programs)
    assert (flow.teid, flow.qfi, flow.packets, flow.bytes) == (teid, qfi, 1, len(inner))


def test_outer_ipv6(bench: Any, packets: Any) -> None:
    for inner in (packets.ipv4(packets.udp(b"one")), packets.ipv6(packets.udp(b"two"))):
        bench.enter(packets.n3_v6(packets.gtpu(inner)))
        bench.leave(inner)
    assert bench.counts() == (2, 2, 0)


def test_the_first_fragment_of_an_outer_packet_is_enough(bench: Any, packets: Any) -> None:
    inner = packets.ipv4(packets.udp(bytes(1400)))
    whole = packets.n3(packets.gtpu(inner))
    ip = bytearray(whole[14:])
    first, rest = bytes(ip[: 20 + 800]), bytes(ip[20 + 800 :])
    head = bytearray(first)
    struct.pack_into("!H", head, 2, len(head))
    struct.pack_into("!H", head, 6, 0x2000)  # more fragments
    bench.enter(packets.frame(bytes(head)))
    tail = bytearray(bytes(ip[:20]) + rest)
    struct.pack_into("!H", tail, 2, len(tail))
    struct.pack_into("!H", tail, 6, 100)  # at 800 bytes
    bench.enter(packets.frame(bytes(tail)))
    bench.leave(inner)
    assert bench.counts() == (1, 1, 0)


def broken_packets(packets: Any) -> list[bytes]:
    inner = packets.ipv4(packets.udp(bytes(50)))
    good = packets.gtpu(inner, extensions=((0x40, bytes(2)),))
    v2 = bytes([0x48]) + good[1:]
    empty_extension = packets.gtpu(inner)
    empty_extension = empty_extension[:12] + b"\0" + empty_extension[13:]
    long_extension = empty_extension[:12] + b"\xff" + empty_extension[13:]
    endless = packets.gtpu(inner, extensions=((0x40, bytes(2)),) * 7)
    too_long = bytearray(inner)
    struct.pack_into("!H", too_long, 2, 1400)
    too_short = bytearray(inner)
    struct.pack_into("!H", too_short, 2, 19)
    no_words = bytearray(inner)
    no_words[0] = 0x41
    contents = [v2, empty_extension, long_extension, endless]
    contents += [packets.gtpu(bytes(c)) for c in (too_long, too_short, no_words, b"", b"\x45", b"\x75" + inner[1:])]
    contents += [good[:length] for length in range(len(good))]
    return contents


def test_malformed_packets_pass_and_are_not_measured(bench: Any, packets: Any) -> None:
    contents = broken_packets(packets)
    for content in contents:
        assert bench.enter(packets.n3(content)) == UNSPEC
    assert bench.counts()[0] == 0
    assert bench.slices[0]["n3"]["malformed"] + bench.slices[0]["n3"]["other"] == len(contents)


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_at_all_pass(bench: Any, packets: Any, data: st.DataObject) -> None:
    inner = packets.ipv4(packets.udp(bytes(50)))
    frame = bytearray(packets.n3(packets.gtpu(inner, extensions=((0x40, bytes(2)),))))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(14, len(frame) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(34, len(frame)))  # the test facility wants a whole IP header
    for program in ("n3_ingress", "n6_exit", "tun_ingress"):
        assert bench.run(program, bytes(frame[:cut])) == UNSPEC


def test_other_messages_of_the_tunnel_are_counted_apart(bench: Any, packets: Any) -> None:
    for kind in (1, 2, 26, 254):  # echo request and response, error indication, end marker
        bench.enter(packets.n3(packets.gtpu(b"", kind=kind)))
    bench.enter(packets.n3(packets.gtpu(b""), port=2153))
    assert bench.slices[0]["n3"]["other"] == 4
    assert bench.counts()[0] == 0


def test_others_traffic_at_n6_belongs_to_nobody(bench: Any, packets: Any) -> None:
    bench.enter(packets.n3(packets.gtpu(packets.ipv4(packets.udp(b"known")))))
    bench.leave(packets.ipv4(packets.udp(b"stranger"), source="192.0.2.1"))
    assert bench.counts() == (1, 0, 0)
    assert bench.slices[1]["exit"][1]["packets"] == 1


def test_duplicates_are_found_again_and_old_records_are_not_in_the_way(bench: Any, packets: Any) -> None:
    inner = packets.ipv4(packets.udp(b"the same, again and again and again and again"))
    for _ in range(3):
        bench.enter(packets.n3(packets.gtpu(inner)))
        bench.leave(inner)
    assert bench.counts() == (3, 3, 0)


def numbered(packets: Any, number: int) -> bytes:
    return packets.ipv4(packets.udp(struct.pack("!Q", number) + bytes(40)))


@pytest.mark.parametrize("order", ["in order", "reversed", "shuffled", "every tenth", "two streams"])
def test_order_does_not_matter(bench: Any, packets: Any, order: str) -> None:
    numbers = list(range(3000))
    for number in numbers:
        bench.enter(packets.n3(packets.gtpu(numbered(packets, number))))
    leaving = {
        "in order": numbers,
        "reversed": numbers[::-1],
        "shuffled": random.Random(1).sample(numbers, len(numbers)),
        "every tenth": numbers[::10],
        "two streams": [n for pair in zip(numbers[:1500], numbers[1500:], strict=True) for n in pair],
    }[order]
    for number in leaving:
        bench.leave(numbered(packets, number))
    entered, result, missed = bench.counts()
    assert (entered, result + missed) == (3000, len(leaving))
    assert missed <= 0.001 * len(leaving)


def test_a_ring_that_is_overrun_forgets_the_oldest(bench: Any, packets: Any) -> None:
    positions = 16384
    for number in range(positions + 100):
        bench.enter(packets.n3(packets.gtpu(numbered(packets, number))))
    for number in range(positions + 100):
        bench.leave(numbered(packets, number))
    _, result, missed = bench.counts()
    assert missed >= 100
    assert result >= positions - 10


@pytest.mark.parametrize("every", [2, 10, 100])
def test_sampling_takes_the_same_packets_everywhere_and_counts_all(
    make_bench: Callable[..., Any], packets: Any, every: int
) -> None:
    total = 4000
    with make_bench(sample_every=every) as bench:
        for number in range(total):
            inner = numbered(packets, number)
            bench.enter(packets.n3(packets.gtpu(inner)))
            bench.leave(inner)
        entered, result, missed = bench.counts()
        exits = bench.slices[0]["exit"][1]
        assert (entered, exits["packets"], exits["bytes"]) == (total, total, total * len(numbered(packets, 0)))
        assert missed == 0
        assert result == pytest.approx(total / every, rel=0.5)


def test_flows_beyond_the_table_are_counted_to_the_slice(bench: Any, packets: Any) -> None:
    inner = packets.ipv4(packets.udp(bytes(20)))
    for teid in range(1500):
        bench.enter(packets.n3(packets.gtpu(inner, teid)))
    assert bench.counts()[0] == 1500
    known = flows.read(bench.programs)
    assert 800 <= len(known) <= 1024
    assert all(flow.packets == 1 for flow in known)


def test_idle_flows_make_room_when_places_are_scarce(bench: Any, packets: Any) -> None:
    inner = packets.ipv4(packets.udp(bytes(20)))
    idle = flows.IdleFlows(bench.programs)
    idle.free()
    bench.enter(packets.n3(packets.gtpu(inner, 1)))
    idle.free()
    assert idle.free() == 0  # there is room
    for teid in range(2, 1000):
        bench.enter(packets.n3(packets.gtpu(inner, teid)))
    assert idle.free() == 1  # the first had none since
    bench.enter(packets.n3(packets.gtpu(inner, 1)))
    assert idle.free() > 700
    bench.enter(packets.n3(packets.gtpu(inner, 1)))
    bench.enter(packets.n3(packets.gtpu(inner, 5)))
    assert [(flow.teid, flow.packets) for flow in flows.read(bench.programs)] == [(1, 2), (5, 1)]


def test_many_ue_addresses(bench: Any, packets: Any) -> None:
    for number in range(5000):
        inner = packets.ipv4(
            packets.udp(b"x" * 40), source=f"10.{60 + number // 65536}.{number // 256 % 256}.{number % 256}"
        )
        bench.enter(packets.n3(packets.gtpu(inner)))
        bench.leave(inner)
    entered, result, missed = bench.counts()
    assert entered >= 4995  # a crowded neighbourhood has no place for some
    assert result + missed >= 4995
