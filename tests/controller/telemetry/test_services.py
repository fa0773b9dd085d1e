"""Slices that are no UPFs: requests, answers and the time between them, against what clients see."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from slicepilot.configs import ConfigError
from slicepilot.controller.telemetry.histogram import quantiles_us
from slicepilot.controller.telemetry.layout import AT_N6
from slicepilot.controller.telemetry.packets import PacketPrograms
from slicepilot.controller.telemetry.points import NetPoint, Ports, SlicePoints
from slicepilot.controller.telemetry.source import KernelSource
from slicepilot.env.telemetry import Telemetry
from tests.controller.namespaces import Namespace

from .conftest import ETHERNET_V6, Bench, Packets, loaded

PORT, OTHER = 8080, 8081
SERVICE = SlicePoints("a", NetPoint("none", "s"), n6=NetPoint("none", "s", "egress"), ports=Ports((PORT,)))


class Talk:
    """What a client and a service send each other, as frames."""

    def __init__(self, packets: Packets, port: int = PORT) -> None:
        self._packets, self._port = packets, port

    def ask(self, payload: bytes, client: int = 40000) -> bytes:
        return self._packets.frame(self._packets.ipv4(self._packets.udp(payload, client, self._port)))

    def answer(self, payload: bytes, client: int = 40000) -> bytes:
        packet = self._packets.udp(payload, self._port, client)
        return self._packets.frame(self._packets.ipv4(packet, source=self._packets.sink, destination=self._packets.ue))

    def tcp(self, payload: bytes, *, answer: bool, six: bool = False, flags: int = 0x10) -> bytes:
        ports = (self._port, 40000) if answer else (40000, self._port)
        segment = struct.pack("!HHIIBBHHH", *ports, 1, 1, 0x80, flags, 100, 0, 0) + bytes(12) + payload
        item = self._packets
        if six:
            ends = (item.sink6, item.ue6) if answer else (item.ue6, item.sink6)
            return ETHERNET_V6 + item.ipv6(segment, source=ends[0], destination=ends[1], protocol=6)
        ends = (item.sink, item.ue) if answer else (item.ue, item.sink)
        return item.frame(item.ipv4(segment, source=ends[0], destination=ends[1], protocol=6))


def counted(bench: Bench, index: int = 0) -> tuple[int, int, int]:
    """Packets of requests, of answers, answers that came first."""
    item = bench.slices[index]
    return int(item["n3"]["packets"]), int(item["exit"][AT_N6]["packets"]), int(item["delay"][AT_N6].sum())


def test_a_request_is_timed_until_its_first_answer(packets: Packets) -> None:
    talk = Talk(packets)
    with loaded(SERVICE) as bench:
        bench.run("service_request", talk.ask(b"question"))
        for part in (b"first", b"second", b"third"):
            bench.run("service_answer", talk.answer(part))
        assert counted(bench) == (1, 3, 1)
        [item, _] = bench.slices
        assert item["n3"]["bytes"] == item["exit"][AT_N6]["answered_bytes"] == 28 + len(b"question")
        assert item["exit"][AT_N6]["bytes"] == 3 * 28 + len(b"firstsecondthird")


@pytest.mark.parametrize("six", [False, True])
def test_tcp_counts_payload_and_nothing_else(packets: Packets, six: bool) -> None:
    talk = Talk(packets)
    with loaded(SERVICE) as bench:
        bench.run("service_request", talk.tcp(b"", answer=False, six=six, flags=0x02))
        bench.run("service_answer", talk.tcp(b"", answer=True, six=six, flags=0x12))
        assert counted(bench) == (0, 0, 0)
        bench.run("service_request", talk.tcp(b"GET /", answer=False, six=six))
        bench.run("service_answer", talk.tcp(b"", answer=True, six=six))  # an acknowledgement is no answer
        assert counted(bench) == (1, 0, 0)
        bench.run("service_answer", talk.tcp(b"200", answer=True, six=six))
        assert counted(bench) == (1, 1, 1)


def test_other_ports_and_the_services_own_questions_are_not_its_requests(packets: Packets) -> None:
    talk, other = Talk(packets), Talk(packets, OTHER)
    with loaded(SERVICE) as bench:
        bench.run("service_request", other.ask(b"question"))
        bench.run("service_answer", other.answer(b"answer"))
        bench.run("service_answer", talk.ask(b"it asks another that has the same port"))
        assert counted(bench) == (0, 0, 0)


def test_requests_that_come_while_one_waits_are_distinguished_or_counted(packets: Packets) -> None:
    talk = Talk(packets)
    with loaded(SERVICE) as bench:
        for number in range(3):
            bench.run("service_request", talk.ask(struct.pack("!H", number) + b"question"))
        for number in range(3):
            bench.run("service_answer", talk.answer(struct.pack("!H", number) + b"answer"))
        assert counted(bench) == (3, 3, 1)
        assert bench.slices[0]["n3"]["joined"] == 2
    with loaded(SlicePoints("a", SERVICE.n3, n6=SERVICE.n6, ports=Ports((PORT,), echoed_octets=2))) as bench:
        for number in range(3):
            bench.run("service_request", talk.ask(struct.pack("!H", number) + b"question"))
        for number in (2, 0):
            bench.run("service_answer", talk.answer(struct.pack("!H", number) + b"answer"))
        assert counted(bench) == (3, 2, 2)
        assert bench.slices[0]["n3"]["joined"] == 0
        assert bench.slices[0]["exit"][AT_N6]["answered_bytes"] == 2 * (28 + 10)


def test_ports_distinguish_services_at_an_interface(packets: Packets) -> None:
    other = SlicePoints("b", SERVICE.n3, n6=SERVICE.n6, ports=Ports((OTHER,)))
    with loaded(SERVICE, other) as bench:
        bench.run("service_request", Talk(packets, OTHER).ask(b"question"))
        bench.run("service_answer", Talk(packets, OTHER).answer(b"answer"))
        assert (counted(bench), counted(bench, 1)) == ((0, 0, 0), (1, 1, 1))


@pytest.mark.parametrize(
    ("second", "reported"),
    [
        (SlicePoints("b", SERVICE.n3, n6=SERVICE.n6, ports=Ports((PORT,))), "b: port 8080 of s is also that of a"),
        (SlicePoints("b", SERVICE.n3, n6=NetPoint("far", "f"), ports=Ports((OTHER,))), "the same far_netns in both"),
    ],
)
def test_what_cannot_be_distinguished_is_an_error(second: SlicePoints, reported: str) -> None:
    with pytest.raises(ConfigError, match=reported):
        PacketPrograms([SERVICE, second])


# -- on real interfaces ------------------------------------------------------------------------------------------


class Site:
    """A service behind a veth pair, and its clients at the other end."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.service, self.clients = Namespace(), Namespace()
        for item in (self.service, self.clients):
            stack.callback(item.close)
        self.service.sh(f"ip link add s type veth peer name c netns {self.clients.pid}")
        for item, device, number in ((self.service, "s", 2), (self.clients, "c", 1)):
            item.sh(f"ip addr add 10.90.0.{number}/24 dev {device}; ip link set {device} up")

    def points(self, *, far: bool = True, echoed: int = 0) -> SlicePoints:
        came = NetPoint(self.service.path, "s")
        left = NetPoint(self.clients.path, "c") if far else came.facing("egress")
        return SlicePoints("a", came, n6=left, ports=Ports((PORT,), echoed))


