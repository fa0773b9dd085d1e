"""Interfaces as iproute2 lists them, in a namespace with one of each kind that matters."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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


def told(netns: str, *question: str) -> list[dict[str, Any]]:
    done = subprocess.run(["ip", "-n", netns, "-j", "-d", *question], check=True, capture_output=True, text=True)
    answer: list[dict[str, Any]] = json.loads(done.stdout)
    return answer


def test_they_are_as_iproute2_lists_them(netns: tuple[str, str]) -> None:
    found = interfaces(NAMED / netns[0])
    links = told(netns[0], "addr", "show")
    assert found.kinds == {one["ifname"]: one.get("linkinfo", {}).get("info_kind", "") for one in links}
    assert {found.kinds[name] for name in ("lo", "n3", "br0", "tun")} == {"", "veth", "bridge", "tun"}
    addresses = {address["local"]: one["ifname"] for one in links for address in one["addr_info"]}
    assert found.addresses == addresses
    assert {"10.20.0.3", "2001:db8::2", "10.20.1.1", "10.45.0.1"} <= addresses.keys()
    assert (found.default, found.xdp) == (None, {})
    assert found.behind == {"tun": ("10.45.0.0/16", "10.46.0.0/16", "2001:db8:45::/48")}
    routed = [one["dst"] for family in ("-4", "-6") for one in told(netns[0], family, "route", "show", "dev", "tun")]
    assert list(found.behind["tun"]) == [one for one in routed if one != "fe80::/64"]


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
        found = far_end(here, device, namespaces)
        assert (found and (found.netns, found.device)) == end, device
    with pytest.raises(OSError, match="No such file"):
        interfaces(here.with_name("gone"))


def test_a_name_that_is_no_text_is_escaped(netns: tuple[str, str]) -> None:
    added = ["ip", "-n", netns[0], "link", "add", "name", b"n6\xff\xfe", "type", "bridge"]
    subprocess.run(added, check=True)
    assert json.loads(json.dumps([*interfaces(NAMED / netns[0]).kinds])).count(r"n6\xff\xfe") == 1
