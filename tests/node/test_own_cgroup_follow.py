"""Our own moves of a UPF are told apart from those of other programs, whatever the follower is reading meanwhile."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicepilot.controller.actuators.shadow import ShadowActuator
from slicepilot.controller.actuators.targets import SliceTargets
from slicepilot.controller.system.own_groups import PREFIX, group_of
from slicepilot.node.config.selectors import UpfSelector
from slicepilot.node.find.follow import Follower
from slicepilot.node.find.links import UpfLinks
from slicepilot.node.find.locate import Finder, Located
from slicepilot.node.live.own_groups import NodeHousing, OwnGroups

from .runtimes import until
from .test_own_cgroup import ROOT, group, sleeper

NODE = f"follow{os.getpid()}"
OWN = ROOT / f"{PREFIX}{NODE}-a"
ROUNDS = 30
STALE_S = 0.5


class SlowSettler(OwnGroups):
    """Whose first call by a search in the background comes late, as on a busy node."""

    def __init__(self, firsts: dict[str, str]) -> None:
        super().__init__(NODE, firsts, {})
        self.reached, self.taken_over = threading.Event(), threading.Event()

    def settle(self, name: str, located: Located) -> Located:
        if threading.current_thread() is not threading.main_thread() and not self.reached.is_set():
            self.reached.set()
            self.taken_over.wait(STALE_S)
        return super().settle(name, located)


@contextlib.contextmanager
def followed(own: OwnGroups, pid: int, folder: Path) -> Iterator[tuple[Follower, NodeHousing, UpfLinks]]:
    selector = UpfSelector(pid=pid)
    located = Finder().find("a", selector)
    with contextlib.closing(UpfLinks(folder)) as links:
        links.lead_to("a", located.netns, own.group_of("a", located))
        with contextlib.closing(Follower({"a": selector}, {"a": located}, links, own)) as follower:
            try:
                yield follower, NodeHousing(own, follower, list), links
            finally:
                own.end()


def test_a_search_that_began_before_a_take_over_does_not_take_it_for_somebody_elses(tmp_path: Path) -> None:
    own = SlowSettler({"a": "a"})
    with (
        group(f"sp-follow-{os.getpid()}") as before,
        sleeper(into=before) as process,
        followed(own, process.pid, tmp_path) as (follower, housing, _),
    ):
        (ROOT / "cgroup.procs").write_text(str(process.pid))
        assert "lives in another cgroup: the root group" in follower.look()[0]
        assert own.reached.wait(5.0), "no search in the background"
        housing.begin(["a"], lambda *_: None, lambda _: "")
        own.taken_over.set()
        time.sleep(2 * STALE_S)
        assert housing.look() == []
        assert follower.look() == []
        assert follower.located["a"].cgroup == OWN == group_of(process.pid)
        housing.end()
        assert follower.look() == []
        assert group_of(process.pid) == ROOT


def test_our_own_moves_are_not_reported_while_somebody_looks(tmp_path: Path) -> None:
    """A loop that looks as often as it can while modes are switched."""
    own, reports, ended = OwnGroups(NODE, {"a": "a"}, {}), list[str](), threading.Event()
    with sleeper(into=ROOT) as process, followed(own, process.pid, tmp_path) as (follower, housing, links):

        def look() -> None:
            while not ended.wait(0.0005):
                reports.extend(follower.look())

        loop = threading.Thread(target=look)
        loop.start()
        try:
            for _ in range(ROUNDS):
                housing.begin(["a"], lambda *_: None, lambda _: "")
                assert links.cgroup("a").readlink() == OWN
                time.sleep(0.03)
                reports += [item.text for item in housing.look()]
                housing.end()
                time.sleep(0.01)
        finally:
            ended.set()
            loop.join()
    assert reports == []


def test_a_group_that_was_just_made_is_not_reported_and_a_missing_group_by_its_own_path(tmp_path: Path) -> None:
    """An actuator of shadow while another mode is taken up; links to groups are of no use to an operator."""
    own = OwnGroups(NODE, {"a": "a"}, {})
    with (
        sleeper(into=ROOT) as process,
        followed(own, process.pid, tmp_path) as (_, housing, links),
        contextlib.closing(ShadowActuator([SliceTargets("a", links.cgroup("a"))], missing_ok=True)) as shadow,
    ):
        assert shadow.refresh() == []
        housing.begin(["a"], lambda *_: None, lambda _: "")
        assert shadow.refresh() == []
        housing.end()
        assert shadow.refresh() == []
        gone = ROOT / f"{PREFIX}{NODE}-gone"
        links.lead_to("a", Path(f"/proc/{process.pid}/ns/net"), gone)
        assert shadow.refresh() == [f"a: {gone}: no such cgroup"]


@pytest.fixture(autouse=True, scope="module")
def _nothing_left() -> Iterator[None]:
    yield
    until(lambda: not OWN.exists(), "a group of ours is left")
