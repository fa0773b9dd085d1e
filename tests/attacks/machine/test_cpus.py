"""CPUs that go and come, and cpusets that shrink: the loop goes on, and the number of CPUs that it uses is right."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from slicepilot.agents.heuristics.queue_greedy import QueueGreedy
from slicepilot.controller.system.cores import online_cpus
from slicepilot.env.telemetry import Telemetry
from slicepilot.node.live.backend import NodeBackend
from tests.node.foreign import Foreign
from tests.node.test_binding import backend_of
from tests.node.test_foreign import controller, knobs, measured, until

from .faults import (
    IN_REAL_TIME_AS_ROOT,
    LAST_CPU,
    NOTICED_S,
    UPFS,
    cpu_away,
    cpuset,
    hotplug,
    nothing_reported,
    pids,
    reported,
    spinning,
    ticking,
    two_cpus,
)

pytestmark = IN_REAL_TIME_AS_ROOT


@hotplug
def test_a_policy_counts_with_the_cpus_that_are_online(foreign: Foreign) -> None:
    """And what is idle is a share of these: a CPU that is away is neither idle nor busy."""
    cpus, others = len(online_cpus()), sorted(online_cpus() - {LAST_CPU})
    with backend_of(foreign) as backend, backend.real_time():
        agent = QueueGreedy()
        agent.reset(backend.slices, backend.context, 0)
        agent.decide(backend.start(), backend.receipt.applied)
        assert backend.check() == []
        assert backend.context.logical_cpus.tolist() == [cpus]
        for busy_cpus in ([], others, others):
            with contextlib.ExitStack() as undo:
                for cpu in busy_cpus:
                    undo.enter_context(spinning(cpu))
                with cpu_away():
                    time.sleep(0.2)
                    [line] = backend.check()
                    assert line == f"CPUs that the slices may use: {cpus - 1}, {cpus} at the start"
                    assert backend.context.logical_cpus.tolist() == [cpus - 1]
                    telemetry, idle, kernels = idle_ratios(backend, cpus - 1)
                    print(f"\nidle, of {cpus - 1} CPUs: {idle:.3f}; the kernel's own account: {kernels:.3f}")
                    assert idle == pytest.approx(kernels, abs=0.15)
                    agent.decide(telemetry, backend.receipt.applied)
            assert backend.check() == []
            assert backend.context.logical_cpus.tolist() == [cpus]
            _, idle, kernels = idle_ratios(backend, cpus)
            assert idle == pytest.approx(kernels, abs=0.15)
            assert idle <= 1.01


def idle_ratios(backend: NodeBackend, cpus: int) -> tuple[Telemetry, float, float]:
    """Of half a second: what is measured, its idle ratio, and the kernel's own."""
    backend.source.measure()
    before, began = idle_s(), time.monotonic()
    time.sleep(0.5)
    telemetry = backend.source.measure()
    return telemetry, float(telemetry.cpu_idle_ratio[0]), (idle_s() - before) / (time.monotonic() - began) / cpus


def idle_s() -> float:
    """Of all CPUs together, as the kernel counts it."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("fault", [pytest.param("offline", marks=hotplug), pytest.param("cpuset", marks=two_cpus)])
def test_a_controller_goes_on_while_cpus_go_and_come(foreign: Foreign, node: Path, tmp_path: Path, fault: str) -> None:
    """A CPU is taken offline, or the UPFs' cpuset shrinks to a single CPU."""
    before = knobs(foreign)
    with controller(node, foreign, tmp_path) as running, contextlib.ExitStack() as undo:
        away = cpu_away if fault == "offline" else undo.enter_context(shrinking(foreign))
        foreign.load(seconds=14, mbps=4)
        until(lambda: all(measured(running, number) for number in range(1, UPFS + 1)), "not measured")
        assert not running.notes()["unmeasured"]
        took = []
        for _ in range(3):
            with away():
                took.append(reported(running, "CPUs that the slices may use"))
                ticking(running)
            nothing_reported(running)
            assert all(measured(running, number) for number in range(1, UPFS + 1))
        print(f"\nreported after {np.round(took, 2)} s")
        assert max(took) < NOTICED_S
        assert knobs(foreign) != before
    assert running.process.returncode == 0
    assert knobs(foreign) == before
    assert min(foreign.carried_mbps()) > 3.0


@contextlib.contextmanager
def shrinking(foreign: Foreign) -> Iterator[Callable[[], contextlib.AbstractContextManager[None]]]:
    """The UPFs are in a cpuset, which has one CPU for as long as the block of what this yields."""
    with cpuset("upfs", f"0-{LAST_CPU}", *pids(foreign)) as group:

        @contextlib.contextmanager
        def shrunk() -> Iterator[None]:
            (group / "cpuset.cpus").write_text("0")
            yield
            (group / "cpuset.cpus").write_text(f"0-{LAST_CPU}")

        yield shrunk


@two_cpus
def test_what_is_idle_is_what_the_slices_could_use(foreign: Foreign) -> None:
    """In a cpuset of one CPU that is busy they have none left, however idle the others are; and back."""
    cpus = len(online_cpus())
    with backend_of(foreign, upf_threads=2) as backend, cpuset("upfs", "0", *pids(foreign)) as group, spinning(0):
        backend.start()
        lines = backend.check()
        assert lines[0] == "slice1: can use 1 CPUs, 2 at the start: it may run on 1 of them only"
        assert lines[-1] == f"CPUs that the slices may use: 1, {cpus} at the start"
        assert backend.context.logical_cpus.tolist() == [1.0]
        backend.source.measure()
        time.sleep(0.5)
        assert backend.source.measure().cpu_idle_ratio[0] < 0.1
        (group / "cpuset.cpus").write_text(f"0-{LAST_CPU}")
        assert backend.check() == []
        assert backend.context.logical_cpus.tolist() == [cpus]


@two_cpus
def test_a_controller_in_a_cpuset_with_a_busy_upf_goes_on(foreign: Foreign, node: Path, tmp_path: Path) -> None:
    """Which CPUs the controller may use says nothing of the node's, at the start or later."""
    before, own = knobs(foreign), os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {0})
        with controller(node, foreign, tmp_path) as running, spinning(0):
            with closing(running.reader()) as reader:
                assert reader.description()[1]["logical_cpus"] == len(own)
            with cpuset("shared", "0", running.pid, foreign.pid(1)):
                foreign.load(seconds=4, mbps=12)
                until(lambda: measured(running, 1), "not measured")
                missed, ticks = running.notes()["totals"]["missed_ticks"], running.ticks()
                time.sleep(2.5)
                lost = running.notes()["totals"]["missed_ticks"] - missed
                ticks = running.ticks() - ticks
                print(f"\n{lost} of {ticks + lost} ticks missed")
                assert ticks > 100
                assert not running.notes()["unmeasured"]
    finally:
        os.sched_setaffinity(0, own)
    assert knobs(foreign) == before
    foreign.carried_mbps()
