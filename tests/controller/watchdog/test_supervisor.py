"""The supervisor beside a controller that is killed, stopped or ends well: real groups, devices, processes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

from slicepilot.cli.operation.restore import restore
from slicepilot.configs import ConfigError
from slicepilot.controller.actuators.bandwidth import bandwidth_files
from slicepilot.controller.actuators.slice_knobs import SliceTargets
from slicepilot.controller.actuators.weight import weight_file
from slicepilot.controller.system.cgroup import CpuGroup, cgroup_mounts
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.net.qdisc import RootQdisc
from slicepilot.controller.system.net.rtnetlink import RouteSocket
from slicepilot.controller.system.processes import start_ticks
from slicepilot.controller.system.realtime import on_time
from slicepilot.controller.watchdog import lock
from slicepilot.controller.watchdog.journal import journal_path
from slicepilot.controller.watchdog.keeper import JournalKeeper
from slicepilot.controller.watchdog.lock import Locks
from slicepilot.controller.watchdog.recovery import recover
from slicepilot.env.slices import SliceSet
from slicepilot.testbed.bench.node import BenchNode
from tests.controller.conftest import remove_group
from tests.effort import repetitions

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: cgroups and network namespaces")

HANG_S = 1.0
ALLOWED_S = 0.05

IMPORTS = """
import json, sys, threading, time
from pathlib import Path
import numpy as np
from slicepilot.controller.actuators.node import NodeActuator, SliceTargets
from slicepilot.controller.system.realtime import on_time
from slicepilot.controller.record.ring import Tick, TickRing
from slicepilot.controller.watchdog.handle import SupervisorHandle
from slicepilot.controller.watchdog.keeper import JournalKeeper
from slicepilot.controller.watchdog.lock import Locks
from slicepilot.controller.watchdog.recovery import recover
from slicepilot.env.knobs import Knobs
from slicepilot.env.telemetry import Telemetry
"""
# What a controller does to its slices, without a policy: everything is moved that can be moved.
CONTROLLER = """
# As large as a controller with its policy, since the kernel takes that apart before it tells of the death; a thread
# that receives commands, and a thread that is on time.
ballast = bytearray(b"x") * (150 << 20)
threading.Thread(target=threading.Event().wait, daemon=True).start()
state, hang_s, rows = Path(sys.argv[1]), float(sys.argv[2]), json.loads(sys.argv[3])
targets = [SliceTargets(name, Path(group), device, Path(netns)) for name, group, device, netns in rows]
state.mkdir(exist_ok=True)
locks = Locks({f"slice {target.name}": target.group for target in targets} | {"controller": state})
recovered = recover(state)
ring = TickRing(state.with_name(f"{state.name}-ticks"), len(targets), 16)  # in /run, as a run has it
keeper = JournalKeeper(state, targets)
supervisor = SupervisorHandle(keeper, ring.path, locks.descriptors, hang_s, leave_groups="leave" in sys.argv)
node = NodeActuator(targets, 10_000, remember=keeper.remember)
node.deploy(np.full(len(targets), 250, np.float32))
column = np.arange(1, len(targets) + 1, dtype=np.float32)[:, None]
knobs = Knobs.of(200 * column, column, 10 * column, "process")
receipt = node.apply(knobs)
telemetry, nothing = Telemetry.empty(len(targets)), np.zeros(len(targets), np.uint32)
print(json.dumps({"error": receipt.error, "recovered": recovered, **supervisor.facts}), flush=True)
restarts = 0
with on_time():
    while "stop" not in sys.argv or not (state / "stop").exists():
        tick = Tick(monotonic_ns=time.monotonic_ns())
        ring.write(tick, telemetry, knobs, knobs, knobs, nothing)
        time.sleep(0.005)
        supervisor.revive()
        if supervisor.restarts != restarts:
            restarts = supervisor.restarts
            print(json.dumps(supervisor.notes()), flush=True)
