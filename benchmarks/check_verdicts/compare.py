"""`node check` and `node check --try` beside what the kernel does, on random set-ups of a UPF's cgroup.

Each set-up draws a CPU limit and its period, a burst, `cpu.idle`, a limit of the group above, the CPUs that the UPF may
use, whether another UPF is beside it, real-time threads, load and work on each packet. What is true is measured without
the code under test, before it runs: a quota, a weight (beside processes that want all CPUs) and a token bucket are set
by hand, back and forth, and packets are counted where they leave. Files of cgroup version 1.

Run as root: ``python -m benchmarks.check_verdicts.compare OUT``. Set-ups that are done are kept in OUT, so that a run
that was stopped goes on. Prints a table and JSON; exit code 1 if a verdict is wrong or more than a fifth are not known.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from benchmarks.busy import busy

from slicepilot.testbed.lifecycle.cgroups import write
from tests.node.foreign import Foreign

KNOBS = ("cpu_limit", "nice", "egress")
FELT = 0.85
"""A knob acts if the slice carries less than this times as much while it is moved to half of what it used."""
PHASE_S, SETTLE_S, PAIRS, MOST_PAIRS = 0.8, 0.3, 3, 15
MOST_UNKNOWN = 0.2
RT_RUNTIME_US = 500_000
"""Of a second, for real-time threads of a group."""


@dataclass(frozen=True)
class Setup:
    """A UPF's surroundings; ``limit`` and ``parent_limit`` in CPUs, None for none."""

    limit: float | None
    period_ms: int
    burst: bool
    idle: bool
    parent_limit: float | None
    one_cpu: bool
    beside: bool
    realtime: bool
    burn_us: int
    mbps: float

    @classmethod
    def draw(cls, rng: np.random.Generator) -> Setup:
        """At random."""
        limit = None if rng.random() < 0.35 else float(rng.uniform(0.4, 0.9))
        return cls(
            limit=None if limit is None else round(limit, 2),
            period_ms=int(rng.choice([10, 50, 100, 100, 250])),
            burst=limit is not None and rng.random() < 0.4,
            idle=bool(rng.random() < 0.2),
            parent_limit=round(float(rng.uniform(1.0, 1.6)), 2) if rng.random() < 0.3 else None,
            one_cpu=bool(rng.random() < 0.3),
            beside=bool(rng.random() < 0.7),
            realtime=bool(rng.random() < 0.1),
            burn_us=int(rng.choice([300, 600, 900])),
            mbps=round(float(rng.uniform(2.0, 4.0)), 1),
        )

    def __str__(self) -> str:
        limit = "none" if self.limit is None else f"{self.limit:g}/{self.period_ms} ms"
        names = [name for name in ("burst", "idle", "one_cpu", "beside", "realtime") if getattr(self, name)]
        above = [] if self.parent_limit is None else [f"above {self.parent_limit:g}"]
        return ", ".join([f"limit {limit}", *above, *names, f"{self.burn_us} us", f"{self.mbps:g} Mbit/s"])


