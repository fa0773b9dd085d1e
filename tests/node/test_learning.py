"""Slices of a UPF, distinguished by the sessions that it is seen to set up on N4."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from socket import AF_INET, SOCK_RAW, socket
from typing import Any

import pytest

from slicepilot.configs import ConfigError
from slicepilot.controller.system.net.namespaces import inside
from slicepilot.env.telemetry import SLICE_FIELDS
from slicepilot.node.check.report import queues, report
from slicepilot.node.live.backend import NodeBackend
from slicepilot.testbed.bench.rig import Controller
from slicepilot.testbed.lifecycle.processes import bin_folder

from .foreign import Foreign, opened, written
from .runtimes import until
from .test_foreign import controller, slicepilot

N4_UPF, N4_SMF, PFCP_PORT = "10.211.1.2", "10.211.1.1", 8805
SENT = {"a": 30, "b": 20}
MOST_LATE_S = 2.0  # a second, and what a busy machine adds to it


class Smf:
    """The project's SMF, which takes commands line by line."""

    def __init__(self, node: Foreign, address: str = N4_SMF) -> None:
        self.node = node
        self.flows: dict[str, str] = {}
        self.process = subprocess.Popen(
            [
                "ip",
                "netns",
                "exec",
                f"{node.prefix}-ran",
                bin_folder() / "smf",
                f"--n4={address}:{PFCP_PORT}",
                "--script=-",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def do(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Its answer, which has to be that it was done."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
        self.process.stdin.flush()
        while (answer := json.loads(self.process.stdout.readline())).get("op") != op:
            pass
        assert answer["ok"], answer
        return answer  # type: ignore[no-any-return]

    def establish(self, session: str, number: int, **more: Any) -> dict[str, Any]:
        """For the UE and the slice of that number; the UPF chooses the tunnel where ``more`` has none."""
        terminal = {"ue": f"10.61.1.{number + 2}", "n3": "10.210.1.2", "gnb": "10.210.1.1", "gnb_teid": 700 + number}
        traffic = {"qfi": 9 - number, "sst": 1, "sd": f"00000{number}"} | more
        answer = self.do("establish", upf=N4_UPF, session=session, **(terminal | traffic))
        tunnel = f"teid={answer['teid']},qfi={traffic['qfi']},ue={traffic.get('ue', terminal['ue'])}"
        self.flows[session] = f"{tunnel},from=10.210.1.1,to=10.210.1.2,dst=10.213.0.1:6000"
        return answer

    def send(self, session: str, count: int) -> None:
        """Send packets of a UE through its session's tunnel, a hundred per second."""
        flow = f"kind=cbr,rate=0.1,bytes=125,phase=0,{self.flows[session]}"
        load = [bin_folder() / "load", "--flow", flow, f"--duration={10 * count - 5}ms", "--json"]
        command = ["ip", "netns", "exec", f"{self.node.prefix}-ran", *load]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        assert json.loads(done.stdout.splitlines()[-1])["flows"][0]["packets"] == count

    def kill(self) -> None:
        """Without a farewell to the UPF."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module", name="node")
def _node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Foreign]:
    """A UPF, without an SMF."""
    node = Foreign(tmp_path_factory.mktemp("learning"), count=1, sessions=2, prefix="le")
    with contextlib.suppress(ProcessLookupError):
        os.kill(int((node.state / "smf.pid").read_text()), 9)
    try:
        yield node
    finally:
        node.down()


@pytest.fixture(name="smf")
def _smf(node: Foreign) -> Iterator[Smf]:
    node.mend()
    smf = Smf(node)
    try:
        smf.do("associate", upf=N4_UPF)
        yield smf
    finally:
        smf.kill()


def by_s_nssai(node: Foreign) -> list[dict[str, Any]]:
    return [node.slice(name, number, s_nssai=True) for number, name in enumerate("ab")]


class Counted:
    """Packets at N3 since the last look: of each slice, and of nobody."""

    def __init__(self, backend: NodeBackend) -> None:
        self._packets, self._before = backend.source.packets.slices["n3"]["packets"], [0, 0, 0]
        self()

    def __call__(self) -> list[int]:
        now = self._packets.tolist()
        grown = [after - before for after, before in zip(now, self._before, strict=True)]
        self._before = now
        return grown


def polled(backend: NodeBackend) -> None:
    """Until all of the little that has come was taken up."""
    for _ in range(20):
        backend.learning.poll()


DISTINGUISHED_BY: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "S-NSSAI": ({"s_nssai": True}, {"s_nssai": True}, {}),
    "DNN": ({"dnns": ["Internet"]}, {"dnns": ["video.slices", "ims"]}, {"dnn": "video.slices"}),
    "both": ({"dnns": ["internet"], "s_nssai": True}, {"dnns": ["internet"], "s_nssai": True}, {}),
    "QFI of one DNN": ({"dnns": ["internet"], "qfis": [9]}, {"dnns": ["internet"], "qfis": [7, 8]}, {}),
    "one is given": ({"ue_pools": ["10.61.1.2/32"]}, {"s_nssai": True}, {}),
}


@pytest.mark.parametrize("chosen", [False, True], ids=["given TEIDs", "chosen TEIDs"])
@pytest.mark.parametrize(("first", "second", "of_second"), DISTINGUISHED_BY.values(), ids=DISTINGUISHED_BY)
def test_slices_of_one_upf_are_distinguished_to_the_packet(
    node: Foreign,
    smf: Smf,
    tmp_path: Path,
    first: dict[str, Any],
    second: dict[str, Any],
    of_second: dict[str, Any],
    chosen: bool,
) -> None:
    slices = [node.slice("a", 0, **first), node.slice("b", 1, **second)]
    with closing(opened(written(tmp_path, node.prefix, *slices))) as backend:
        for number, (name, more) in enumerate((("a", {}), ("b", of_second))):
            smf.establish(name, number, **more, **({} if chosen else {"teid": 1 + 100 * number}))
        polled(backend)
        counted = Counted(backend)
        for name, count in SENT.items():
            smf.send(name, count)
        assert counted() == [30, 20, 0]
        assert backend.check() == []


def test_what_ends_is_nobodys(node: Foreign, smf: Smf, tmp_path: Path) -> None:
    """Deleted by the SMF, by a new association, by the end of the UPF; and set up again after each."""
    node.load(seconds=1, mbps=1)  # once: the sink's and the load's address resolution is done
    node.carried_mbps()
    with closing(opened(written(tmp_path, node.prefix, *by_s_nssai(node)))) as backend:
        assert backend.check() == [f"{name}: no session of it was seen yet" for name in "ab"]
        smf.establish("a", 0, teid=1)
        smf.establish("b", 1, teid=101)
        polled(backend)
        counted = Counted(backend)
        node.load(seconds=1, mbps=1)
        node.carried_mbps()
        assert_flows(counted(), a=True, b=True, nobody=False)

        smf.do("delete", session="a")
        polled(backend)
        counted()
        node.load(seconds=1, mbps=1)
        node.carried_mbps()
        assert_flows(counted(), a=False, b=True, nobody=True)

        smf.do("associate", upf=N4_UPF)  # which the UPF takes for the end of what was
        polled(backend)
        for name in "ab":
            learned = backend.learning.learned(name)
            assert learned is not None
            assert (learned.sessions, learned.ever) == ("ab".index(name), True), "b is set up again by the SMF"


def assert_flows(counted: list[int], *, a: bool, b: bool, nobody: bool) -> None:
    assert [count > 0 for count in counted] == [a, b, nobody], counted


def test_a_upf_that_begins_anew_has_none_until_they_are_set_up_again(node: Foreign, smf: Smf, tmp_path: Path) -> None:
    smf_again = None
    with closing(opened(written(tmp_path, node.prefix, *by_s_nssai(node)))) as backend:
        smf.establish("a", 0, teid=1)
        polled(backend)
        smf.kill()  # or it would set up again what the UPF has lost before anybody looks
        node.stop_upf(1)
        node.start_upf(1)

        def forgotten() -> bool:
            backend.check()
            polled(backend)
            learned = backend.learning.learned("a")
            return learned is not None and learned.sessions == 0

        until(forgotten, "a session outlived its UPF")
        smf_again = Smf(node)
        try:
            smf_again.do("associate", upf=N4_UPF)
            smf_again.establish("a", 0, teid=1)
            polled(backend)
            counted = Counted(backend)
            smf_again.send("a", 10)
            assert counted() == [10, 0, 0]
        finally:
            smf_again.kill()


def test_what_is_given_stays_whose_it_is(node: Foreign, smf: Smf, tmp_path: Path) -> None:
    slices = [node.slice("a", 0, teids=[1], ue_pools=["10.61.1.2/31"]), node.slice("b", 1, s_nssai=True)]
    with closing(opened(written(tmp_path, node.prefix, *slices))) as backend:
        smf.establish("tunnel", 1, ue="10.61.1.9", teid=1)
        polled(backend)
        [note] = backend.check()
        assert note == "b: a session is left out: TEID 0x1 is a's"
        smf.establish("address", 1, teid=55)  # whose UE is of a's pool
        polled(backend)
        assert backend.check()[1] == "b: a session is left out: pool 10.61.1.3/32 is a's"
        counted = Counted(backend)
        smf.send("tunnel", 5)
        smf.send("address", 5)
        assert counted() == [10, 0, 0]
        smf.do("delete", session="tunnel")
        smf.do("delete", session="address")
        polled(backend)
        assert backend.check() == []


def test_a_tunnel_of_two_slices_stays_with_the_first_until_that_has_ended(
    node: Foreign, smf: Smf, tmp_path: Path
) -> None:
    """Two N3 addresses may have a TEID each of the same number; here both are of one."""
    with closing(opened(written(tmp_path, node.prefix, *by_s_nssai(node)))) as backend:
        smf.establish("a", 0, teid=1)
        polled(backend)
        os.kill(node.pid(1), signal.SIGSTOP)  # it would refuse the second
        try:
            forge(node, establishment(9, 0x777, teid=1, sd="000001"), N4_SMF, PFCP_PORT)
            forge(node, accepted(9, 0x777, 0x888), N4_UPF, PFCP_PORT, by_upf=True)
        finally:
            os.kill(node.pid(1), signal.SIGCONT)
        polled(backend)
        assert backend.check()[0] == "b: a session is left out: TEID 0x1 is a's"
        smf.do("delete", session="a")
        polled(backend)
        backend.check()
        polled(backend)
        learned = backend.learning.learned("b")
        assert learned is not None
        assert learned.sessions == 1


def test_forged_and_broken_messages_do_no_harm(node: Foreign, smf: Smf, tmp_path: Path) -> None:
    with closing(opened(written(tmp_path, node.prefix, *by_s_nssai(node)))) as backend:
        smf.establish("a", 0, teid=1)
        polled(backend)
        before = backend.learning.learned("a"), backend.learning.learned("b")
        request = establishment(3, 0x1, teid=666, sd="000001")
        for source in ("10.211.1.77", N4_SMF):  # a stranger's, and the SMF's own; the UPF carries out neither
            for octets in (
                request[:-1],
                bytes([request[0], 54]) + request[2:],
                b"\x21\x36\0\x0c" + struct.pack("!QI", 0x1, 5 << 8),
                b"\x20\x05\0\x04" + struct.pack("!I", 6 << 8),
                b"\x21\x33\0\xff" + bytes(40),
                os.urandom(200),
            ):
                forge(node, octets, source, PFCP_PORT)
        forge(node, accepted(3, 0x1, 0x1), N4_UPF, PFCP_PORT)  # as if from the UPF, but it comes in
        polled(backend)
        assert (backend.learning.learned("a"), backend.learning.learned("b")) == before
        counted = Counted(backend)
        smf.send("a", 10)
        assert counted() == [10, 0, 0]


def test_lost_messages_are_said_until_the_association_is_set_up_anew(node: Foreign, smf: Smf, tmp_path: Path) -> None:
    with closing(opened(written(tmp_path, node.prefix, *by_s_nssai(node)))) as backend:
        nowhere = {"gnb": "10.210.1.1", "gnb_teid": 9, "dnn": "nobodys"}
        in_turn = [
            {"op": "establish", "upf": N4_UPF, "session": "x", "ue": "10.61.1.9", "n3": "10.210.1.2", **nowhere},
            {"op": "delete", "session": "x"},
        ]
        for _ in range(2000):  # twice what the buffer holds, and nobody reads
            for command in in_turn:
                smf.do(**command)
        until(lambda: taken_up(backend), "not taken up")
        [lost] = [line for line in backend.check() if "because the buffer was full" in line]
        assert lost.startswith("N4 of a, b: ")
        assert lost.endswith(": sessions may be missing")
        smf.do("associate", upf=N4_UPF)
        polled(backend)
        assert backend.check() == [f"{name}: no session of it was seen yet" for name in "ab"]


def taken_up(backend: NodeBackend) -> bool:
    """Whether nothing is left in the buffer; polls as a controller does, a little at a time."""
    started = time.perf_counter()
    backend.learning.poll()
    return time.perf_counter() - started < 0.001


def test_a_controller_measures_a_session_within_a_second_or_so(node: Foreign, smf: Smf, tmp_path: Path) -> None:
    path = written(tmp_path, node.prefix, *by_s_nssai(node))
    with controller(path, node, tmp_path, mode="shadow") as running:
        until(
            lambda: any("no session of it was seen yet" in line for line in running.notes()["unmeasured"]),
            "not reported",
        )
        smf.establish("a", 0, teid=1)
        sending = threading.Thread(target=lambda: node.load(seconds=6, mbps=2))
        sending.start()
        until(lambda: offered_mbps(running, 0) > 1, "not measured", MOST_LATE_S)
        sending.join()
        node.carried_mbps()


def offered_mbps(running: Controller, index: int) -> float:
    with closing(running.reader()) as reader:
        return float(reader.last(25)["slices"][:, SLICE_FIELDS.index("offered_mbps"), index].mean())


def test_check_says_what_was_learned(node: Foreign, smf: Smf, tmp_path: Path) -> None:
    path = written(tmp_path, node.prefix, *by_s_nssai(node))
    done = threading.Event()

    def set_up() -> None:
        """One after the other: whenever it begins to look on, some come while it does."""
        number = 0
        while not done.wait(0.5):
            smf.establish(f"x{number}", 0, ue=f"10.61.1.{100 + number}")
            number += 1

    setting_up = threading.Thread(target=set_up)
    setting_up.start()
    try:
        result = json.loads(slicepilot("node", "check", str(path), "--seconds", "3", "--json", code=1).stdout)
    finally:
        done.set()
        setting_up.join()
    first, second = (item["learned"] for item in result)
    assert first["sessions"] == first["tunnels"] >= 2
    assert first["qfis"] == [9]
    assert second == {"sessions": 0, "tunnels": 0, "qfis": []}
    assert any("no session of it was set up meanwhile" in note for note in result[1]["notes"])


def test_packets_at_a_queue_are_known_by_sessions_too(node: Foreign, smf: Smf, tmp_path: Path) -> None:
    """Those set up before somebody looks at the queue, and those set up meanwhile."""
    with closing(opened(written(tmp_path, node.prefix, *by_s_nssai(node)))) as backend:
        smf.establish("a", 0)
        polled(backend)
        with queues(backend) as passed:
            smf.establish("b", 1)
            polled(backend)
            for name, count in SENT.items():
                smf.send(name, count)
            smf.do("delete", session="b")
            polled(backend)
        assert {name: item.packets for name, item in passed.items()} == SENT


def test_packets_of_sessions_that_are_not_known_are_said(node: Foreign, smf: Smf, tmp_path: Path) -> None:
    smf.establish("a", 0)
    with closing(opened(written(tmp_path, node.prefix, *by_s_nssai(node)))) as backend:
        sending = threading.Thread(target=lambda: smf.send("a", 100))
        sending.start()
        [first, _] = report(backend, 2.0)
        sending.join()
    [note] = [text for text in first.notes if "of sessions that are not known" in text]
    assert int(note.split()[0]) > 30
    assert not first.load.packets


def test_who_learns_has_to_have_an_n4_and_sessions_of_its_own(node: Foreign, tmp_path: Path) -> None:
    def error_of(*slices: dict[str, Any]) -> str:
        with pytest.raises(ConfigError) as caught:
            opened(written(tmp_path, node.prefix, *slices)).close()
        return str(caught.value)

    first, second = (node.slice(name, number, dnns=["internet"]) for number, name in enumerate("ab"))
    assert "a and b: sessions of DNN internet are both's; expected " in error_of(first, second)
    assert "expected ue_pools, teids, dnns, s_nssai" in error_of(node.slice("a", 0, qfis=[3]))
    assert "dnns" in error_of(node.slice("a", 0, dnns=["no spaces"]))


# -- octets of nobody's --------------------------------------------------------------------------------------------


def forge(node: Foreign, octets: bytes, source: str, port: int, *, by_upf: bool = False) -> None:
    """A datagram on N4 from whatever address, to the UPF; ``by_upf``: from the UPF's side, to the SMF."""
    destination = N4_SMF if by_upf else N4_UPF
    udp = struct.pack("!4H", port, PFCP_PORT, 8 + len(octets), 0) + octets
    head = struct.pack("!2B3H2BH", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0)
    addresses = b"".join(bytes(map(int, item.split("."))) for item in (source, destination))

    def send() -> None:
        with closing(socket(AF_INET, SOCK_RAW, 255)) as raw:  # IPPROTO_RAW: with a header of the test's own
            raw.sendto(head + addresses + udp, (destination, 0))

    inside(node.netns[0] if by_upf else f"{node.prefix}-ran", send)


def element(kind: int, value: bytes) -> bytes:
    return struct.pack("!HH", kind, len(value)) + value


def pfcp(kind: int, sequence: int, seid: int, *parts: bytes) -> bytes:
    body = struct.pack("!QI", seid, sequence << 8) + b"".join(parts)
    return struct.pack("!BBH", 0x21, kind, len(body)) + body


def establishment(sequence: int, seid: int, *, teid: int, sd: str) -> bytes:
    """Which the project's UPF refuses: it has neither FARs nor a precedence."""
    tunnel = element(21, struct.pack("!BI4B", 1, teid, 10, 210, 1, 2))
    rule = element(56, b"\0\1") + element(2, element(20, b"\0") + tunnel)
    who = element(60, b"\0" + bytes(map(int, N4_SMF.split("."))))
    session = element(57, struct.pack("!BQ", 2, seid) + bytes(map(int, N4_SMF.split("."))))
    return pfcp(50, sequence, 0, who, session, element(1, rule), element(257, b"\1" + bytes.fromhex(sd)))


def accepted(sequence: int, seid: int, own_seid: int) -> bytes:
    own = element(57, struct.pack("!BQ", 2, own_seid) + bytes(map(int, N4_UPF.split("."))))
    return pfcp(51, sequence, seid, element(60, b"\0\0\0\0\0"), element(19, b"\1"), own)
