"""An operator's hour in fast motion: a live controller under loads that change at random, and fault after fault.

After each fault it is seen to that the knobs are under control, or were restored and are under control again; all the
while what its processes use is written down, for what grows.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from slicepilot.env.simulator.scenario import Load, LoadKind, Scenario
from slicepilot.testbed.lifecycle.processes import ProgramError
from slicepilot.testbed.lifecycle.testbed import Testbed

from . import faults
from .faults import publisher_pid
from .rig import Rig

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
COUNTED = ("ticks", "missed_ticks", "late_ticks")
SAMPLE_S = 5.0
RESTORE_LIMIT_S = 10.0
WARM_S = 30.0
"""A young process still takes memory for what it does for the first time; this is not what a leak looks like."""


@dataclass(frozen=True)
class Event:
    """One fault and what became of it.

    Attributes:
        at_s: since the start.
        fault: its name.
        restored_s: until the knobs had their original values, if they had to; None where the controller went on.
        failure: what went wrong; empty if nothing did.
    """

    at_s: float
    fault: str
    restored_s: float | None = None
    failure: str = ""


@dataclass(frozen=True)
class Resources:
    """Resources that a process uses at a moment, from /proc (proc(5)).

    Attributes:
        resident_kb: memory, without pages it shares with files.
        descriptors, threads: open now.
    """

    resident_kb: float
    descriptors: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> Resources:
        """Raises OSError when it has gone."""
        folder = Path(f"/proc/{pid}")
        resident, shared = map(int, (folder / "statm").read_text().split()[1:3])
        return cls(
            resident_kb=(resident - shared) * PAGE_BYTES / 1024,
            descriptors=len(list((folder / "fd").iterdir())),
            threads=len(list((folder / "task").iterdir())),
        )


@dataclass(frozen=True)
class Sample:
    """Resources that a process used at a moment."""

    process: str
    pid: int
    age_s: float
    used: Resources


@dataclass
class Soak:
    """The result of a soak.

    Attributes:
        events: faults, in order.
        samples: of the loop's process, the publisher and the supervisor.
        ticks, missed_ticks, late_ticks: of all controllers together.
        crashes: ends of a controller that no fault caused.
    """

    events: list[Event] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    ticks: int = 0
    missed_ticks: int = 0
    late_ticks: int = 0
    crashes: list[str] = field(default_factory=list)

    def growth(self, process: str, figure: str) -> float:
        """The most that a process of a kind gained of a figure from its first sample past `WARM_S` to its last."""
        gains = [0.0]
        mine = [item for item in self.samples if item.process == process and item.age_s > WARM_S]
        for pid in {item.pid for item in mine}:
            own = [getattr(item.used, figure) for item in mine if item.pid == pid]
            gains.append(float(own[-1] - own[0]))
        return max(gains)


class SoakRun:
    """Plays a soak on a testbed.

    Args:
        testbed: a running testbed.
        folder: for the controller's files.
        settings: fields of `RunConfig`, with the policy.
        seed: of loads and faults.
        advance: called with what comes next.
    """

    def __init__(
        self, testbed: Testbed, folder: Path, settings: dict[str, Any], seed: int, advance: Callable[[str], None]
    ) -> None:
        self._rng = np.random.default_rng(seed)
        self._rig, self._settings, self._advance = Rig(testbed, folder), settings, advance
        self._slices = testbed.slices.names
        self._born: dict[int, float] = {}
        self._counted: tuple[int, dict[str, int]] = (0, {})
        self.result = Soak()

    def run(self, seconds: float, fault_every_s: float) -> Soak:
        """So long, with a fault about so often, each kind once before any comes again."""
        began_s = time.monotonic()
        with self._rig as rig:
            results = rig.knobs.read()
            self._new_load()
            self._start()
            order: list[str] = []
            while (now_s := time.monotonic() - began_s) < seconds:
                order = order or [str(name) for name in self._rng.permutation(sorted(self._faults()))]
                name = order.pop()
                wait_s = min(fault_every_s * self._rng.uniform(0.5, 1.0), max(seconds - now_s, 0.0))
                self._advance(name)
                self._watch(wait_s)
                self._do(name, results, time.monotonic() - began_s)
                if self._rng.random() < 0.5:
                    self._new_load()
            self._end(results, time.monotonic() - began_s)
        return self.result

    # -- faults ------------------------------------------------------------------------------------------------

    def _faults(self) -> dict[str, Callable[[dict[str, str]], float | None]]:
        """Faults by name; each returns the time until the knobs were restored, if they had to be."""
        return {
            "kill_controller": self._kill_controller,
            "kill_both": self._kill_both,
            "stop_controller": self._stop_controller,
            "kill_supervisor": lambda _: self._await_restart("supervisor", faults.kill_supervisor),
            "kill_publisher": lambda _: self._await_restart("publisher", faults.kill_publisher),
            "restart_upf": lambda _: faults.restart_upf(self._rig, self._any_slice()),
            "detach_probe": lambda _: self._harmless(lambda: faults.detach_probe(self._rig, self._any_slice())),
            "short_stop": lambda _: self._harmless(lambda: faults.stop_controller(self._rig, 0.3)),
            "modes": lambda _: self._modes(),
            "reload": lambda _: self._harmless(lambda: self._order("reload", "--guard", "default")),
            "pause": lambda _: self._harmless(self._pause),
        }

    def _do(self, name: str, results: dict[str, str], at_s: float) -> None:
        self._count()
        try:
            restored_s = self._faults()[name](results)
            self.result.events.append(Event(at_s, name, restored_s))
        except (ProgramError, OSError) as error:
            self.result.events.append(Event(at_s, name, failure=str(error)))
        if self._rig.controller is None or self._rig.controller.process.poll() is not None:
            self._rig.stop()
            self._start()

    def _kill_controller(self, results: dict[str, str]) -> float:
        restored_s = self._rig.restored_after_s(results, lambda: faults.kill_controller(self._rig), RESTORE_LIMIT_S)
        self._rig.stop()
        return restored_s

    def _kill_both(self, results: dict[str, str]) -> None:
        """Kill controller and supervisor, so that the next start restores the original settings."""
        faults.kill_both(self._rig)
        self._rig.stop()
        self._rig.start("shadow", **self._settings)
        self._rig.stop()
        if self._rig.knobs.read() == results:
            raise ProgramError("a shadow has restored knobs: it must not write")
        self._start()

    def _stop_controller(self, results: dict[str, str]) -> float:
        """Stop the controller for so long that its supervisor kills it."""
        controller = self._rig.controller
        assert controller is not None
        with faults.stopped(controller.pid):
            restored_s = self._rig.restored_after_s(results, time.monotonic_ns, RESTORE_LIMIT_S)
        self._rig.stop()
        return restored_s

    def _await_restart(self, what: str, kill: Callable[[Rig], int]) -> None:
        controller = self._rig.controller
        assert controller is not None

        def restarts() -> int:
            notes = controller.notes()
            return int(notes["supervisor"]["restarts"] if what == "supervisor" else notes["publisher_restarts"])

        before = restarts()
        kill(self._rig)
        controller.wait_for(lambda: restarts() > before, f"{what} started again", RESTORE_LIMIT_S)

    def _modes(self) -> None:
        for mode in (("shadow",), ("canary", "--slices", self._any_slice()), ("live",)):
            self._order("mode", *mode)
            time.sleep(0.5)

    def _pause(self) -> None:
        self._order("pause")
        time.sleep(1.0)
        self._order("resume")

    def _harmless(self, action: Callable[[], object]) -> None:
        """Inject a fault after which the controller has to go on ticking."""
        controller = self._rig.controller
        assert controller is not None
        action()
        before = controller.ticks()
        controller.wait_for(lambda: controller.ticks() > before + 20, "ticks go on", RESTORE_LIMIT_S)

    # -- everything else ---------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._rig.start("live", "--force", **self._settings)

    def _end(self, results: dict[str, str], at_s: float) -> None:
        """A clean end restores as well."""
        self._count()
        status = self._rig.stop()
        if status != 0:
            self.result.crashes.append(f"exit status {status}")
        if self._rig.knobs.read() != results:
            self.result.events.append(Event(at_s, "end", failure="the knobs do not have their original values"))

    def _order(self, *words: str) -> None:
        name = self._rig.testbed.spec.name
        where = ("--name", name, "--run-root", str(self._rig.folder / "run"))
        force = ("--force",) if words[0] in {"mode", "reload"} else ()
        self._rig.command("control", *words, *force, *where)

    def _any_slice(self) -> str:
        return str(self._rng.choice(self._slices))

    def _new_load(self) -> None:
        """Each slice a rate and a kind of its own."""
        kinds: tuple[LoadKind, ...] = ("cbr", "poisson", "video", "onoff")
        loads: dict[str, tuple[Load, ...]] = {}
        for name in self._slices:
            kind = kinds[self._rng.integers(len(kinds))]
            rate_mbps = round(float(self._rng.uniform(5.0, 60.0)), 1)
            off_s = 0.5 if kind == "onoff" else 0.0
            loads[name] = (Load(kind, rate_mbps=rate_mbps, packet_bytes=1400, on_s=0.5, off_s=off_s),)
        spec = self._rig.testbed.spec
        self._rig.load(
            Scenario("soak", "random", spec.slices, "testbed", 60.0, 0.01, loads), int(self._rng.integers(1 << 30))
        )

    def _watch(self, seconds: float) -> None:
        """Let it run, and write down what it uses."""
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            time.sleep(min(SAMPLE_S, left_s))
            controller = self._rig.controller
            if controller is None or controller.process.poll() is not None:
                self.result.crashes.append("no controller" if controller is None else controller.tail())
                self._rig.stop()
                self._start()
                continue
            self._sample()

    def _sample(self) -> None:
        controller = self._rig.controller
        assert controller is not None
        pids = {"loop": controller.pid, "publisher": publisher_pid(self._rig), "supervisor": controller.supervisor}
        for process, pid in pids.items():
            born_s = self._born.setdefault(pid, time.monotonic())
            self.result.samples.append(Sample(process, pid, time.monotonic() - born_s, Resources.of(pid)))

    def _count(self) -> None:
        """Take over the totals of a controller, before a fault may end it."""
        controller = self._rig.controller
        if controller is None:
            return
        pid, before = self._counted
        totals = {name: int(controller.notes()["totals"][name]) for name in COUNTED}
        for name, total in totals.items():
            new = total - (before.get(name, 0) if pid == controller.pid else 0)
            setattr(self.result, name, getattr(self.result, name) + new)
        self._counted = controller.pid, totals
