"""The tutorials run as they are written: their files are written, their commands typed."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from slicepilot.node.config.spec import NodeSpec
from slicepilot.testbed.bench.rig import KNOB_FILES
from slicepilot.testbed.lifecycle.processes import bin_folder

from .machine import Machine, booted
from .runtimes import start_docker

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
TUTORIAL, SERVICES = TUTORIALS / "your-own-upfs.md", TUTORIALS / "no-5g-core.md"
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
AGAIN = "Core and radio as [above]"
STAND_IN = """\
[Service]
NetworkNamespacePath=/run/netns/upf{i}
ExecStart=/usr/local/bin/upf --n3 10.210.{i}.2 --n4 10.211.{i}.2 --tun ogstun --ue-pool 10.61.{i}.0/24
User=open5gs
AmbientCapabilities=CAP_NET_ADMIN CAP_NET_RAW CAP_DAC_OVERRIDE
CPUWeight=100
"""
TRAFFIC = """\
sessions= sinks= flows=
for i in 1 2 3 4 5; do
    ends="n3=10.210.$i.2,gnb=10.210.$i.1,gnb-teid=1"
    sessions="$sessions --upf 10.211.$i.2 --session upf=10.211.$i.2,ue=10.61.$i.2,teid=$i,$ends,sst=1,sd=00000$i"
    sinks="$sinks --listen 10.212.$i.1:6000"
    to="from=10.210.$i.1,to=10.210.$i.2,teid=$i,qfi=9,ue=10.61.$i.2,dst=10.212.$i.1:6000"
    flows="$flows --flow kind=cbr,rate=4,$to"
