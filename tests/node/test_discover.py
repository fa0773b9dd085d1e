"""UPFs are discovered with what speaks for them; what may be something else is said to be unclear."""

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import yaml

from slicepilot.controller.system.net.namespaces import NAMED
from slicepilot.controller.watchdog.lock import Locks
from slicepilot.node.config.spec import NodeSpec
from slicepilot.node.find.discover import DiscoveredUpf, discover
from slicepilot.node.find.draft import draft, marks_left
from slicepilot.node.find.interfaces import far_end
from slicepilot.node.find.locate import Finder
from slicepilot.node.find.sockets import listed
from tests.command import slicepilot

from .foreign import COUNT, Foreign
from .test_foreign import controller

BINDS = "import socket, sys, time; s = [socket.socket(2, 2) for _ in sys.argv[2:]]; "
BINDS += "[each.bind(('127.0.0.77', int(port))) for each, port in zip(s, sys.argv[2:])]; "
BINDS += "name = bytes.fromhex(sys.argv[1]); name and __import__('ctypes').CDLL(None).prctl(15, name); "  # PR_SET_NAME
BINDS += "print('bound', flush=True); time.sleep(60)"


@contextlib.contextmanager
def listener(python: Path, *ports: int, name: bytes = b"") -> Iterator[int]:
    """A process with UDP sockets on these ports, in this network namespace; of a name of its own, if that is given."""
    command = [str(python), "-S", "-c", BINDS, name.hex(), *map(str, ports)]
    environment = os.environ | {"PYTHONHOME": sys.base_prefix}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"bound\n"
            yield process.pid
        finally:
            process.kill()


def of(pid: int) -> DiscoveredUpf:
    [result] = [item for item in discover() if item.process.pid == pid]
    return result


def test_all_five_are_discovered_with_all_that_can_be_known(foreign: Foreign) -> None:
    result = {item.netns_name: item for item in discover() if item.netns_name in foreign.netns}
    assert sorted(result) == foreign.netns
    for number, name in enumerate(foreign.netns, 1):
        item = result[name]
        assert item.confidence == "sure"
        assert item.process.pid == foreign.pid(number)
        assert item.cgroup == foreign.group(number)
        assert not item.others
        assert (item.devices.n3, item.devices.n4, item.devices.n6, item.devices.tun) == ("n3", "n4", "n6", "tun")
        assert (item.devices.n6_netns, item.devices.n6_far) == (f"{foreign.prefix}-dn", f"n6-{number}")
        assert Finder().find(name, item.selector).process.pid == item.process.pid


def test_their_smf_is_unclear(foreign: Foreign) -> None:
    [smf] = [item for item in discover() if item.netns_name == f"{foreign.prefix}-ran"]
    assert smf.confidence == "unclear"
    assert any("may be an SMF" in why for why in smf.why)


def test_a_draft_is_a_configuration_of_all_that_are_sure(foreign: Foreign, tmp_path: Path) -> None:
    result = [item for item in discover() if (item.netns_name or "").startswith(foreign.prefix)]
    path = tmp_path / "node.yaml"
    path.write_text(draft("edge", result))
    assert marks_left(str(path))
    node = NodeSpec.from_yaml(str(path))
    assert len(node.slices) == COUNT
    assert f"Not sure: process smf ({result[-1].process.pid})" in path.read_text()
    finder = Finder()
    for item in node.slices:
        assert finder.find(item.name, item.selector).process.pid in {upf.process.pid for upf in result[:COUNT]}


def test_gtpu_alone_may_be_a_gnb_and_both_are_a_upf() -> None:
    python = Path(sys.executable).resolve()
    with listener(python, 2152) as gnb, listener(python, 8805) as smf:
        assert of(gnb).confidence == of(smf).confidence == "unclear"
        assert any("may be a gNB" in why for why in of(gnb).why)
    with listener(python, 2152, 8805) as upf:
        assert of(upf).confidence == "sure"


def test_a_program_of_a_upfs_name_that_listens_to_nothing_is_unclear(tmp_path: Path) -> None:
    program = tmp_path / "open5gs-upfd"
    shutil.copy(shutil.which("sleep") or "", program)
    with subprocess.Popen([program, "60"]) as process:
        try:
            time.sleep(0.1)
            result = of(process.pid)
        finally:
            process.kill()
    assert result.confidence == "unclear"
    assert result.why[0] == "its program is that of Open5GS"


def test_names_that_others_choose_write_nothing_into_the_draft(tmp_path: Path) -> None:
    """Anybody who can run a program can have it discovered, and the draft is read by root."""
    evil = tmp_path / "upf\nmode: live\n  - name: evil\x1b[2J"
    shutil.copy(Path(sys.executable).resolve(), evil)
    with listener(evil, 2152, 8805) as pid:
        result = of(pid)
        text = draft("edge", [result])
    assert [line for line in text.splitlines() if line.startswith(("mode", "  - name: evil"))] == []
    assert "\x1b" not in text
    document = yaml.safe_load(text)
    assert set(document) == {"name", "slices"}
    assert len(document["slices"]) == 1


