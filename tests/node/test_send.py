"""Packets are sent through UPFs that somebody else runs, and it is said where they are lost."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from slicepilot.configs import ConfigError
from slicepilot.node.config.spec import NodeSpec
from slicepilot.node.live.backend import NodeBackend
from slicepilot.node.send.deliver import Outcome, deliver
from slicepilot.node.send.ends import ends_of
from slicepilot.node.send.packets import g_pdu, read_gtpu, udp_packet
from slicepilot.node.send.sessions import Seen, Session
from slicepilot.node.send.ways import NothingToSendError, Uplink, downlink, uplink
from slicepilot.testbed.lifecycle.processes import bin_folder

from .foreign import Foreign
from .test_foreign import document_of, in_netns, picture, slicepilot

UE, TEID = "10.61.1.2", 1


class Smf:
    """The project's SMF, told what to do line by line."""

    def __init__(self, node: Foreign) -> None:
        command = ["ip", "netns", "exec", f"{node.prefix}-ran", str(bin_folder() / "smf"), "--json", "--script", "-"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.ask("associate", upf="10.211.1.2")

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"op": op, **fields}) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            answer: dict[str, Any] = json.loads(line)
            if answer.get("op") == op:
                assert answer["ok"], answer
                return answer
        raise AssertionError(f"the SMF has ended at {op}")

    def establish(self, **other: Any) -> None:
        own = {"session": "a", "ue": UE, "teid": TEID, "gnb": "10.210.1.1", "gnb_teid": TEID}
        self.ask("establish", upf="10.211.1.2", n3="10.210.1.2", qfi=9, sst=1, sd="000001", **own | other)

    @contextlib.contextmanager
    def changed(self, back: dict[str, Any], **change: Any) -> Iterator[None]:
        self.ask("modify", session="a", **change)
        try:
            yield
        finally:
            self.ask("modify", session="a", **back)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.ask("quit")
        self._process.communicate()


@pytest.fixture(scope="module", name="node")
def _node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Foreign]:
    node = Foreign(tmp_path_factory.mktemp("send"), count=1, prefix="fp")
    try:
        yield node
    finally:
        node.down()


@pytest.fixture(scope="module", name="smf")
def _smf(node: Foreign) -> Iterator[Smf]:
    """In the place of the one that has come with the rig."""
    node.stop_smf()
    smf = Smf(node)
    try:
        smf.establish()
        yield smf
    finally:
        smf.close()


class Rig:
    """A slice whose configuration is written, looked at by the command or from here."""

    def __init__(self, node: Foreign, folder: Path) -> None:
        self.node, self.path = node, folder / "node.yaml"
        self.upf, self.outside, self.radio = node.netns[0], f"{node.prefix}-dn", f"{node.prefix}-ran"
        self.backend = NodeBackend(NodeSpec.from_yaml(str(self.written({"ue": UE, "teid": TEID, "qfi": 9}))), 0.02)
        self.ends = ends_of(self.backend, 0)

    def written(self, session: dict[str, Any] | None, **more: Any) -> Path:
        document = document_of(self.node)
        document["slices"][0] |= more | ({} if session is None else {"test_session": session})
        self.path.write_text(yaml.safe_dump(document))
        return self.path

    def check(self, session: dict[str, Any] | None, code: int = 0) -> dict[str, dict[str, Any]]:
        """What the command says."""
        command = ["node", "check", str(self.written(session)), "--seconds", "1", "--send", "--json"]
        [found] = json.loads(slicepilot(*command, code=code).stdout)
        sent: dict[str, dict[str, Any]] = found["sent"]
        return sent

    def send(self, host: str | None = None, **other: Any) -> tuple[Outcome, Outcome]:
        """In the uplink, and in the downlink, of a session that may be another."""
        session = replace(Session(ip_address(UE), TEID, 9), **other)
        there = self.ends.host(session.ue.version) if host is None else ip_address(host)
        return deliver(uplink(self.ends, session, there)), deliver(downlink(self.ends, session, there))