@pytest.fixture
def site() -> Iterator[Site]:
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespaces")
    with contextlib.ExitStack() as stack:
        yield Site(stack)


@contextlib.contextmanager
def serving(sock: socket.socket, serve: Callable[[socket.socket], None]) -> Iterator[None]:
    """``serve`` in a thread, until its socket is shut."""

    def run() -> None:
        with contextlib.suppress(OSError):
            serve(sock)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        thread.join()
        sock.close()


def answering(think_s: Callable[[], float], answer: bytes) -> Callable[[socket.socket], None]:
    """Takes one connection, and answers what comes by it after a while."""

    def serve(sock: socket.socket) -> None:
        connection, _ = sock.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while connection.recv(4096):
                time.sleep(think_s())
                connection.sendall(answer)

    return serve


def waited(source: KernelSource) -> tuple[float, float]:
    """p50 and p99 since the start, in us."""
    p50, p99 = quantiles_us(source.delay_counts()[0], (0.5, 0.99))
    assert p50 <= p99
    return p50, p99


@pytest.mark.realtime
@pytest.mark.parametrize("far", [False, True])
def test_delays_and_rates_are_those_that_a_client_sees(site: Site, far: bool) -> None:
    """Within 6.25% for the buckets, and the time that both ends' network stacks and schedulers take."""
    rng, requests, size = np.random.default_rng(7), 400, 20_000
    sock = site.service.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.bind(("10.90.0.2", PORT))
    sock.listen()
    seen_us, telemetry = [], []
    serve = answering(lambda: float(rng.uniform(1e-3, 6e-3)), bytes(size))
    with KernelSource([site.points(far=far)]) as source, serving(sock, serve):
        with site.clients.socket(socket.AF_INET, socket.SOCK_STREAM) as client:
            client.connect(("10.90.0.2", PORT))
            source.measure()
            began = time.monotonic()
            for _ in range(requests):
                request = time.monotonic_ns()
                client.sendall(b"GET")
                got = len(client.recv(1 << 16))
                seen_us.append(1e-3 * (time.monotonic_ns() - request))
                while got < size:
                    got += len(client.recv(1 << 16))
            telemetry.append(source.measure())
            took_s = time.monotonic() - began
        counts = source.packets.slices[0]
        assert counts["n3"]["joined"] == 0
        assert counts["delay"][AT_N6].sum() == requests
        assert counts["exit"][AT_N6]["answered_bytes"] == counts["n3"]["bytes"] == requests * (52 + 3)
        for mine, theirs in zip(waited(source), np.quantile(seen_us, (0.5, 0.99)), strict=True):
            assert 0.9 * theirs - 300 < mine < 1.07 * theirs, (mine, theirs)
        carried = 8e-6 * requests * size / took_s
        assert carried < telemetry[0].carried_mbps[0, 0] < 1.06 * carried  # and headers
        assert telemetry[0].offered_mbps[0, 0] == pytest.approx(telemetry[0].carried_mbps[0, 0], rel=0.01)


def test_long_answers_are_offered_when_they_are_requested(packets: Any) -> None:
    """And once: what is offered in all is what is carried in all, whenever it leaves."""
    talk, offered, carried = Talk(packets), 0.0, 0.0
    with loaded(SERVICE) as bench:
        window, telemetry = bench.programs.window, Telemetry.empty(1)
        last_ns = time.monotonic_ns()
        window.read(last_ns, telemetry)

        def measure() -> None:
            nonlocal offered, carried, last_ns
            now_ns = time.monotonic_ns()
            window.read(now_ns, telemetry)
            offered += telemetry.offered_mbps[0, 0] * (now_ns - last_ns)
            carried += telemetry.carried_mbps[0, 0] * (now_ns - last_ns)
            last_ns = now_ns

        for _ in range(300):
            bench.run("service_request", talk.ask(b"question"))
            time.sleep(1e-3)
            measure()
            for _ in range(4):
                for _ in range(3):
                    bench.run("service_answer", talk.answer(bytes(1000)))
                time.sleep(1e-3)
                measure()
    assert offered == pytest.approx(carried, rel=0.03)
