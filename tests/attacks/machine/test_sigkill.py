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
def occurring(fault: str, foreign: Foreign, running: Controller) -> Iterator[None]:
    with contextlib.ExitStack() as undo:
        if fault == "CPU taken away":
            undo.enter_context(cpu_away())
        elif fault == "CPU back again":
            with cpu_away():
                reported(running, "CPUs that the slices may use")
        elif fault == "cpuset of the UPFs shrunk":
            group = undo.enter_context(cpuset("upfs", f"0-{LAST_CPU}", *pids(foreign)))
            (group / "cpuset.cpus").write_text("0")
        elif fault == "all on a busy CPU":
            undo.enter_context(cpuset("shared", "0", running.pid, running.supervisor, foreign.pid(1)))
            undo.enter_context(spinning(0))
        elif fault == "UPF restarted with other clocks":
            undo.enter_context(with_clocks(foreign, 2, 100_000))
            until(lambda: measured(running, 2), "not measured again")
        elif fault == "full tables":
            undo.enter_context(flood(foreign, 3, tunnels(3, 60_000), per_s=10_000))
            time.sleep(1.0)
        else:
            undo.enter_context(bandwidth(foreign.group(2), 1000, 1_000_000))
            until(lambda: bool(running.notes()["foreign"]), "not noticed", 5.0)
        yield


FAULTS = [
    *(pytest.param(fault, marks=hotplug) for fault in ("CPU taken away", "CPU back again")),
    *(pytest.param(fault, marks=two_cpus) for fault in ("cpuset of the UPFs shrunk", "all on a busy CPU")),
    pytest.param("UPF restarted with other clocks", marks=able),
    *("full tables", "least quota set by others"),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_sigkill_meanwhile(foreign: Foreign, node: Path, tmp_path: Path, fault: str) -> None:
    took_ms, before = [], knobs(foreign)
    for _ in range(repetitions(2, 3)):
        with controller(node, foreign, tmp_path) as running:
            foreign.load(seconds=8 if "clocks" in fault else 3, mbps=4)
            until(lambda: knobs(foreign) != before, "not moved")
            until(lambda: measured(running, 2), "not measured")
            with occurring(fault, foreign, running), busy():
                took_ms.append(restored_ms(running.pid, tmp_path / "state"))
        assert knobs(foreign) == before
        foreign.carried_mbps()
    median, p99 = np.quantile(took_ms, [0.5, 0.99])
    print(f"\n{fault}: {len(took_ms)} times, median {median:.1f} ms, p99 {p99:.1f}, worst {max(took_ms):.1f}")
    assert p99 < ALLOWED_MS
