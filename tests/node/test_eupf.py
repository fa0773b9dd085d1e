"""eUPF, which is not the project's and forwards in XDP, is discovered and measured; no knob is said to act on it."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from slicepilot.node.authority.softirqs import forwards_in_xdp
from slicepilot.node.find.discover import discover
from slicepilot.node.find.interfaces import interfaces
from slicepilot.node.find.locate import Finder
from slicepilot.node.find.napi import napis

from .eupf import start_eupf
from .foreign import Foreign
from .test_foreign import in_netns, picture, slicepilot

N6_LIMIT = "2mbit"
OTHERS = {"links": ""}  # whatever else has controllers on this machine meanwhile


@pytest.fixture(name="eupf", scope="module", params=["native", "generic"])
def _eupf(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Foreign]:
    with start_eupf(tmp_path_factory.mktemp("eupf"), request.param) as node:
        yield node


@pytest.fixture(name="node")
def _node(eupf: Foreign, tmp_path: Path) -> Path:
    return eupf.draft(tmp_path / "node.yaml")


def test_it_is_discovered_and_measured_at_the_far_ends_of_its_links(eupf: Foreign) -> None:
    [result] = [item for item in discover() if item.netns_name in eupf.netns]
    assert (result.confidence, result.why[0]) == ("sure", "its program is that of eUPF")
    assert (result.process.pid, result.cgroup) == (eupf.pid(1), eupf.group(1))
    assert (result.devices.n3, result.devices.n6, result.devices.n4) == ("n3", "n6", "n4")
    assert (result.devices.n3_netns, result.devices.n3_far) == (f"{eupf.prefix}-ran", "n3-1")
    assert (result.devices.n6_netns, result.devices.n6_far) == (f"{eupf.prefix}-dn", "n6-1")
    assert interfaces(result.netns).xdp.keys() == {"n3", "n6"}


def test_a_program_that_is_not_the_upfs_may_be_a_filter(eupf: Foreign) -> None:
    [result] = [item for item in discover() if item.netns_name in eupf.netns]
    eupfs = Finder().find(result.name, result.selector)
    assert forwards_in_xdp(eupfs, "n3")
    assert not forwards_in_xdp(eupfs, "n4")
    like_open5gs = replace(eupfs.process, name="open5gs-upfd", program="open5gs-upfd")
    assert forwards_in_xdp(replace(eupfs, process=like_open5gs), "n3"), "it has opened the program"
    assert not forwards_in_xdp(replace(eupfs, process=replace(like_open5gs, pid=os.getpid())), "n3")


def test_all_packets_are_recognised_and_no_knob_acts_on_them(eupf: Foreign, node: Path) -> None:
    before = picture(eupf)
    eupf.load(seconds=20, mbps=8)
    time.sleep(0.5)
    done = slicepilot("node", "check", str(node), "--seconds", "2", "--try", "--json")
    [result] = json.loads(done.stdout)
    assert "there is nothing to try" in done.stderr
    assert result["measured"]
    assert result["traffic"]["match_ratio"] > 0.99
    assert result["traffic"]["carried_mbps"] == pytest.approx(8.0, rel=0.1)
    assert not any(item["authority"] for item in result["knobs"].values())
    assert "XDP on n3 forwards packets, in softirqs" in result["knobs"]["cpu_limit"]["why"]
    assert "XDP on n3 forwards packets, in softirqs" in result["knobs"]["nice"]["why"]
    assert result["knobs"]["egress"]["why"].endswith("packets that left, 0 came by the queue of n6")
    [carried] = eupf.carried_mbps()
    assert carried == pytest.approx(8.0, rel=0.1)
    assert picture(eupf) | OTHERS == before | OTHERS


def test_it_is_watched_and_nothing_is_changed(eupf: Foreign, node: Path) -> None:
    before = picture(eupf)
    eupf.load(seconds=20, mbps=8)
    report = json.loads(slicepilot("run", "--node", str(node), "--seconds", "3", "--json").stdout)
    [item] = report["slices"]
    assert report["mode"] == "shadow"
    assert item["carried_mbps"] == pytest.approx(8.0, rel=0.1)
    assert item["delay_p99_us"] > 0.0
    eupf.stop_loads()
    assert picture(eupf) | OTHERS == before | OTHERS


def test_its_own_hook_on_n3_would_see_nothing(eupf: Foreign, node: Path) -> None:
    document = yaml.safe_load(node.read_text())
    del document["slices"][0]["devices"]["n3_netns"]
    node.write_text(yaml.safe_dump(document))
    eupf.load(seconds=8, mbps=8)
    [result] = json.loads(slicepilot("node", "check", str(node), "--seconds", "2", "--json", code=1).stdout)
    eupf.stop_loads()
    assert not result["measured"]
    assert "no packet has arrived at N3" in result["notes"]


def test_a_shaper_on_its_n6_does_not_hold_it_back(eupf: Foreign) -> None:
    """What is said of egress, tried by hand."""
    [upf] = eupf.netns
    in_netns(upf, "tc", "qdisc", "add", "dev", "n6", "root", "handle", "1:", "htb", "default", "1")
    try:
        in_netns(upf, "tc", "class", "add", "dev", "n6", "parent", "1:", "classid", "1:1", "htb", "rate", N6_LIMIT)
        eupf.load(seconds=3, mbps=8)
        [carried] = eupf.carried_mbps()
    finally:
        in_netns(upf, "tc", "qdisc", "delete", "dev", "n6", "root")
    assert carried == pytest.approx(8.0, rel=0.1)


def test_threads_for_its_softirqs_are_proposed_where_it_has_a_napi(eupf: Foreign, node: Path) -> None:
    [result] = json.loads(slicepilot("node", "check", str(node), "--seconds", "0.2", "--json", code=1).stdout)
    there = napis(Path("/run/netns") / eupf.netns[0], "n3")
    [note] = [item for item in result["notes"] if "softirqs" in item]
    assert ("threaded" in note) == bool(there)
    assert ("shows no NAPI of n3" in note) == (not there)
