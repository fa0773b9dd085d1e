"""UPFs that have no CPU group of their own get a group while they are controlled, and only where the YAML allows it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from slicepilot.controller.system.cgroup import CpuHierarchy
from slicepilot.controller.system.cgroup_paths import below
from slicepilot.controller.system.own_groups import PREFIX, group_of
from slicepilot.controller.watchdog.journal import journal_path
from slicepilot.env.arrays import FloatArray
from slicepilot.env.knobs import CPU_LIMIT, Knobs
from slicepilot.node.live.backend import NodeBackend
from slicepilot.node.live.stepped import GuardedNode, open_live

from .foreign import Foreign
from .runtimes import until
from .test_foreign import controller, slicepilot

ROOT = CpuHierarchy.find().root
UPFS = 2
BURN_NS = "200000"  # of work on each packet, so that a limit can be felt
GONE_S = 3.0
STOPPED_S = 60.0  # on a machine that others use, too
SLEEPER = [sys.executable, "-S", "-c", "import time; time.sleep(300)"]


@pytest.fixture(name="foreign", scope="module")
def _foreign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Foreign]:
    """UPFs in the root group, as any process is that nobody has put elsewhere."""
    with Foreign(
        tmp_path_factory.mktemp("rootgroup"), count=UPFS, prefix="fg", GROUP=str(ROOT), BURN_NS=BURN_NS
    ) as node:
        yield node


@pytest.fixture(autouse=True)
def _mended(foreign: Foreign) -> None:
    foreign.mend()


@pytest.fixture(name="node")
def _node(foreign: Foreign, tmp_path: Path) -> Path:
    return written(foreign, tmp_path)


def written(foreign: Foreign, folder: Path, own: bool = True, **more: Any) -> Path:
    document = foreign.document()
    for item in document["slices"]:
        item |= {"own_cgroup": own, **more}
    path = folder / "node.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def check(node: Path, *options: str, code: int = 0) -> list[dict[str, Any]]:
    """What `node check` says of each slice."""
    done: list[dict[str, Any]] = json.loads(
        slicepilot("node", "check", str(node), "--json", *options, code=code).stdout
    )
    return done


def weight(foreign: Foreign, number: int) -> int:
    name = "cpu.shares" if CpuHierarchy.find().version == 1 else "cpu.weight"
    return int((make_group(foreign, number) / name).read_text())


def make_group(foreign: Foreign, number: int, parent: Path = ROOT) -> Path:
    return parent / f"{PREFIX}{foreign.prefix}-slice{number}"


def memberships(foreign: Foreign) -> dict[str, str]:
    """All groups of every thread of every UPF, by UPF and thread; and which groups of ours there are."""
    result = {}
    for number in range(1, foreign.count + 1):
        for thread in Path(f"/proc/{foreign.pid(number)}/task").iterdir():
            result[f"{number}/{thread.name}"] = (thread / "cgroup").read_text()
    ours = f"{PREFIX}{foreign.prefix}"
    result["groups"] = ", ".join(sorted(str(path) for path, _ in below(ROOT) if path.name.startswith(ours)))
    return result


def same_threads(before: dict[str, str], now: dict[str, str]) -> bool:
    """Whether all that is still there is where it was: programs in Go start threads when they like."""
    where = {text for name, text in before.items() if name != "groups"}
    return now["groups"] == before["groups"] and all(text in where for name, text in now.items() if name != "groups")


def moved_in(foreign: Foreign, *numbers: int) -> bool:
    """Whether UPFs are in groups of their own with all their threads, each alone."""
    return all(
        make_group(foreign, number).is_dir()
        and {int(word) for word in (make_group(foreign, number) / "cgroup.procs").read_text().split()}
        == {foreign.pid(number)}
        for number in numbers
    )


@contextlib.contextmanager
def group(*names: str) -> Iterator[Path]:
    """A group of the CPU controller, made for a test."""
    made = [ROOT.joinpath(*names[: depth + 1]) for depth in range(len(names))]
    for path in made:
        path.mkdir()
    try:
        yield made[-1]
    finally:
        for path in reversed(made):
            if path.exists():
                until(lambda path=path: removed(path), f"{path} is not empty")


def removed(path: Path) -> bool:
    """Whether a group could be removed; who has been killed is in it for a moment more."""
    with contextlib.suppress(OSError):
        path.rmdir()
        return True
    return False


@contextlib.contextmanager
def sleeper(*command: str, into: Path) -> Iterator[subprocess.Popen[str]]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command or SLEEPER, text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            (into / "cgroup.procs").write_text(str(process.pid))
            yield process
        finally:
            process.kill()
            process.wait()


def test_a_limit_acts_in_it(foreign: Foreign, node: Path, tmp_path: Path) -> None:
    """Under a limit of half of what its packets take a UPF gets that much CPU time, and carries less."""
    before = memberships(foreign)
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump({"run_root": str(tmp_path / "run"), "state_root": str(tmp_path / "state")}))
    with closing(open_live(str(node), 0.02, mode="live", run=str(config))) as backend:
        assert moved_in(foreign, 1, 2)
        foreign.load(seconds=8, mbps=16)  # half of it takes more than the least limit, 100 mCPU
        backend.reset()
        until(lambda: bool((backend.observe().carried_mbps > 2.0).all()), "no packets")
        knobs = Knobs.none(UPFS)
        free, used = watched(backend, knobs)
        assert (used > 20.0).all(), "CPU time is measured in groups that were made after the probe began"
        knobs.values[CPU_LIMIT, 0, 0] = 0.5 * used[0]
        held, limited = watched(backend, knobs)
        assert backend.receipt.applied.cpu_limit_mcpu[0, 0] == pytest.approx(0.5 * used[0], rel=0.01)
    foreign.stop_loads()
    print(f"carried {free} Mbit/s with {used} mCPU; {held} with {limited}, half of it for the first")
    assert held[0] < 0.75 * free[0]
    assert limited[0] < 0.6 * used[0]
    assert same_threads(before, memberships(foreign))


def watched(backend: GuardedNode | NodeBackend, knobs: Knobs) -> tuple[FloatArray, FloatArray]:
    """Rates and CPU use of two seconds under the same knobs, by slice; the first half second is left out."""
    rows = []
    for _ in range(100):
        backend.apply(knobs)
        seen = backend.observe()
        rows.append((seen.carried_mbps[:, 0].copy(), seen.cpu_use_mcpu[:, 0].copy()))
    carried, use = np.mean(rows[25:], axis=0)
    return carried, use


def test_without_being_allowed_nothing_is_moved(foreign: Foreign, tmp_path: Path) -> None:
    node = written(foreign, tmp_path, own=False)
    before = memberships(foreign)
    [item, _] = check(node, "--seconds", "0.2", code=1)
    assert not item["knobs"]["nice"]["authority"]
    assert "own_cgroup: true" in item["knobs"]["nice"]["why"]
    with controller(node, foreign, tmp_path):
        time.sleep(1.5)
        assert same_threads(before, memberships(foreign))


def test_a_shadow_moves_nothing_and_says_what_would_be_moved(foreign: Foreign, node: Path, tmp_path: Path) -> None:
    before = memberships(foreign)
    [item, _] = check(node, "--seconds", "0.2", code=1)
    assert item["knobs"]["cpu_limit"]["authority"]
    why = item["knobs"]["cpu_limit"]["why"]
    assert re.search(rf"live mode will move the threads of .* to {make_group(foreign, 1)}, and back at the end", why)
    with controller(node, foreign, tmp_path, mode="shadow", publish={"log": "json"}) as running:
        time.sleep(1.5)
        assert same_threads(before, memberships(foreign))
        assert not running.notes()["unmeasured"]
        options = "--run-root", str(tmp_path / "run"), "--once"
        assert "! CPU time is measured only where the mode acts" in slicepilot("top", *options).stdout
    events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if line.startswith("{")]
    assert [event["what"] for event in events if event["event"] == "starting"][-1] == "taking over"


def test_modes_are_switched(foreign: Foreign, node: Path, tmp_path: Path) -> None:
    """From shadow to live, to a canary on a slice, and back."""
    before = memberships(foreign)
    where = ["--name", foreign.prefix, "--run-root", str(tmp_path / "run")]
    with controller(node, foreign, tmp_path, mode="shadow") as running:
        slicepilot("control", "mode", "live", *where)
        assert moved_in(foreign, 1, 2)
        slicepilot("control", "mode", "canary", "--slices", "slice2", *where)
        assert moved_in(foreign, 2)
        assert not make_group(foreign, 1).exists()
        slicepilot("control", "mode", "shadow", *where)
        assert same_threads(before, memberships(foreign))
        until(lambda: not running.notes()["unmeasured"], "something is lost")


@pytest.mark.parametrize("both", [False, True], ids=["controller", "all"])
def test_sigkill_leaves_nobody_in_it(foreign: Foreign, node: Path, tmp_path: Path, both: bool) -> None:
    before = memberships(foreign)
    with controller(node, foreign, tmp_path) as running:
        assert moved_in(foreign, 1, 2)
        if both:
            os.kill(running.supervisor, signal.SIGKILL)
        running.process.kill()
        if both:
            running.process.wait()
            assert moved_in(foreign, 1, 2)
            [report] = json.loads(slicepilot("restore", "--state", str(tmp_path / "state"), "--json").stdout)
            assert any(
                f"1 processes back in {ROOT}, {make_group(foreign, 1)} removed" in item for item in report["restored"]
            )
        until(lambda: same_threads(before, memberships(foreign)), "not moved back", GONE_S)


def test_the_next_start_puts_right_what_two_killed_processes_have_left(
    foreign: Foreign, node: Path, tmp_path: Path
) -> None:
    before = memberships(foreign)
    with controller(node, foreign, tmp_path) as running:
        os.kill(running.supervisor, signal.SIGKILL)
        running.process.kill()
        running.process.wait()
    assert moved_in(foreign, 1, 2)
    with controller(node, foreign, tmp_path):
        assert moved_in(foreign, 1, 2)
    assert same_threads(before, memberships(foreign))


def test_a_upf_that_restarts_is_moved_again(foreign: Foreign, node: Path, tmp_path: Path) -> None:
    before = memberships(foreign)
    with controller(node, foreign, tmp_path) as running:
        foreign.stop_upf(1)
        until(lambda: not make_group(foreign, 1).exists(), "an empty group stays in the way")
        foreign.start_upf(1)
        assert group_of(foreign.pid(1)) == ROOT
        until(lambda: moved_in(foreign, 1), "not moved again")
        until(lambda: running.notes()["unmeasured"] == [], "not taken up again")
        until(lambda: weight(foreign, 1) > weight(foreign, 2), "not weighed")
    assert memberships(foreign)["groups"] == ""
    assert group_of(foreign.pid(1)) == ROOT
    assert memberships(foreign).keys() > {key for key in before if key.startswith("2/")}


@pytest.mark.parametrize("policy", ["respect", "reassert"])
def test_moving_a_process_out_is_reported_and_treated_by_the_rule(
    foreign: Foreign, node: Path, tmp_path: Path, policy: str
) -> None:
    before = memberships(foreign)
    with controller(node, foreign, tmp_path, foreign_changes={"policy": policy}) as running:
        (ROOT / "cgroup.procs").write_text(str(foreign.pid(1)))
        until(lambda: running.notes()["totals"]["foreign_changes"] > 0, "not noticed")
        reported = running.notes()["foreign"]
        assert {item["slice"] for item in reported} == {"slice1"}
        assert {item["policy"] for item in reported} == {policy}
        assert "moved out of the group that was made for it" in reported[0]["text"]
        if policy == "reassert":
            until(lambda: moved_in(foreign, 1), "not moved back in")
        else:
            time.sleep(2.5)
            assert group_of(foreign.pid(1)) == ROOT
            slicepilot("control", "resume", "--name", foreign.prefix, "--run-root", str(tmp_path / "run"))
            until(lambda: moved_in(foreign, 1), "not taken up again")
            assert running.notes()["foreign"] == []
    assert same_threads(before, memberships(foreign))


@pytest.mark.realtime
def test_what_is_tried_in_its_group_is_felt(foreign: Foreign, node: Path) -> None:
    """`check --try` gives it a group for as long as it tries: a CPU limit below what it uses holds it back."""
    before = memberships(foreign)
    foreign.load(seconds=60, mbps=8)
    result = check(node, "--try")
    assert same_threads(before, memberships(foreign))
    for item in result:
        limit = item["knobs"]["cpu_limit"]
        assert limit["authority"], limit
        assert limit["tried"]["carried_ratio"]["high"] < 1.0 or limit["tried"]["delay_p99_ratio"]["low"] > 1.0, limit
    foreign.stop_loads()


def test_two_upfs_in_one_group_get_one_each(foreign: Foreign, node: Path, tmp_path: Path) -> None:
    with group(f"sp-shared-{os.getpid()}") as shared, sleeper(into=shared) as other:
        for number in (1, 2):
            (shared / "cgroup.procs").write_text(str(foreign.pid(number)))
        before = memberships(foreign)
        try:
            with controller(node, foreign, tmp_path):
                for number in (1, 2):
                    assert group_of(foreign.pid(number)) == make_group(foreign, number, shared)
                assert group_of(other.pid) == shared
            assert same_threads(before, memberships(foreign))
            refused = written(foreign, tmp_path, own=False)
            line = slicepilot("run", "--node", str(refused), "--seconds", "1", code=2).stderr
            assert "expected each UPF and service in a cgroup of its own, or own_cgroup: true in both" in line
        finally:
            for number in (1, 2):
                (ROOT / "cgroup.procs").write_text(str(foreign.pid(number)))


def test_a_group_of_its_name_that_somebody_else_has_made_is_left_alone(
    foreign: Foreign, node: Path, tmp_path: Path
) -> None:
    before = memberships(foreign)
    with group(make_group(foreign, 2).name) as theirs:
        config = tmp_path / "run.yaml"
        roots = {"run_root": str(tmp_path / "run"), "state_root": str(tmp_path / "state")}
        config.write_text(yaml.safe_dump(roots | {"publish": {"log": "off"}}))
        command = ["run", "-c", str(config), "--node", str(node), "--mode", "live", "--seconds", "1"]
        done = slicepilot(*command, code=1)
        [line] = [line for line in done.stderr.splitlines() if str(theirs) in line]
        assert "exists and is not this controller's" in line
        assert theirs.is_dir()
    assert same_threads(before, memberships(foreign))
    assert not journal_path(tmp_path / "state" / foreign.prefix).exists()


def test_slices_of_one_upf_share_a_group_and_a_canary_on_one_of_them_moves_nothing(tmp_path: Path) -> None:
    node = Foreign(tmp_path, count=1, sessions=2, prefix="fh", GROUP=str(ROOT))
    try:
        [item] = node.document()["slices"]
        both = [
            item | {"name": name, "s_nssai": {"sst": number}, "own_cgroup": True, "traffic": {"ue_pools": [pool]}}
            for number, (name, pool) in enumerate((("a", "10.61.1.2/32"), ("b", "10.61.1.3/32")), 1)
        ]
        path = tmp_path / "node.yaml"
        path.write_text(yaml.safe_dump({"name": node.prefix, "slices": both}))
        where = ["--name", node.prefix, "--run-root", str(tmp_path / "run")]
        own = ROOT / f"{PREFIX}{node.prefix}-a"
        before = memberships(node)
        with controller(path, node, tmp_path, mode="shadow"):
            slicepilot("control", "mode", "canary", "--slices", "b", *where)
            assert same_threads(before, memberships(node))
            slicepilot("control", "mode", "live", *where)
            assert group_of(node.pid(1)) == own
        assert same_threads(before, memberships(node))
        both[1]["own_cgroup"] = False
        path.write_text(yaml.safe_dump({"name": node.prefix, "slices": both}))
        [first, _] = check(path, "--seconds", "0.2", code=1)
        assert not first["knobs"]["nice"]["authority"], "all slices of a UPF have to allow it"
    finally:
        node.down()
