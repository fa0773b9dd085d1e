"""How long the loop stands still while somebody else's network interfaces are removed, thousands at once.

    python -m tests.attacks.hostile.rtnetlink [--pairs 1500 9000]

As root. Removing a network namespace takes the kernel's lock of rtnetlink for as long as its interfaces go
(net/core/net_namespace.c, cleanup_net; net/core/dev.c, default_device_exit_batch). Whoever may make a user namespace
may make, and remove, a network namespace full of them.

The kernel does that in a work queue, and where it was built to be preempted nowhere (CONFIG_PREEMPT_NONE) whatever is
to run on that CPU waits, the loop's thread as well. So it is measured twice: as it is, and with the loop on a CPU of
its own (``cpu: 0``), from which such work is kept (``/sys/devices/virtual/workqueue/cpumask``).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tests.node.foreign import Foreign
from tests.node.test_foreign import controller, document_of, knobs, until

COUNT, MBPS = 2, 8.0
WORK_CPUS = Path("/sys/devices/virtual/workqueue/cpumask")
AFTER_S = 5.0


@contextlib.contextmanager
def many_interfaces(netns: str, pairs: int) -> Iterator[None]:
    """A namespace with so many pairs, which is gone at the end."""
    subprocess.run(["ip", "netns", "add", netns], check=True)
    try:
        made = "".join(f"link add a{i} type veth peer name b{i}\n" for i in range(pairs))
        subprocess.run(["ip", "-n", netns, "-batch", "-"], input=made, text=True, check=True)
        yield
    finally:
        subprocess.run(["ip", "netns", "delete", netns], check=False, capture_output=True)


@contextlib.contextmanager
def work_kept_from(cpu: int) -> Iterator[None]:
    """Unbound work queues of the kernel run on the other CPUs meanwhile."""
    before = WORK_CPUS.read_text()
    others = sum(1 << other for other in os.sched_getaffinity(0) if other != cpu)
    WORK_CPUS.write_text(f"{others:x}")
    try:
        yield
    finally:
        WORK_CPUS.write_text(before)


def longest_gap_ms(foreign: Foreign, folder: Path, pairs: int, **config: Any) -> tuple[float, float]:
    """Of a controller's ticks, in ms: without, and while so many pairs of interfaces are removed."""
    (folder / "node.yaml").write_text(yaml.safe_dump(document_of(foreign)))
    before, netns = knobs(foreign), f"{foreign.prefix}-many"
    with controller(folder / "node.yaml", foreign, folder, **config) as running:
        until(lambda: knobs(foreign) != before, "not moved")
        foreign.load(seconds=30, mbps=MBPS)
        with many_interfaces(netns, pairs):
            time.sleep(AFTER_S)
            found = []
            for remove in (False, True):
                since_ns = time.monotonic_ns()
                if remove:
                    subprocess.run(["ip", "netns", "delete", netns], check=True)
                time.sleep(AFTER_S)
                with closing(running.reader()) as reader:
                    ticks = reader.last(4000)["monotonic_ns"]
                found.append(float(np.diff(ticks[ticks > since_ns]).max()) * 1e-6)
    foreign.carried_mbps()
    return found[0], found[1]


def main(arguments: list[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs="+", default=[1500, 9000])
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        foreign = Foreign(folder, count=COUNT, prefix="fm")
        try:
            for pairs in options.pairs:
                without, removed = longest_gap_ms(foreign, folder, pairs)
                with work_kept_from(0):
                    _, apart = longest_gap_ms(foreign, folder, pairs, cpu=0)
                print(
                    f"{pairs:6} pairs: longest gap {without:.0f} ms, {removed:.0f} ms while they are removed, "
                    f"{apart:.0f} ms with such work kept from the loop's CPU"
                )
        finally:
            foreign.down()


if __name__ == "__main__":
    main(sys.argv[1:])