node.close()
keeper.remove()
supervisor.disarm_and_wait()
ring.close()
print("ended", flush=True)
"""


@pytest.fixture(scope="module")
def node() -> Iterator[BenchNode]:
    """Five groups with a device each, a busy process in each group and two more beside them."""
    with BenchNode(SliceSet.from_yaml("testbed-five")) as made:
        made.saturate()
        yield made


class Script:
    """A controller's script as a process; `facts` is what it has printed when it was acting."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self._output = self.process.stdout
        try:
            self.facts: dict[str, Any] = self.next_line()
            assert self.facts["error"] is None
            self.supervisor: int = self.facts["pid"]
        except BaseException:
            self.close()
            raise

    def next_line(self) -> dict[str, Any]:
        """The next line it prints."""
        return json.loads(self._output.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        self._output.close()


class Controller(Script):
    """`CONTROLLER` on a node's slices, in cgroups of its own if there are some."""

    def __init__(
        self, node: BenchNode, state: Path, hang_s: float = HANG_S, mode: str = "run", groups: Sequence[Path] = ()
    ) -> None:
        rows = [[t.name, str(t.cgroup), t.egress_device, str(t.netns)] for t in node.targets]
        join = "".join(f"echo 0 >{group}/cgroup.procs && " for group in groups)
        script = [sys.executable, "-c", IMPORTS + CONTROLLER, str(state), str(hang_s), json.dumps(rows), mode]
        super().__init__("sh", "-c", f'{join}exec "$@"', "sh", *script)


@contextlib.contextmanager
def controller(
    node: BenchNode, state: Path, hang_s: float = HANG_S, mode: str = "run", groups: Sequence[Path] = ()
) -> Iterator[Controller]:
    started = Controller(node, state, hang_s, mode, groups)
    try:
        yield started
    finally:
        started.close()
        wait_for(lambda: start_ticks(started.supervisor) is None)


class Kernel:
    """What the kernel has of every slice, as the files say it."""

    def __init__(self, targets: list[SliceTargets]) -> None:
        self._targets = targets
        groups = [CpuGroup.at(target.group) for target in targets]
        self._files = [(bandwidth_files(group), weight_file(group), group.threads_file) for group in groups]
        assert targets[0].netns is not None
        self._route = RouteSocket(targets[0].netns)
        self._qdiscs = [RootQdisc(self._route, str(target.egress_device)) for target in targets]

    def read(self) -> list[tuple[Any, ...]]:
        """Per slice: quota and period, weight, nice of its threads, handle of the device's root qdisc."""
        return [
            (*band.read()[:2], int(weight.read()), _nices(threads), qdisc.handle())
            for (band, weight, threads), qdisc in zip(self._files, self._qdiscs, strict=True)
        ]

    def close(self) -> None:
        for band, weight, _ in self._files:
            band.close()
            weight.close()
        self._route.close()


def _nices(threads: Path) -> list[int]:
    return [os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in threads.read_text().split()]


@pytest.fixture
def kernel(node: BenchNode) -> Iterator[Kernel]:
    with contextlib.closing(Kernel(node.targets)) as made:
        yield made


def wait_for(condition: Callable[[], bool], timeout_s: float = 10.0) -> float:
    """Seconds until a condition holds; fails when it does not."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() < start + timeout_s, "it did not come"
        time.sleep(0.0005)
    return time.monotonic() - start


def restored(state: Path) -> dict[str, Any]:
    """What the supervisor has written about it."""
    wait_for(lambda: not journal_path(state).exists())
    return json.loads((state / "restored.json").read_text())


@pytest.mark.realtime
def test_after_sigkill_everything_is_restored_within_50_ms(node: BenchNode, kernel: Kernel, tmp_path: Path) -> None:
    original = kernel.read()
    took_s, notice_s, restore_s = [], [], []
    for _ in range(repetitions(5, 20)):
        with controller(node, tmp_path / "state") as victim:
            facts, moved = victim.facts, kernel.read()
            pages = int(Path(f"/proc/{victim.supervisor}/statm").read_text().split()[1])
            assert pages * os.sysconf("SC_PAGE_SIZE") < 24_000 << 10
            assert all(now != before for now, before in zip(moved, original, strict=True))
            for part in range(5):
                assert all(now[part] != before[part] for now, before in zip(moved, original, strict=True)), part
            with on_time():
                killed_ns = time.monotonic_ns()
                victim.process.kill()
                took_s.append(wait_for(lambda: kernel.read() == original))
            document = restored(tmp_path / "state")
            assert (document["cause"], document["failed"], document["gone"]) == ("died", [], [])
            notice_s.append((document["noticed_ns"] - killed_ns) / 1e9)
            restore_s.append((document["finished_ns"] - document["noticed_ns"]) / 1e9)
        assert (facts["scheduling"], facts["memory"]) == ("SCHED_FIFO", "locked")
    figures = {"all": took_s, "noticed": notice_s, "restored": restore_s}
    for what, values in figures.items():
        median, p99, worst = 1e3 * np.quantile(values, [0.5, 0.99, 1.0])
        print(f"{what}: median {median:.1f} ms, p99 {p99:.1f} ms, worst {worst:.1f} ms")
    assert np.quantile(took_s, 0.99) < ALLOWED_S


@pytest.fixture(name="container")
def _container() -> Iterator[list[Path]]:
    """A group in each hierarchy, as a runtime makes them for a container."""
    made = []
    try:
        for root in {running.root: running for running in cgroup_mounts()}:
            group = root / f"slicepilot-test-container-{os.getpid()}"
            group.mkdir()
            made.append(group)
            for name in ("cpuset.cpus", "cpuset.mems"):  # without them nothing may enter
                if (root / name).exists() and (root / "tasks").exists():
                    (group / name).write_text((root / name).read_text())
        yield made
    finally:
        for group in made:
            remove_group(group)


def kill_all(container: list[Path]) -> None:
    """As a runtime does (runc, ``signalAllProcesses``): frozen first, so that all die at once."""
    [freezer] = [group for group in container if (group / "freezer.state").exists()] or [container[-1]]
    old = (freezer / "freezer.state").exists()
    state, on, off = ("freezer.state", "FROZEN", "THAWED") if old else ("cgroup.freeze", "1", "0")
    (freezer / state).write_text(on)
    try:
        for pid in (freezer / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
    finally:
        (freezer / state).write_text(off)


@pytest.mark.realtime
def test_it_outlives_a_container_of_which_everything_is_killed(
    node: BenchNode, kernel: Kernel, tmp_path: Path, container: list[Path]
) -> None:
    original, state = kernel.read(), tmp_path / "state"
    with controller(node, state, mode="leave", groups=container) as victim:
        assert kernel.read() != original
        inside = {int(pid) for group in container for pid in (group / "cgroup.procs").read_text().split()}
        assert victim.process.pid in inside
        assert victim.facts["groups"] == "left"
        assert victim.supervisor not in inside
        with on_time():
            kill_all(container)
            took_s = wait_for(lambda: kernel.read() == original)
        assert took_s < 10 * ALLOWED_S
        assert restored(state)["cause"] == "died"


def test_a_supervisor_that_was_killed_is_started_again_and_does_its_work(
    node: BenchNode, kernel: Kernel, tmp_path: Path
) -> None:
    original = kernel.read()
    with controller(node, tmp_path) as running:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(running.supervisor, number)
        time.sleep(0.2)
        assert start_ticks(running.supervisor) is not None, "it stays as long as its controller"
        os.kill(running.supervisor, signal.SIGKILL)
        notes = running.next_line()
        assert (notes["restarts"], notes["alive"]) == (1, True)
        assert notes["pid"] != running.supervisor
        assert kernel.read() != original
        running.kill()
        wait_for(lambda: kernel.read() == original)
        wait_for(lambda: start_ticks(notes["pid"]) is None)


def command(*arguments: str | Path) -> Result:
    app = typer.Typer()
    app.command()(restore)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_command_restores_what_two_killed_processes_have_left(
    node: BenchNode, kernel: Kernel, tmp_path: Path
) -> None:
    original = kernel.read()
    with controller(node, tmp_path / "one") as running:
        refused = command("--state", tmp_path, "--name", "one").exception
        assert isinstance(refused, ConfigError)
        assert f"controlled by process {running.process.pid}; expected one controller" in str(refused)
        assert json.loads(command("--state", tmp_path, "--json").stdout) == [], "a living controller is left alone"
        os.kill(running.process.pid, signal.SIGSTOP)
        os.kill(running.supervisor, signal.SIGKILL)
        running.kill()
    done = command("--state", tmp_path, "--json")
    [report] = json.loads(done.stdout)
    assert (report["name"], len(report["restored"]), report["failed"], done.exit_code) == ("one", 20, [], 0)
    assert kernel.read() == original
    assert "nothing to restore" in command("--state", tmp_path, "--name", "one").stdout
    with pytest.raises(ConfigError, match=r"state = .*none'; expected a directory"):
        raise command("--state", tmp_path / "none").exception or AssertionError


def test_a_good_end_needs_no_supervisor_and_leaves_nothing(node: BenchNode, kernel: Kernel, tmp_path: Path) -> None:
    original = kernel.read()
    with controller(node, tmp_path, mode="stop") as running:
        (tmp_path / "stop").touch()
        assert running.process.wait(10) == 0
        assert kernel.read() == original
    assert not journal_path(tmp_path).exists()
    assert not (tmp_path / "restored.json").exists()


def test_a_second_controller_is_refused_as_long_as_the_first_or_its_supervisor_lives(
    node: BenchNode, tmp_path: Path
) -> None:
    slices = {f"slice {target.name}": target.group for target in node.targets}
    with controller(node, tmp_path) as running:
        first = node.targets[0].name
        with pytest.raises(
            ConfigError, match=f"slice {first}: .* is controlled by process {running.process.pid}; expec"
        ):
            Locks(slices)
        os.kill(running.supervisor, signal.SIGSTOP)
        running.kill()
        heir = f"process {running.supervisor}, the supervisor of process {running.process.pid}, which has ended; it is"
        with pytest.raises(ConfigError, match=f"is controlled by {heir} stopped: continue it .kill -CONT"):
            Locks(slices, patience_s=0.2)
        os.kill(running.supervisor, signal.SIGCONT)
        with Locks(slices, patience_s=5.0):
            pass


def test_a_journal_of_another_boot_is_removed(node: BenchNode, kernel: Kernel, tmp_path: Path) -> None:
    keeper = JournalKeeper(tmp_path, node.targets)
    with pytest.raises(ConfigError, match=f"its controller, process {os.getpid()}, is running"):
        recover(tmp_path)
    other = dataclasses.replace(keeper.journal, boot_id="00000000-0000-4000-8000-000000000000")
    keeper.path.write_bytes(other.dump())
    before = kernel.read()
    assert "the machine has rebooted" in str(recover(tmp_path))
    assert kernel.read() == before
    assert recover(tmp_path) is None


def test_without_room_for_the_journal_nothing_is_written(
    node: BenchNode, kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    monkeypatch.setattr(lock, "FOR_ROOT", small)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k,mode=700", "none", str(small)], check=True)
    try:
        with contextlib.suppress(OSError), (small / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))
        before = kernel.read()
        with pytest.raises(ActuatorError, match=r"write the journal: No space left .*\(ENOSPC\)"):
            JournalKeeper(tmp_path / "state", node.targets)
        assert [path.name for path in small.iterdir()] == ["filler"]
        assert kernel.read() == before
    finally:
        subprocess.run(["umount", str(small)], check=True)
