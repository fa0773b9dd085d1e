"""Whatever has befallen a UPF that somebody else runs, what was moved is back within 50 ms of a SIGKILL."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.effort import repetitions

from .foreign import Foreign, restored_ms
from .machine import children
from .runtimes import until
from .test_foreign import controller, knobs, measured

pytestmark = [
    pytest.mark.realtime,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: cgroups and network namespaces"),
]
ALLOWED_MS = 50.0
NUMBER = 2  # of the UPF that it befalls


def nothing(foreign: Foreign) -> Callable[[], None]:
    """No fault but the SIGKILL."""
    return lambda: None


def restarted(foreign: Foreign) -> Callable[[], None]:
    """The UPF dies; its cgroup is removed, and made again by its service manager."""
    foreign.stop_upf(NUMBER)
    foreign.remove_group(NUMBER)
    foreign.start_upf(NUMBER)
    return lambda: None


def away(foreign: Foreign) -> Callable[[], None]:
    """The UPF dies, and its cgroup is removed; nobody starts it."""
    foreign.stop_upf(NUMBER)
    foreign.remove_group(NUMBER)
    return lambda: foreign.start_upf(NUMBER)


def moved(foreign: Foreign) -> Callable[[], None]:
    """The UPF is moved to another cgroup."""
    other = foreign.group(NUMBER).with_name("elsewhere")
    other.mkdir(exist_ok=True)
    (other / "cgroup.procs").write_text(str(foreign.pid(NUMBER)))

    def back() -> None:
        (foreign.group(NUMBER) / "cgroup.procs").write_text(str(foreign.pid(NUMBER)))
        other.rmdir()

    return back


def in_another_namespace(foreign: Foreign) -> Callable[[], None]:
    """Its network namespace is removed, another of that name is made, and it starts there."""
    foreign.stop_upf(NUMBER)
    foreign.replace_netns(NUMBER)
    foreign.start_upf(NUMBER)
    return lambda: None


FAULTS = [nothing, restarted, away, moved, in_another_namespace]
FOLLOWED = {restarted, moved, in_another_namespace}


def tcx_links(*pids: int) -> set[str]:
    """Of processes, by the kernel's numbers."""
    reported = []
    for pid in pids:
        for file in Path(f"/proc/{pid}/fdinfo").iterdir():
            with contextlib.suppress(OSError):
                reported.append(file.read_text().split())
    return {item[item.index("link_id:") + 1] for item in reported if "tcx" in item}


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """Programs that want every CPU for themselves."""
    with contextlib.ExitStack() as undo:
        for _ in os.sched_getaffinity(0):
            process = undo.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            undo.callback(process.kill)
        yield


@pytest.mark.parametrize("fault", FAULTS)
def test_sigkill_after_a_fault(
    foreign: Foreign, node: Path, tmp_path: Path, fault: Callable[[Foreign], Callable[[], None]]
) -> None:
    took_ms, before = [], knobs(foreign)
    for _ in range(repetitions(4 if fault is nothing else 2, 4)):
        with controller(node, foreign, tmp_path) as running:
            foreign.load(seconds=8 if fault in FOLLOWED else 3, mbps=4)
            until(lambda: knobs(foreign) != before, "not moved")
            until(lambda: measured(running, NUMBER), "not measured")
            back = fault(foreign)
            if fault in FOLLOWED:
                time.sleep(0.1)
                until(lambda: measured(running, NUMBER), "not measured again")
            # Whoever restores egress rates has what would hold the kernel's lock of interfaces as it is taken off.
            until(lambda: tcx_links(running.pid) <= tcx_links(*children(running.pid)), "links that nobody else has")
            assert len(tcx_links(running.pid)) >= 2 * len(foreign.netns)
            with busy():
                took_ms.append(restored_ms(running.pid, tmp_path / "state"))
            back()
        assert knobs(foreign) == before
        foreign.stop_loads()
    median, p99 = np.quantile(took_ms, [0.5, 0.99])
    print(f"\n{fault.__name__}: {len(took_ms)} times, median {median:.1f} ms, p99 {p99:.1f}, worst {max(took_ms):.1f}")
    assert p99 < ALLOWED_MS