@pytest.fixture(scope="module", name="rig")
def _rig(node: Foreign, smf: Smf, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    rig = Rig(node, tmp_path_factory.mktemp("rig"))
    try:
        yield rig
    finally:
        rig.backend.close()


def told(outcome: Outcome) -> str:
    """Of packets that are lost, one and twenty."""
    assert (outcome.result, outcome.sent, outcome.arrived) == ("lost", 21, 0), outcome
    return outcome.why


def test_one_packet_each_way_arrives_and_nothing_stays_behind(rig: Rig) -> None:
    before = picture(rig.node)
    sent = rig.check({"ue": UE, "teid": TEID, "qfi": 9})
    assert [(way, one["result"], one["sent"], one["arrived"]) for way, one in sent.items()] == [
        ("uplink", "arrived", 1, 1),
        ("downlink", "arrived", 1, 1),
    ]
    assert picture(rig.node) | {"links": ""} == before | {"links": ""}


def test_what_traffic_shows_is_not_sent_again(rig: Rig) -> None:
    """The session is that of the traffic, which nobody has named."""
    rig.node.load(seconds=20, mbps=2)
    sent = rig.check(None)
    rig.node.carried_mbps()
    assert [one["result"] for one in sent.values()] == ["arrives already", "arrived"]
    assert sent["uplink"]["sent"] == 0
    assert f"to UE {UE}" in sent["downlink"]["why"]


@contextlib.contextmanager
def datagrams(netns: str, to: str, port: int) -> Iterator[None]:
    """Somebody else's, a hundred a second, as long as ours."""
    program = "import socket, sys, time; s = socket.socket(2, 2)\n"
    program += "while True: s.sendto(bytes(372), (sys.argv[1], int(sys.argv[2]))); time.sleep(0.01)"
    command = ["ip", "netns", "exec", netns, sys.executable, "-S", "-c", program, to, str(port)]
    with subprocess.Popen(command) as process:
        try:
            yield
        finally:
            process.kill()


def test_downlink_of_others_is_seen_on_n3(rig: Rig) -> None:
    with datagrams(rig.outside, UE, 7000):
        sent = rig.check({"ue": UE}, code=1)
    assert [one["result"] for one in sent.values()] == ["nothing to send", "arrives already"]
    assert "test_session.teid says it" in sent["uplink"]["why"]


def test_nothing_known_is_nothing_sent_and_no_pass(rig: Rig) -> None:
    for one in rig.check(None, code=1).values():
        assert (one["result"], one["sent"]) == ("nothing to send", 0)
        assert "test_session: {ue: ADDRESS, teid: NUMBER} in slices.slice1 says one" in one["why"]


def test_a_closed_gate_loses_one_direction(rig: Rig, smf: Smf) -> None:
    with smf.changed({"gate_ul": "open"}, gate_ul="closed"):
        up, down = rig.send()
    assert down.result == "arrived"
    assert "of 20, 20 reached N3 (n3), 0 left the UPF for its TUN device (tun): typical causes: a closed gate" in told(
        up
    )
    with smf.changed({"gate_dl": "open"}, gate_dl="closed"):
        up, down = rig.send()
    assert up.result == "arrived"
    assert "20 reached the UPF's TUN device (tun), 0 left the UPF on N3 (n3): typical causes: no session" in told(down)


def test_a_rule_that_buffers_is_named(rig: Rig, smf: Smf) -> None:
    with smf.changed({"action": "forw", "direction": "dl"}, action="buff", direction="dl"):
        assert "a rule (FAR) that buffers (the UE is idle)" in told(rig.send()[1])


def test_a_rule_that_drops_is_named(rig: Rig, smf: Smf) -> None:
    with smf.changed({"action": "forw", "direction": "ul"}, action="drop", direction="ul"):
        assert "a rule (FAR) that drops or buffers; Open5GS buffers for ever where" in told(rig.send()[0])


def test_a_tunnel_that_the_upf_does_not_know_is_named(rig: Rig) -> None:
    up, down = rig.send(ue=ip_address("10.61.1.77"), teid=0x777)
    assert told(up).endswith("the UPF answers that it does not know TEID 0x777 (Error Indication)")
    assert "no session has the UE's address" in told(down)


def test_n6_that_is_down_is_named(rig: Rig) -> None:
    in_netns(rig.upf, "ip", "link", "set", "n6", "down")
    try:
        up, down = rig.send()
    finally:
        in_netns(rig.upf, "ip", "link", "set", "n6", "up")
    assert told(up).endswith("20 left the UPF for its TUN device (tun), 0 left on N6 (n6): n6 is down")
    assert (down.result, down.arrived) == ("lost", 0)
    assert down.why.endswith("n6 is down")


def test_routes_that_are_missing_are_named(rig: Rig) -> None:
    in_netns(rig.upf, "ip", "route", "delete", "10.61.1.0/24", "dev", "tun")
    try:
        up, down = rig.send()
    finally:
        in_netns(rig.upf, "ip", "route", "add", "10.61.1.0/24", "dev", "tun")
    assert up.result == "arrived"
    assert "20 reached N6 (n6), 0 reached the UPF's TUN device (tun): no route to 10.61.1.2" in told(down)
    assert "0 left on N6 (n6): no route to 198.51.100.1" in told(rig.send(host="198.51.100.1")[0])


@contextlib.contextmanager
def sysctl(netns: str, name: str, value: str) -> Iterator[None]:
    path = f"/proc/sys/net/ipv4/{name}"
    before = in_netns(netns, "cat", path).strip()
    in_netns(netns, "sh", "-c", f"echo {value} > {path}")
    try:
        yield
    finally:
        in_netns(netns, "sh", "-c", f"echo {before} > {path}")


def test_what_the_kernel_refuses_to_forward_is_named(rig: Rig) -> None:
    with sysctl(rig.upf, "ip_forward", "0"):
        up, down = rig.send()
    assert "forwarding is switched off (net.ipv4.conf.tun.forwarding)" in told(up)
    assert "forwarding is switched off (net.ipv4.conf.n6.forwarding)" in told(down)
    with sysctl(rig.upf, "conf/n6/rp_filter", "1"):
        down = rig.send(host="198.51.100.1")[1]
    assert "rp_filter drops what comes from 198.51.100.1 by n6" in told(down)


def test_an_address_that_is_no_ues_gets_nothing(rig: Rig) -> None:
    """Routed back to N6 a packet would come to whoever has the address there."""
    in_netns(rig.upf, "ip", "route", "add", "default", "via", "10.213.0.1")
    try:
        _, down = rig.send(ue=ip_address("203.0.113.5"))
    finally:
        in_netns(rig.upf, "ip", "route", "delete", "default")
    assert (down.result, down.sent) == ("lost", 0)
    assert "203.0.113.5 is routed to n6, and not into the UPF" in down.why


def test_packets_of_others_are_not_taken_for_ours(rig: Rig, smf: Smf) -> None:
    """To the same port, and of the same length."""
    closed = {"gate_ul": "closed", "gate_dl": "closed"}
    with (
        smf.changed({"gate_ul": "open", "gate_dl": "open"}, **closed),
        datagrams(rig.upf, "10.213.0.1", 9),
        datagrams(rig.outside, UE, 9),
    ):
        up, down = rig.send()
    assert "0 left the UPF for its TUN device (tun)" in told(up)
    assert "0 left the UPF on N3 (n3)" in told(down)


class Twice(Uplink):
    """Somebody on N3 repeats what passes."""

    def packet(self, mark: bytes) -> bytes:
        again = super().packet(mark)
        with contextlib.closing(self.opened()) as sender:
            sender.send(again)
        return again


def test_a_packet_that_comes_twice_is_one(rig: Rig) -> None:
    way = uplink(rig.ends, Session(ip_address(UE), TEID, 9), rig.ends.host(4))
    outcome = deliver(Twice(**{field.name: getattr(way, field.name) for field in fields(way)}))
    assert (outcome.result, outcome.sent, outcome.arrived) == ("arrived", 1, 1)


def test_a_ue_of_ipv6(rig: Rig, smf: Smf) -> None:
    ue = "2001:db8:61::2"
    own = {"ue": ip_address(ue), "teid": 6}
    smf.establish(session="six", ue=ue, teid=6, gnb_teid=6)
    try:
        with pytest.raises(NothingToSendError, match="no address of IPv6 is known beyond N6"):
            rig.send(**own)
        in_netns(rig.upf, "sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/all/forwarding")
        in_netns(rig.upf, "ip", "addr", "add", "2001:db8:213::2/64", "dev", "n6", "nodad")
        in_netns(rig.outside, "ip", "addr", "add", "2001:db8:213::1/64", "dev", "br0", "nodad")
        up, _ = rig.send(**own)
        assert "IPv6 is switched off (net.ipv6.conf.tun.disable_ipv6)" in told(up)
        in_netns(rig.upf, "sh", "-c", "echo 0 > /proc/sys/net/ipv6/conf/tun/disable_ipv6")
        up, down = rig.send(**own)
        assert up.result == "arrived"
        assert "no route to 2001:db8:61::2" in told(down)
        in_netns(rig.upf, "ip", "route", "add", "2001:db8:61::/64", "dev", "tun")
        assert [one.result for one in rig.send(**own)] == ["arrived"] * 2
    finally:
        smf.ask("delete", session="six")


def test_bad_input_is_one_line(rig: Rig) -> None:
    def refused(**session: Any) -> str:
        more = {"traffic": {"ue_pools": ["10.62.0.0/16"], "teids": [9]}} if not session else {}
        with pytest.raises(ConfigError) as caught:
            NodeSpec.from_yaml(str(rig.written({"ue": UE, "teid": TEID} | session, **more)))
        assert len(str(caught.value).splitlines()) == 1
        return str(caught.value)

    assert "test_session.ue = 10.61.1.2: not the slice's; accepted: 10.62.0.0/16, teid 9" in refused()
    assert "accepted: an IP address such as 10.45.0.2" in refused(ue="10.61.1")
    assert "224.0.0.1: not that of a host" in refused(ue="224.0.0.1")
    assert "test_session.teid" in refused(teid=0)
    assert "host = 2001:db8::1: not of the UE's family; accepted: an address of IPv4" in refused(host="2001:db8::1")


@pytest.mark.parametrize("beyond", [False, True])
def test_where_no_far_end_is_known_packets_start_within(rig: Rig, beyond: bool) -> None:
    whole, session = rig.ends, Session(ip_address(UE), TEID, 9)
    ends = replace(whole, n3_far=None, n6_far=None, beyond=whole.n6_far if beyond else None)
    for way in (uplink(ends, session, whole.host(4)), downlink(ends, session, whole.host(4))):
        outcome = deliver(way)
        assert (outcome.result, outcome.sent) == ("arrived", 1), outcome
    why = told(deliver(uplink(ends, replace(session, teid=0x777), whole.host(4))))
    assert "20 reached 10.210.1.2 from within (lo)" in why
    assert "does not know TEID 0x777" in why


def test_whoever_sends_on_n3_does_not_fill_the_memory() -> None:
    """From whatever address, and whatever the headers say."""
    seen = Seen()
    for number in range(6000):
        inner = udp_packet(ip_address(0x0A000000 + number), ip_address("192.0.2.1"), 9, b"")
        outer = udp_packet(ip_address("192.0.2.2"), ip_address("192.0.2.3"), 2152, g_pdu(1, 9, inner))
        seen.note(outer, to_upf=True)
    assert 1000 < len(seen.uplink) < 5000


@given(st.binary(max_size=120), st.integers(0, 80), st.binary(max_size=8))
def test_no_octets_on_n3_are_too_bad_to_be_read(octets: bytes, at: int, other: bytes) -> None:
    inner = udp_packet(ip_address(UE), ip_address("192.0.2.1"), 9, octets)
    whole = udp_packet(ip_address("192.0.2.2"), ip_address("192.0.2.3"), 2152, g_pdu(7, 9, inner))
    message = read_gtpu(whole)
    assert message is not None
    assert (message.teid, message.qfi, message.content) == (7, 9, inner)
    for changed in (octets, whole[:at] + other + whole[at + len(other) :], whole[:at]):
        Seen().note(changed, to_upf=True)
