"""A packet is matched at N6 whatever a forwarder changes, and only that packet."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slicepilot.controller.telemetry import flows
from tests.effort import examples

from .conftest import bench_of

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
def test_the_first_32_bytes_of_the_payload_distinguish_packets(
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


def test_fragments_of_inner_packets_are_distinguished(bench: Any, packets: Any) -> None:
    first, last = (packets.ipv4(bytes(64), identity=5, flags=flags) for flags in (0x2000, 0x0008))
    others_last = packets.ipv4(bytes(64), identity=6, flags=0x0008)
    assert not matched(bench, packets, first, last)
    assert not matched(bench, packets, last, others_last)
    assert matched(bench, packets, last, last)


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
def test_sampling_takes_the_same_packets_everywhere_and_counts_all(packets: Any, every: int) -> None:
    total = 4000
    with bench_of() as bench:
        bench.slices["timing"]["enter_up_to"] = bench.slices["timing"]["leave_up_to"] = (1 << 32) // every - 1
        for number in range(total):
            inner = numbered(packets, number)
            bench.enter(packets.n3(packets.gtpu(inner)))
            bench.leave(inner)
        entered, result, missed = bench.counts()
        exits = bench.slices[0]["exit"][1]
        assert (entered, exits["packets"], exits["bytes"]) == (total, total, total * len(numbered(packets, 0)))
        assert missed == 0
        assert result == pytest.approx(total / every, rel=0.5)


def test_idle_flows_make_room_when_the_table_is_nearly_full(bench: Any, packets: Any) -> None:
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


def test_consecutive_tunnels_find_places_under_any_secret(packets: Any) -> None:
    """As an SMF hands them out; each load of the programs has a secret of its own."""
    inner = packets.ipv4(packets.udp(bytes(20)))
    for _ in range(20):
        with bench_of() as bench:
            for teid in range(1, 1000):
                bench.enter(packets.n3(packets.gtpu(inner, teid)))
            assert len(flows.read(bench.programs)) > 768


def test_duplicates_are_matched_and_old_records_are_not_in_the_way(bench: Any, packets: Any) -> None:
    inner = packets.ipv4(packets.udp(b"the same, again and again and again and again"))
    for _ in range(3):
        bench.enter(packets.n3(packets.gtpu(inner)))
        bench.leave(inner)
    assert bench.counts() == (3, 3, 0)
