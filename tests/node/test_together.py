"""Two UPFs in one network namespace: one N3 with two addresses, a TUN device each, and one N6."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from slicepilot.configs import ConfigError
from slicepilot.controller.actuators.node import NodeActuator
from slicepilot.env.knobs import CPU_LIMIT, EGRESS, NICE, Knobs
from slicepilot.node.find.discover import discover
from slicepilot.node.find.locate import Finder
from slicepilot.node.live.backend import NodeBackend

from .foreign import Foreign, opened
from .runtimes import until
from .test_foreign import knobs, picture, slicepilot

WORK_NS = 100_000


@pytest.fixture(scope="module", name="whole")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Foreign]:
    with Foreign(tmp_path_factory.mktemp("together"), count=2, prefix="ft", TOGETHER="1", BURN_NS=str(WORK_NS)) as node:
        yield node


def document_of(node: Foreign, **traffic: Any) -> dict[str, Any]:
    """UPFs by their cgroups, which says nothing of the namespace that they share."""
    document = node.document()
    for number, item in enumerate(document["slices"], 1):
        item["upf"] = {"cgroup": str(node.group(number)), "user": "root"}
        item["traffic"] = traffic or {"ue_pools": [f"10.61.{number}.0/24"]}
        item["devices"] |= {"tun": f"tun{number}", "n6_far": "n6-1"}
    return document


@pytest.fixture(name="path")
def _path(foreign: Foreign, tmp_path: Path) -> Path:
    path = tmp_path / "node.yaml"
    path.write_text(yaml.safe_dump(document_of(foreign)))
    return path


def means(backend: NodeBackend, ticks: int = 80) -> Any:
    """Figures of telemetry by slice, after a second for them to settle."""
    for _ in range(50):
        backend.observe()
    return np.mean([backend.observe().slices[:, :, 0].copy() for _ in range(ticks)], axis=0)


def test_both_are_discovered_distinguished_and_measured_without_configuration(foreign: Foreign, tmp_path: Path) -> None:
    result = {item.process.pid: item for item in discover() if item.netns_name == foreign.netns[0]}
    assert sorted(result) == sorted((foreign.pid(1), foreign.pid(2)))
    for number in (1, 2):
        item = result[foreign.pid(number)]
        assert item.confidence == "sure"
        assert (item.devices.n3, item.devices.n6, item.devices.tun) == ("n3", "n6", f"tun{number}")
        assert item.cgroup == foreign.group(number)
        assert item.selector.pid is None, "after a restart it would be another"
        assert item.selector.netns == foreign.netns[0]
        assert Finder().find(item.name, item.selector).process.pid == item.process.pid
        assert item.ue_pools == (f"10.61.{number}.0/24",)

    path = foreign.draft(tmp_path / "draft.yaml")
    slices = yaml.safe_load(path.read_text())["slices"]
    assert sorted(item["traffic"]["ue_pools"][0] for item in slices) == ["10.61.1.0/24", "10.61.2.0/24"]
    before = picture(foreign)
    foreign.load(seconds=25, mbps=4)
    checked = json.loads(slicepilot("node", "check", str(path), "--seconds", "2", "--json").stdout)
    foreign.stop_loads()
    for item in checked:
        assert item["traffic"]["match_ratio"] > 0.99
        assert all(knob["authority"] for knob in item["knobs"].values()), item["knobs"]
    assert picture(foreign) | {"links": ""} == before | {"links": ""}


def test_each_has_its_own_rate_and_class_of_one_shaper(foreign: Foreign, path: Path) -> None:
    before = knobs(foreign)
    foreign.load(seconds=12, mbps=8)
    with closing(opened(path)) as backend, closing(NodeActuator(backend.targets)) as actuator:
        assert not backend.context.sharing
        assert {target.egress_device for target in backend.targets} == {"n6"}
        assert len({target.part for target in backend.targets}) == 2
        wanted = Knobs.none(2)
        wanted.values[EGRESS, 1, 0] = 2.0
        actuator.apply(wanted)
        offered, carried, _, p99 = means(backend)[:4]
    foreign.stop_loads()
    assert offered == pytest.approx([8, 8], rel=0.15)
    assert carried[0] == pytest.approx(8, rel=0.15)
    assert carried[1] == pytest.approx(2, rel=0.15)
    assert p99[1] > 5 * p99[0]
    assert knobs(foreign) == before


def test_cpu_knobs_act_on_one_of_them(foreign: Foreign, path: Path) -> None:
    before = knobs(foreign)
    foreign.load(seconds=12, mbps=4)
    with closing(opened(path)) as backend, closing(NodeActuator(backend.targets)) as actuator:
        wanted = Knobs.none(2)
        wanted.values[NICE, 1, 0] = 5
        wanted.values[CPU_LIMIT, 1, 0] = 15  # of the 36 mCPU that its packets take
        assert actuator.apply(wanted).applied.same_as(wanted)
        moved = {name for name, value in knobs(foreign).items() if value != before[name]}
        assert moved
        assert {name for name in moved if "cpu." in name} == {name for name in moved if name.startswith("2/cpu.")}
        figures = means(backend)
        use = backend.observe().cpu_use_mcpu[:, 0].copy()
    foreign.stop_loads()
    assert figures[1][1] < 0.6 * figures[1][0]
    assert figures[1][0] == pytest.approx(4, rel=0.2)
    assert use[0] > 0
    assert knobs(foreign) == before


@pytest.mark.parametrize("gone", [1, 2])
def test_one_of_them_restarts_and_the_other_goes_on(foreign: Foreign, path: Path, gone: int) -> None:
    foreign.load(seconds=40, mbps=2)
    with closing(opened(path)) as backend:

        def carries(*numbers: int) -> bool:
            """Whether packets of these slices leave now, and of no others."""
            backend.check()
            carried = np.max([backend.observe().carried_mbps[:, 0].copy() for _ in range(20)], axis=0)
            return set(np.flatnonzero(carried) + 1) == set(numbers)

        until(lambda: carries(1, 2), "not measured")
        foreign.stop_upf(gone)
        until(lambda: carries(3 - gone), "the other is not measured any more")
        assert not [line for line in backend.check() if "no such network namespace" in line], "theirs is still there"
        foreign.start_upf(gone)
        until(lambda: carries(1, 2), "not measured again", 12.0)
    foreign.stop_loads()


def test_tunnels_do_not_distinguish_upfs_that_number_them_alike(foreign: Foreign, path: Path) -> None:
    path.write_text(yaml.safe_dump(document_of(foreign, teids=[1])))
    with pytest.raises(ConfigError, match="TEID 0x1 belongs to both; expected pools, TEIDs or QFIs that are one"):
        opened(path)
