"""SIGKILL while the machine changes below the controller: all is as it was within 50 ms."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from slicepilot.testbed.bench.rig import Controller
from tests.effort import repetitions
from tests.node.foreign import Foreign, restored_ms
from tests.node.test_faults import ALLOWED_MS, busy
from tests.node.test_foreign import controller, knobs, measured, until

from .faults import (
    IN_REAL_TIME_AS_ROOT,
    LAST_CPU,
    Fault,
    able,
    bandwidth,
    cpu_away,
    cpuset,
    flood,
    hotplug,
    pids,
    reported,
    spinning,
    tunnels,
    two_cpus,
    with_clocks,
)

pytestmark = IN_REAL_TIME_AS_ROOT


@contextlib.contextmanager
def a_cpu_away(foreign: Foreign, running: Controller) -> Iterator[None]:
    """A CPU has just been taken away."""
    with cpu_away():
        yield


@contextlib.contextmanager
def a_cpu_back(foreign: Foreign, running: Controller) -> Iterator[None]:
    """It was away and has just come back."""
    with cpu_away():
        reported(running, "CPUs that the slices may use")
    yield


@contextlib.contextmanager
def upfs_in_one_cpu(foreign: Foreign, running: Controller) -> Iterator[None]:
    """Their cpuset has just shrunk."""
    with cpuset("upfs", f"0-{LAST_CPU}", *pids(foreign)) as group:
        (group / "cpuset.cpus").write_text("0")
        yield


@contextlib.contextmanager
def all_in_one_cpu(foreign: Foreign, running: Controller) -> Iterator[None]:
    """Controller, supervisor and a busy UPF share one CPU."""
    with cpuset("shared", "0", running.pid, running.supervisor, foreign.pid(1)), spinning(0):
        yield


@contextlib.contextmanager
def a_upf_of_other_clocks(foreign: Foreign, running: Controller) -> Iterator[None]:
    """A UPF has restarted with other clocks."""
    with with_clocks(foreign, 2, 100_000):
        until(lambda: measured(running, 2), "not measured again")
        yield


@contextlib.contextmanager
def full_tables(foreign: Foreign, running: Controller) -> Iterator[None]:
    """Tunnels without number, as fast as they can be sent."""
    with flood(foreign, 3, tunnels(3, 60_000), per_s=10_000):
        time.sleep(1.0)
        yield


@contextlib.contextmanager
def the_least_quota(foreign: Foreign, running: Controller) -> Iterator[None]:
    """Somebody has limited a UPF to a thousandth of a CPU, which stays theirs."""
    with bandwidth(foreign.group(2), 1000, 1_000_000):
        until(lambda: bool(running.notes()["foreign"]), "not noticed", 5.0)
        yield


FAULTS = [
    pytest.param(a_cpu_away, marks=hotplug),
    pytest.param(a_cpu_back, marks=hotplug),
    pytest.param(upfs_in_one_cpu, marks=two_cpus),
    pytest.param(all_in_one_cpu, marks=two_cpus),
    pytest.param(a_upf_of_other_clocks, marks=able),
    full_tables,
    the_least_quota,
]


@pytest.mark.parametrize("fault", FAULTS)
def test_sigkill_meanwhile(foreign: Foreign, node: Path, tmp_path: Path, fault: Fault) -> None:
    took_ms, before = [], knobs(foreign)
    for _ in range(repetitions(2, 3)):
        with controller(node, foreign, tmp_path) as running:
            foreign.load(seconds=8 if fault is a_upf_of_other_clocks else 3, mbps=4)
            until(lambda: knobs(foreign) != before, "not moved")
            until(lambda: measured(running, 2), "not measured")
            with fault(foreign, running), busy():
                took_ms.append(restored_ms(running.pid, tmp_path / "state"))
        assert knobs(foreign) == before
        foreign.carried_mbps()
    median, p99 = np.quantile(took_ms, [0.5, 0.99])
    print(f"\n{fault.__name__}: {len(took_ms)} times, median {median:.1f} ms, p99 {p99:.1f}, worst {max(took_ms):.1f}")
    assert p99 < ALLOWED_MS
