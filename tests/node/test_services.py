"""A slice that is no UPF, alone and beside a UPF: configured, measured, moved, followed, and restored."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slicepilot.configs import ConfigError
from slicepilot.node.config.spec import NodeSpec
from slicepilot.testbed.bench.rig import KNOB_FILES

from .foreign import Foreign, written
from .runtimes import until
from .site import Site
from .test_foreign import controller, in_netns, measured, slicepilot


@pytest.fixture(scope="module", name="beside")
def _beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Foreign]:
    """One UPF."""
    with Foreign(tmp_path_factory.mktemp("beside"), count=1, prefix="sv") as node:
        yield node


@pytest.fixture(scope="module", name="site")
def _site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"))
    try:
        yield site
    finally:
        site.down()


@pytest.fixture(name="visited")
def _visited(site: Site) -> Iterator[Site]:
    site.visit()
    try:
        yield site
    finally:
        site.leave()


@pytest.fixture(name="mixed")
def _mixed(beside: Foreign, site: Site, tmp_path: Path) -> Path:
    """A node with the UPF first, which the agent of `controller` ranks before the service."""
    return written(tmp_path, beside.prefix, beside.slice("radio", 1, weight=10), site.document() | {"weight": 1})


def state(site: Site) -> dict[str, str]:
    """What a controller could have changed."""
    result = {}
    for name in KNOB_FILES:
        with contextlib.suppress(OSError):
            result[name] = (site.group / name).read_text().strip()
    for netns, device in ((site.netns, "eth0"), (site.visitors, "far")):
        result[f"{netns}/qdiscs"] = in_netns(netns, "tc", "qdisc", "show", "dev", device)
        for hook in ("ingress", "egress"):
            result[f"{netns}/{hook}"] = in_netns(netns, "tc", "filter", "show", "dev", device, hook)
    return result


# -- on a node ---------------------------------------------------------------------------------------------------


def test_check_says_that_a_service_is_measured_and_what_acts(beside: Foreign, visited: Site, mixed: Path) -> None:
    before = state(visited)
    beside.load(seconds=8, mbps=4)
    upf, service = json.loads(slicepilot("node", "check", str(mixed), "--seconds", "2", "--json").stdout)
    beside.stop_loads()
    assert (service["slice"], upf["slice"]) == ("shop", "radio")
    for item in (service, upf):
        assert item["measured"]
        assert item["knobs"]["cpu_limit"]["authority"], item["knobs"]
        assert item["knobs"]["egress"]["authority"], item["knobs"]
        assert item["knobs"]["nice"]["authority"] is not False, "not known where nothing is beside it"
    assert 0 < service["traffic"]["delay_p50_us"] < service["traffic"]["delay_p99_us"]
    assert service["traffic"]["carried_mbps"] > 10 * service["traffic"]["offered_mbps"] > 0
    assert upf["traffic"]["match_ratio"] > 0.99
    assert state(visited) == before


@pytest.mark.realtime
def test_what_is_tried_is_felt(visited: Site, tmp_path: Path) -> None:
    """A CPU limit and an egress rate below what a service takes and gives hold it back."""
    before = state(visited)
    node = written(tmp_path, "services", visited.document())
    [item] = json.loads(slicepilot("node", "check", str(node), "--try", "--json").stdout)
    for knob in ("cpu_limit", "egress"):
        assert item["knobs"][knob]["authority"], item["knobs"]
        assert item["knobs"][knob]["tried"]["carried_ratio"]["high"] < 1.0, item["knobs"]
    assert state(visited) == before


def test_rates_in_shadow_are_those_that_visitors_get(visited: Site, tmp_path: Path) -> None:
    node, before = written(tmp_path, "services", visited.document()), state(visited)
    answers = visited.answers
    report = json.loads(slicepilot("run", "--node", str(node), "--seconds", "4", "--json").stdout)
    [item] = report["slices"]
    assert report["mode"] == "shadow"
    assert visited.answers > answers
    assert item["offered_mbps"] == pytest.approx(item["carried_mbps"], rel=0.02)
    assert item["delay_p99_us"] > 0
    assert state(visited) == before


@pytest.mark.parametrize("signal_", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_a_mixed_node_is_controlled_and_left_as_it_was(
    beside: Foreign, visited: Site, mixed: Path, tmp_path: Path, signal_: signal.Signals
) -> None:
    before = state(visited)
    with controller(mixed, beside, tmp_path) as running:
        until(lambda: measured(running, 2), "the service is not measured")
        until(lambda: _changed(before, state(visited)) >= {"qdiscs", "weight"}, "nothing was moved")
        running.process.send_signal(signal_)
        until(lambda: state(visited) == before, "not all is as it was")


def _changed(before: dict[str, str], now: dict[str, str]) -> set[str]:
    changed = {name for name in now if now[name] != before.get(name)}
    result = {"qdiscs"} if any(name.endswith("/qdiscs") for name in changed) else set()
    return result | ({"weight"} if changed & {"cpu.shares", "cpu.weight"} else set())


def test_a_service_that_restarts_is_taken_up_again(beside: Foreign, visited: Site, mixed: Path, tmp_path: Path) -> None:
    with controller(mixed, beside, tmp_path) as running:
        until(lambda: measured(running, 2), "the service is not measured")
        visited.stop()
        until(lambda: not measured(running, 2), "a service that has gone counts as measured")
        visited.start()
        until(lambda: measured(running, 2), "the service is not measured again")


def test_nobody_elses_simulator_is_identified_from_a_service(site: Site, tmp_path: Path) -> None:
    node = written(tmp_path, "services", site.document())
    error = slicepilot("node", "identify", str(node), "--out", str(tmp_path / "hardware.yaml"), code=2).stderr
    assert "slices.shop.service" in error
    assert "expected a node with UPFs alone" in error
    assert not (tmp_path / "hardware.yaml").exists()


# -- bad input ---------------------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {
    "name": "shop",
    "s_nssai": {"sst": 1},
    "sla": {"committed_mbps": 1, "delay_bound_ms": 500},
    "service": {"unit": "shop.service"},
    "listens": {"device": "eth0", "ports": [PORT := 8080]},
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"listens": None}, "slices.shop: listens: not given; expected device and ports of the service"),
        ({"service": None}, "slices.shop: upf, service: neither is given; expected upf for a UPF"),
        ({"upf": {"pid": 1}}, "slices.shop: upf, service: both are given"),
        ({"traffic": {"teids": [1]}}, "slices.shop: traffic: not of a service; expected without it"),
        ({"service": None, "upf": {"pid": 1}}, "slices.shop: listens: not of a upf; expected without it"),
        ({"listens": {"device": "eth0"}}, "ports"),
        ({"listens": {"device": "eth0", "ports": [65536]}}, "ports"),
        ({"listens": {"device": "eth0", "ports": [PORT], "echoed_octets": 3}}, "echoed_octets"),
        ({"service": {"user": "nobody"}}, "nothing says which process it is"),
    ],
)
def test_what_is_wrong_of_a_service_is_said_in_a_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        NodeSpec.from_yaml(str(written(tmp_path, "services", GOOD | change)))
    [line] = str(caught.value).splitlines()
    assert message in line


@pytest.mark.parametrize(
    ("listens", "message"),
    [
        ({"device": "eth7"}, "slices.shop.listens.device = eth7: no such interface; expected lo, eth0"),
        ({"device": "lo"}, "slices.shop.listens.far_netns"),
        ({"far_netns": "nowhere"}, "slices.shop.listens.far_netns = nowhere: no such network namespace"),
        ({"far_netns": "its own"}, "the other end of eth0 is not there; expected the network namespace"),
    ],
)
def test_what_is_not_there_is_named(site: Site, tmp_path: Path, listens: dict[str, Any], message: str) -> None:
    if listens.get("far_netns") == "its own":
        listens = {"far_netns": site.netns}
    node = written(tmp_path, "services", site.document(**listens))
    lines = [line for line in slicepilot("node", "check", str(node), code=2).stderr.splitlines() if line]
    assert len(lines) == 1
    assert message in lines[0]


def test_services_at_one_interface_have_a_rate_of_nobodys_own(site: Site, tmp_path: Path) -> None:
    """Two ports of one program: CPU time is shared as a UPF's is, and no shaper tells their answers apart."""
    second = site.document(ports=[8081]) | {"name": "admin", "s_nssai": {"sst": 2}}
    node = written(tmp_path, "services", site.document(), second)
    document = json.loads(slicepilot("node", "check", str(node), "--seconds", "0.3", "--json", code=1).stdout)
    for item in document:
        assert not item["knobs"]["egress"]["authority"]
        assert "is used by other slices too" in item["knobs"]["egress"]["why"]
        assert item["knobs"]["cpu_limit"]["authority"]
