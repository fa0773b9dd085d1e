"""Interfaces as iproute2 lists them, in a namespace with one of each kind that matters."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slicepilot.controller.system.net.links import other_end
from slicepilot.controller.system.net.namespaces import NAMED
from slicepilot.node.find.interfaces import far_end, interfaces

MADE = """
link set lo up
link add n3 type veth peer name far netns {other}
link add one type veth peer name two
link add name br0 type bridge
tuntap add dev tun mode tun
tuntap add dev idle mode tun
link set n3 up
link set one up
link set two up
link set br0 up
link set tun up
addr add 10.20.0.2/24 dev n3
addr add 10.20.0.3/24 dev n3
addr add 2001:db8::2/64 dev n3 nodad
addr add 10.20.1.1 peer 10.20.1.2 dev one
addr add 10.45.0.1/16 dev tun
route add 10.46.0.0/16 dev tun
route add 2001:db8:45::/48 dev tun
route add 10.99.0.0/16 dev one table 100
route add unreachable 10.98.0.0/16
"""


@pytest.fixture(name="netns")
def _netns() -> Iterator[tuple[str, str]]:
    names = (f"if{os.getpid()}", f"if{os.getpid()}o")
    try:
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True)
        made = MADE.format(other=names[1])
        subprocess.run(["ip", "-n", names[0], "-batch", "-"], input=made, text=True, check=True)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


def shown(netns: str, *question: str) -> list[dict[str, Any]]:
    done = subprocess.run(["ip", "-n", netns, "-j", "-d", *question], check=True, capture_output=True, text=True)
    answer: list[dict[str, Any]] = json.loads(done.stdout)
    return answer


def test_they_are_as_iproute2_lists_them(netns: tuple[str, str]) -> None:
    result = interfaces(NAMED / netns[0])
    links = shown(netns[0], "addr", "show")
    assert result.kinds == {item["ifname"]: item.get("linkinfo", {}).get("info_kind", "") for item in links}
    assert {result.kinds[name] for name in ("lo", "n3", "br0", "tun")} == {"", "veth", "bridge", "tun"}
    addresses = {address["local"]: item["ifname"] for item in links for address in item["addr_info"]}
    assert result.addresses == addresses
    assert {"10.20.0.3", "2001:db8::2", "10.20.1.1", "10.45.0.1"} <= addresses.keys()
    assert (result.default, result.xdp) == (None, {})
    assert result.behind == {"tun": ("10.45.0.0/16", "10.46.0.0/16", "2001:db8:45::/48")}
    routed = [item["dst"] for family in ("-4", "-6") for item in shown(netns[0], family, "route", "show", "dev", "tun")]
    assert list(result.behind["tun"]) == [item for item in routed if item != "fe80::/64"]


@pytest.mark.parametrize(
    ("route", "default"),
    [
        ("default via 10.20.0.1 dev n3", "n3"),
        ("default dev tun", "tun"),
        ("default via 2001:db8::1 dev n3", "n3"),
        ("blackhole default", None),
        ("unreachable default metric 5", None),
        ("default dev one table 100", None),
    ],
)
def test_where_everything_else_goes(netns: tuple[str, str], route: str, default: str | None) -> None:
    subprocess.run(["ip", "-n", netns[0], "route", "add", *route.split()], check=True)
    assert interfaces(NAMED / netns[0]).default == default


def test_the_other_end_of_a_pair_is_here_or_there_or_out_of_sight(netns: tuple[str, str]) -> None:
    here, there = (NAMED / name for name in netns)
    for namespaces, device, end in (
        ([here, there], "n3", (there, "far")),
        ([Path("/dev/null"), here.with_name("gone"), there], "n3", (there, "far")),
        ([here], "n3", None),
        ([], "one", (here, "two")),
        ([here, there], "br0", None),
        ([here, there], "nobody", None),
    ):
        result = far_end(here, device, namespaces)
        assert (result and (result.netns, result.device)) == end, device
    with pytest.raises(OSError, match="No such file"):
        interfaces(here.with_name("gone"))


def test_a_name_that_is_no_text_is_escaped(netns: tuple[str, str]) -> None:
    added = ["ip", "-n", netns[0], "link", "add", "name", b"n6\xff\xfe", "type", "bridge"]
    subprocess.run(added, check=True)
    assert json.loads(json.dumps([*interfaces(NAMED / netns[0]).kinds])).count(r"n6\xff\xfe") == 1


def test_a_link_of_the_same_numbers_that_leads_elsewhere_is_not_the_other_end(netns: tuple[str, str]) -> None:
    """The first interface of every container has the same number, and so have both ends' numbers where namespaces were
    made alike (cilium/cilium#23787)."""
    mine, theirs, between = netns[0], f"{netns[0]}t", netns[1]
    subprocess.run(["ip", "netns", "add", theirs], check=True)
    try:
        for home, peer in ((mine, "peer"), (theirs, "strange")):
            pair = ["link", "add", "eth0", "index", "70", "type", "veth", "peer", "name", peer, "index", "80"]
            subprocess.run(["ip", "-n", home, *pair], check=True)
        subprocess.run(["ip", "-n", theirs, "link", "set", "strange", "netns", between], check=True)
        assert other_end(NAMED / mine, "eth0", NAMED / between) is None
        found = other_end(NAMED / theirs, "eth0", NAMED / between)
        assert found is not None
        assert found.name == "strange"
        found = other_end(NAMED / mine, "eth0", NAMED / mine)
        assert found is not None
        assert found.name == "peer"
    finally:
        subprocess.run(["ip", "netns", "del", theirs], check=False)