def test_the_far_end_of_a_link_is_known_and_of_others_none(foreign: Foreign) -> None:
    named = sorted(NAMED.iterdir())
    upf = NAMED / foreign.netns[1]
    end = far_end(upf, "n3", named)
    assert end is not None
    assert (end.netns, end.device) == (NAMED / f"{foreign.prefix}-ran", "n3-2")
    assert far_end(upf, "tun", named) is None
    assert far_end(upf, "lo", named) is None
    assert far_end(upf, "n3", [upf]) is None


REMOTE = f"{'0' * 32}:0000 07 00000000:00000000 00:00000000 00000000     0        0"
UDP6 = [
    "  sl  local_address  remote_address  st tx_queue rx_queue tr tm->when",
    f"  10: 00000000000000000000000001000000:0868 {REMOTE} 77 2 0000000000000000 0",
    f"  11: B80D0120000000000000000001000000:2265 {REMOTE} 78 2 0000000000000000 0",
    f"  12: 0000000000000000FFFF00000100007F:0868 {REMOTE} 0 2 0000000000000000 0",
    f"  13: 00000000000000000000000000000000:0035 {REMOTE} 79 2 0000000000000000 0",
]


def test_ipv6_sockets_are_read_as_the_kernel_prints_them(tmp_path: Path) -> None:
    (tmp_path / "udp6").write_text("\n".join(UDP6) + "\n")
    result = [(item.port, item.address, item.inode) for item in listed(tmp_path / "udp6")]
    assert result == [(2152, "::1", 77), (8805, "2001:db8::1", 78), (2152, "127.0.0.1", 0)]


def test_a_upf_with_two_networks_of_ues_is_drafted_as_two_slices(foreign: Foreign, tmp_path: Path) -> None:
    [item] = [item for item in discover() if item.netns_name == foreign.netns[0]]
    served = (("ogstun", ("10.45.0.0/16", "2001:db8:45::/48")), ("ogstun2", ("10.46.0.0/16",)))
    path = tmp_path / "node.yaml"
    path.write_text(draft("edge", [dataclasses.replace(item, served=served)]))
    slices = NodeSpec.from_yaml(str(path)).slices
    assert [(entry.devices.tun, entry.traffic and entry.traffic.ue_pools) for entry in slices] == list(served)
    assert len({(entry.name, entry.s_nssai) for entry in slices}) == 2
    assert slices[0].selector == slices[1].selector


def test_what_a_controller_has_is_drafted_only_if_it_is_named(foreign: Foreign) -> None:
    group = foreign.group(1)
    with Locks({"slice a": group}):
        result = [item for item in discover() if item.netns_name in foreign.netns[:2]]
    assert [item.owner for item in result] == [f"controlled by process {os.getpid()}", None]
    unnamed = yaml.safe_load(draft("edge", result))
    assert [entry["name"] for entry in unnamed["slices"]] == [result[1].name]
    assert f"Another's, controlled by process {os.getpid()}" in draft("edge", result)
    named = yaml.safe_load(draft("edge", result, [result[0].process.pid]))
    assert len(named["slices"]) == 2


def test_discover_is_restricted_by_name_namespace_and_cgroup(foreign: Foreign) -> None:
    def names(*options: str) -> list[str]:
        done = slicepilot("node", "discover", "--json", "--netns", f"{foreign.prefix}-*", *options)
        assert done.returncode == 0, done.stderr
        return [item["netns"] for item in json.loads(done.stdout)]

    assert names("--cgroup", f"*/{foreign.prefix}/upf2") == [foreign.netns[1]]
    assert names("--upf", f"{foreign.netns[2]}", "--upf", f"{foreign.netns[3]}") == foreign.netns[2:4]


def test_a_draft_does_not_act_before_its_promises_are_filled_in(foreign: Foreign, tmp_path: Path) -> None:
    path = foreign.draft(tmp_path / "found.yaml")  # without the comments of `node discover`
    path.write_text(path.read_text().replace("s_nssai:", "s_nssai:   # FILL IN").replace("sla:", "sla:   # FILL IN"))
    roots = {"run_root": str(tmp_path / "run"), "state_root": str(tmp_path / "state"), "publish": {"log": "off"}}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(roots))
    run = ["run", "-c", str(tmp_path / "run.yaml"), "--node", str(path), "--seconds", "0.5"]
    for mode in (["live"], ["canary", "--canary", foreign.netns[0]]):
        done = slicepilot(*run, "--mode", *mode)
        assert done.returncode == 2, done.stderr
        [line] = [line for line in done.stderr.splitlines() if "FILL IN" in line]
        assert f"{path}: s_nssai and sla still marked FILL IN; expected what the core calls each slice" in line
    assert slicepilot(*run, "--mode", "live", "--force").returncode == 0
    with controller(path, foreign, tmp_path, mode="shadow") as running:
        order = ("control", "mode", "live", "--name", foreign.prefix, "--run-root", str(tmp_path / "run"))
        refused = slicepilot(*order)
        assert refused.returncode == 1
        assert "s_nssai and sla still marked FILL IN" in " ".join(refused.stderr.split())
        assert running.notes()["mode"] == "shadow"
        assert slicepilot(*order, "--force").returncode == 0
        assert running.notes()["mode"] == "live"
    assert " ".join(running.log.read_text().split()).count("before anything acts on it") == 1