done
systemd-run --quiet --unit=smf "$PWD/build/bin/smf" --n4 0.0.0.0:8805 $sessions
systemd-run --quiet --unit=sink "$PWD/build/bin/sink" $sinks
sleep 2
systemd-run --quiet --unit=load "$PWD/build/bin/load" --duration 1h $flows
sleep 2
"""


@dataclass(frozen=True)
class Block:
    """A fenced block: commands in ``sh``, or a file where its language is followed by a name."""

    language: str
    file: str | None
    text: str


def section(title: str) -> list[Block]:
    text = TUTORIAL.read_text()
    start = text.index(f"\n## {title}\n")
    end = text.find("\n## ", start + 1)
    return blocks(text[start : end if end > 0 else None])


def blocks(text: str) -> list[Block]:
    return [Block(kind, file or None, body) for kind, file, body in BLOCK.findall(text)]


@pytest.fixture(name="machine")
def _machine(tmp_path: Path) -> Iterator[Machine]:
    with booted(tmp_path) as machine:
        (tmp_path / "build").mkdir()
        (tmp_path / "build" / "bin").symlink_to(bin_folder())
        yield machine


def follow(machine: Machine, blocks: list[Block], timeout_s: float = 180) -> list[str]:
    """Write the files and run the commands; what each block printed."""
    reported = []
    for block in blocks:
        if block.file is not None:
            path = block.file if block.file.startswith("/") else str(machine.folder / block.file)
            machine.write(path, block.text)
        elif block.language == "sh":
            reported.append(machine.run("bash", "-ec", block.text, timeout_s=timeout_s))
    return reported


def test_with_systemd(machine: Machine) -> None:
    reported = follow(machine, section("With systemd"))
    looked, filled_in, _, changed = reported[2:6]
    check_words(looked, ["upf-1", "upf-2"], "systemd (CPUQuota= and CPUWeight=")
    check_words(filled_in, ["control", "video"], "systemd (CPUQuota= and CPUWeight=")
    assert "quota 50000 us in 100000 us instead of" in changed
    assert "perhaps by systemd" in changed
    report = json.loads((machine.folder / "report.json").read_text())
    assert report["mode"] == "live"
    for item in report["slices"]:
        assert 18.0 < item["carried_mbps"] < 22.0


def test_with_compose(machine: Machine) -> None:
    assert TUTORIAL.read_text().count(AGAIN) == 1
    start_docker(machine)
    _, radio, *_ = (item for item in section("With systemd") if item.language == "sh" and item.file is None)
    machine.run("install", "-m", "755", *(f"build/bin/{name}" for name in ("smf", "load", "sink")), "/usr/local/bin/")
    services, up, look, act = section("With Compose")
    follow(machine, [services, up, radio])
    [looked] = follow(machine, [look])
    check_words(looked, ["edge.upf1.1", "edge.upf2.1"], "Docker (at `docker update`)")
    assert '{"compose": {"service": "upf1", "project": "edge"}}' in (machine.folder / "found.yaml").read_text()
    follow(machine, [act])
    report = json.loads((machine.folder / "report.json").read_text())
    assert report["mode"] == "live"
    assert all(item["carried_mbps"] > 5.0 for item in report["slices"])


def test_without_a_5g_core(machine: Machine) -> None:
    """To the end, where weights, limits and qdiscs are as they were before control and nothing is left."""
    whole = blocks(SERVICES.read_text())
    live, clean = (
        next(i for i, item in enumerate(whole) if words in item.text) for words in ("--mode live", "netns delete")
    )
    reported = follow(machine, whole[:live])
    checked = " ".join(reported[-2].split())
    assert checked.count("Mbit/s of requests in,") == checked.count("egress acts") == checked.count("nice acts") == 2
    before = state_of_sites(machine)
    follow(machine, whole[live:clean])
    assert state_of_sites(machine) == before
    watched, acted = (json.loads((machine.folder / f"{name}.json").read_text()) for name in ("watched", "acted"))
    assert (watched["mode"], acted["mode"]) == ("shadow", "live")
    shares = [item["slices"][0]["carried_mbps"] / item["slices"][1]["carried_mbps"] for item in (watched, acted)]
    assert shares[1] > 1.3 * shares[0] > 0.0  # however busy the machine is, the shop gets more of what there is
    follow(machine, whole[clean:])
    assert machine.run("ip", "netns") == ""
    assert not (machine.root / "var/lib/shop").exists()


def state_of_sites(machine: Machine) -> list[str]:
    """What control could have changed of them."""
    result = []
    for name in ("shop", "reports"):
        pid = int(machine.run("systemctl", "show", "--property=MainPID", "--value", f"site@{name}"))
        files = (machine.group_of(pid) / file for file in KNOB_FILES)
        result += [file.read_text() for file in files if file.exists()]
        for device in (["ip", "netns", "exec", name, "tc", "qdisc", "show", "dev", "eth0"], ["tc", "qdisc", "show"]):
            result.append(machine.run(*device))
    return result


def check_words(reported: str, names: list[str], writer: str) -> None:
    """What the tutorial says that ``node check`` says."""
    words = " ".join(reported.split())
    for name in names:
        assert re.search(rf"\b{name} upf \(\d+\) [12]\d\.\d Mbit/s in, [12]\d\.\d out, 100\.0% recognised", words), (
            reported
        )
    assert words.count("cpu_limit acts") == words.count("nice acts") == words.count("egress acts") == len(names)
    assert writer in words


@pytest.mark.timeout(900)
def test_with_open5gs(machine: Machine) -> None:
    """Its five slices, and the training for them. No registry has Open5GS: the project's own UPF runs instead, in
    units, with a user and interfaces such as the page names."""
    network, *_ = (item for item in section("With systemd") if item.file == "/usr/local/sbin/upf-network")
    configuration, train = section("With Open5GS")
    follow(machine, [network, configuration])
    names = [str(item.upf.unit) for item in NodeSpec.from_yaml(str(machine.folder / "open5gs.yaml")).slices if item.upf]
    assert len(names) == 5
    for number, name in enumerate(names, 1):
        machine.write(f"/etc/systemd/system/{name}", STAND_IN.format(i=number))
        machine.run("sh", "/usr/local/sbin/upf-network", str(number))
    machine.run("install", "-m", "755", "build/bin/upf", "/usr/local/bin/")
    machine.run("useradd", "--system", "open5gs")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", *names)
    machine.run("sh", "-ec", TRAFFIC)
    machine.run("systemctl", "is-active", *names)
    began_s = time.monotonic()
    [reported] = follow(machine, [train], timeout_s=600)
    print(f"trained for the node in {time.monotonic() - began_s:.0f} s")
    for words in ("us of CPU time a packet", "assumed: ", "written to hardware.yaml"):
        assert words in reported
    assert (machine.folder / "runs" / "mine" / "bundle").is_dir()
    assert "remote-control" in reported.split("written to hardware.yaml")[1]