class Site:
    """A set-up that runs; the first UPF is judged."""

    def __init__(self, setup: Setup, folder: Path) -> None:
        self.setup = setup
        folder.mkdir(parents=True, exist_ok=True)
        burn = str(1000 * setup.burn_us)
        self.foreign = Foreign(folder, count=1 + setup.beside, prefix="cv", BURN_NS=burn)
        self.group, self.pid = self.foreign.group(1), self.foreign.pid(1)
        try:
            self._prepare()
        except BaseException:
            self.foreign.down()
            raise
        self.node = folder / "node.yaml"
        document = self.foreign.slice("slice1", 1)
        self.node.write_text(yaml.safe_dump({"name": self.foreign.prefix, "slices": [document]}))

    def _prepare(self) -> None:
        setup, parent = self.setup, self.group.parent
        if setup.parent_limit is not None:
            write(parent / "cpu.cfs_quota_us", round(1e5 * setup.parent_limit))
        write(self.group / "cpu.cfs_period_us", 1000 * setup.period_ms)
        if setup.limit is not None:
            quota_us = round(1000 * setup.period_ms * setup.limit)
            write(self.group / "cpu.cfs_quota_us", quota_us)
            if setup.burst:
                write(self.group / "cpu.cfs_burst_us", quota_us)
        if setup.idle:
            write(self.group / "cpu.idle", 1)
        if setup.realtime:  # a group has no real-time runtime of its own, and refuses such threads (sched-rt-group.rst)
            for above in (parent, self.group):
                write(above / "cpu.rt_runtime_us", RT_RUNTIME_US)
        for thread in Path(f"/proc/{self.pid}/task").iterdir():
            if setup.one_cpu:
                os.sched_setaffinity(int(thread.name), {min(os.sched_getaffinity(0))})
            if setup.realtime:
                os.sched_setscheduler(int(thread.name), os.SCHED_FIFO, os.sched_param(1))

    # -- what is true ------------------------------------------------------------------------------------------

    def truth(self) -> dict[str, bool]:
        """Whether each knob acts, as the kernel has it."""
        used_s, rate = self._watch(2 * PHASE_S)
        bandwidth = [(name, read(self.group, name)) for name in ("cpu.cfs_quota_us", "cpu.cfs_burst_us")]
        period_us = int(read(self.group, "cpu.cfs_period_us"))
        quota_us = max(1000, round(0.5 * used_s * period_us))

        def limited() -> None:
            write(self.group / "cpu.cfs_burst_us", 0)
            write(self.group / "cpu.cfs_quota_us", quota_us)

        def unlimited() -> None:
            for name, value in bandwidth:
                write(self.group / name, value)

        shaper = ["tc", "-n", self.foreign.netns[0], "qdisc"]
        bits = max(1000, round(8 * 0.5 * rate))
        bucket = ["root", "tbf", "rate", f"{bits}bit", "burst", "4kb", "limit", "64kb"]
        result = {
            "cpu_limit": self._acts(limited, unlimited),
            "egress": self._acts(
                lambda: run(*shaper, "replace", "dev", "n6", *bucket), lambda: run(*shaper, "del", "dev", "n6", "root")
            ),
        }
        shares = read(self.group, "cpu.shares")
        with self._hogs():
            result["nice"] = self._acts(
                lambda: write(self.group / "cpu.shares", 8), lambda: write(self.group / "cpu.shares", 1 << 16)
            )
        if not self.setup.idle:
            write(self.group / "cpu.shares", shares)
        return result

    def _acts(self, move: Callable[[], object], back: Callable[[], object]) -> bool:
        rates: list[tuple[float, float]] = []
        while len(rates) < PAIRS or (len(rates) < MOST_PAIRS and not _steady(rates)):
            try:
                move()
            except OSError:  # the kernel refuses it
                return False
            moved = self._watch(PHASE_S)[1]
            back()
            rates.append((self._watch(PHASE_S)[1], moved))
        plain, moved_rates = np.asarray(rates).T
        return bool(np.median(moved_rates / np.maximum(plain, 1.0)) < FELT)

    @contextlib.contextmanager
    def _hogs(self) -> Iterator[None]:
        """Processes that want the UPF's CPUs: in the group beside it, or else beside the group above."""
        cpus = os.sched_getaffinity(self.pid)
        home = self.foreign.group(2) if self.setup.beside else self.group.parent.parent
        with busy(2 * len(cpus), 60) as processes:
            for process in processes:
                os.sched_setaffinity(process.pid, cpus)
                write(home / "cgroup.procs", process.pid)
            yield

    def _watch(self, seconds: float) -> tuple[float, float]:
        """CPU time of the UPF, in CPUs, and octets a second that leave it; after a while in which it settles."""
        time.sleep(SETTLE_S)
        started, used, left = time.monotonic(), self._used_s(), self._left()
        time.sleep(seconds)
        took = time.monotonic() - started
        return (self._used_s() - used) / took, (self._left() - left) / took

    def _used_s(self) -> float:
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return 1e-9 * sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)

    def _left(self) -> int:
        done = run("ip", "-n", f"{self.foreign.prefix}-dn", "-j", "-s", "link", "show", "n6-1")
        return int(json.loads(done)[0]["stats64"]["rx"]["bytes"])

    # -- what is said ------------------------------------------------------------------------------------------

    def said(self, *options: str) -> dict[str, Any]:
        """Verdicts of ``node check``, by knob: true, false, or None for not known yet."""
        command = [sys.executable, "-m", "slicepilot.cli", "node", "check", str(self.node), "--seconds", "2", "--json"]
        done = subprocess.run([*command, *options], stdout=subprocess.PIPE, text=True, check=False)
        [result] = json.loads(done.stdout)
        return {knob: result["knobs"][knob] for knob in KNOBS}


def _steady(rates: list[tuple[float, float]]) -> bool:
    """Whether a slice carries about the same in all phases without the knob; else it takes more of them."""
    plain = [rate for rate, _ in rates]
    return min(plain) > FELT * max(plain)


def run(*command: str) -> str:
    """What a command prints; raises CalledProcessError."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def read(group: Path, name: str) -> str:
    """What a file of a group has."""
    return (group / name).read_text().strip()


def played(setup: Setup, folder: Path) -> dict[str, Any]:
    """What is true of a set-up, and what is said of it."""
    file = folder / "result.json"
    if not file.exists():
        if folder.exists():  # of a run that was stopped: process ids in it may be anybody's by now
            shutil.rmtree(folder)
        site = Site(setup, folder)
        try:
            site.foreign.load(600, setup.mbps)
            time.sleep(2 * SETTLE_S)
            result = {"truth": site.truth(), "check": site.said(), "try": site.said("--try")}
        finally:
            site.foreign.stop_loads()
            site.foreign.down()
        file.write_text(json.dumps({"setup": asdict(setup)} | result))
    done: dict[str, Any] = json.loads(file.read_text())
    return done


def mark(said: bool | None, truth: bool) -> str:
    """``right``, ``wrong`` or ``not known``."""
    return "not known" if said is None else "right" if said is truth else "wrong"


def main() -> None:
    """Draw, play and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=33)
    parser.add_argument("--setups", type=int, default=20)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    counts = {way: {"right": 0, "wrong": 0, "not known": 0} for way in ("check", "try")}
    for number in range(options.setups):
        setup = Setup.draw(rng)
        result = played(setup, options.out / f"{options.seed}-{number:02d}")
        print(f"{number:2d}  {setup}", flush=True)
        for knob in KNOBS:
            truth, parts = result["truth"][knob], []
            for way, count in counts.items():
                said = result[way][knob]
                which = mark(said["authority"], truth)
                count[which] += 1
                parts.append(f"{way} {which}" + (f" ({said['why']})" if which != "right" else ""))
            print(f"    {knob:10s} {'acts' if truth else 'does not act':12s}  {'; '.join(parts)}", flush=True)
    total = options.setups * len(KNOBS)
    print(json.dumps({"seed": options.seed, "setups": options.setups, "verdicts": total} | counts))
    if any(count["wrong"] or count["not known"] > MOST_UNKNOWN * total for count in counts.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
