"""A controller as an operator runs it, on a testbed under load: what faults are tried on, and what is measured beside.

Everything is the real thing: UPFs, traffic, ``slicepilot run`` as a process of its own with supervisor and publisher.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from slicepilot.configs import ConfigError
from slicepilot.controller.record.ring_reader import TickReader
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.net.qdisc import RootQdisc
from slicepilot.controller.system.net.rtnetlink import RouteSocket
from slicepilot.controller.system.realtime import on_time
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.testbed.backend.backend import targets_of
from slicepilot.testbed.backend.traffic import LoadRun
from slicepilot.testbed.lifecycle.processes import ProgramError
from slicepilot.testbed.lifecycle.testbed import Testbed

READY_S = 90.0  # under a load that leaves it little CPU
POLL_S = 0.001
LOOK_S = 0.03  # each look opens what the controller shows
KNOB_FILES = ("cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.shares", "cpu.max", "cpu.weight")


class Knobs:
    """The kernel's values of all knobs of a testbed's slices, as text; cheap enough to be polled."""

    def __init__(self, testbed: Testbed) -> None:
        self._targets = targets_of(testbed)

    def files(self) -> dict[str, str]:
        """Content of every control file that is there."""
        result = {}
        for target in self._targets:
            for name in KNOB_FILES:
                with contextlib.suppress(OSError):
                    result[f"{target.name}/{name}"] = (target.group / name).read_text().strip()
        return result

    @contextlib.contextmanager
    def kept(self) -> Iterator[Callable[[], list[str]]]:
        """A function that names the slices that leave through a shaper of ours; quick, its sockets are kept."""
        with contextlib.ExitStack() as undo:
            qdiscs: list[tuple[str, RootQdisc]] = []
            for target in self._targets:
                with contextlib.suppress(ActuatorError, OSError):
                    route = undo.enter_context(closing(RouteSocket(target.netns)))
                    if target.egress_device is not None:
                        qdiscs.append((target.name, RootQdisc(route, target.egress_device)))
            yield lambda: [name for name, qdisc in qdiscs if qdisc.present()]

    def read(self) -> dict[str, str]:
        """All of it."""
        with self.kept() as shapers:
            return self.files() | {f"{name}/shaper": "ours" for name in shapers()}


@dataclass
class Controller:
    """A running ``slicepilot run``."""

    process: subprocess.Popen[bytes]
    ring: Path
    log: Path

    @property
    def pid(self) -> int:
        """Pid of the loop's process."""
        return self.process.pid

    def reader(self) -> TickReader:
        """A fresh reader of its ticks; raises ConfigError when it does not run."""
        return TickReader(self.ring)

    def notes(self) -> dict[str, Any]:
        """See `slicepilot.controller.record.ring`."""
        with closing(self.reader()) as reader:
            return reader.notes()

    @property
    def supervisor(self) -> int:
        """Pid of its supervisor; raises ProgramError in shadow, which has none."""
        facts = self.notes().get("supervisor")
        if not facts:
            raise ProgramError("the controller has no supervisor")
        return int(facts["pid"])

    def wait_for(self, what: Callable[[], bool], message: str, timeout_s: float = READY_S) -> None:
        """Poll until something is so.

        Raises:
            ProgramError: it was not in time, or the controller has ended meanwhile; with the end of its log.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            with contextlib.suppress(ConfigError):
                if what():
                    return
            if self.process.poll() is not None:
                raise ProgramError(f"{message}: the controller ended with {self.process.returncode}: {self.tail()}")
            if time.monotonic() > deadline:
                raise ProgramError(f"{message}: not within {timeout_s:g} s: {self.tail()}")
            time.sleep(LOOK_S)

    def wait_ready(self, mode: str, ticks: int = 20) -> None:
        """Until it has ticked in a mode for a while."""
        self.wait_for(
            lambda: self._own() and self.notes().get("mode") == mode and self.ticks() >= ticks, f"mode {mode}"
        )

    def _own(self) -> bool:
        """Whether the ring is this controller's, and not left by a dead controller."""
        with closing(self.reader()) as reader:
            return reader.description()[1].get("pid") == self.pid

    def ticks(self) -> int:
        """So far; raises ConfigError when it does not run."""
        with closing(self.reader()) as reader:
            return reader.written

    def tail(self) -> str:
        """The last thing it logged."""
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return " | ".join(lines[-3:])

    def stop(self, timeout_s: float = 15.0) -> int:
        """SIGTERM; returns its exit status. One that does not end is killed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


class Rig:
    """A testbed, its load and a controller; a ``with`` block ends them in the reverse order.

    Args:
        testbed: a running testbed; not closed.
        folder: for configuration, logs, the controller's run and state folders.
    """

    def __init__(self, testbed: Testbed, folder: Path) -> None:
        self.testbed, self.folder = testbed, folder
        folder.chmod(0o755)  # decision records are written by another user
        self.knobs = Knobs(testbed)
        self.controller: Controller | None = None
        self._load: LoadRun | None = None
        self._started = 0

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.stop_load()

    @property
    def run_folder(self) -> Path:
        """The controller's run folder."""
        return self.folder / "run" / self.testbed.spec.name

    @property
    def state_folder(self) -> Path:
        """The controller's state folder."""
        return self.folder / "state" / self.testbed.spec.name

    def load(self, scenario: Scenario, seed: int = 0) -> None:
        """Have a scenario's traffic run, without its events."""
        self.stop_load()
        self._load = LoadRun(self.testbed, scenario, seed)
        self._load.start()

    def stop_load(self) -> None:
        """End the traffic, if any."""
        load, self._load = self._load, None
        if load is not None:
            load.stop()

    def start(
        self,
        mode: str,
        *options: str,
        wait: bool = True,
        environment: Mapping[str, str] | None = None,
        wrapper: Sequence[str] = (),
        **settings: Any,
    ) -> Controller:
        """Start a controller.

        Args:
            mode: of the run.
            options: more arguments of ``slicepilot run``.
            wait: until it ticks in that mode.
            environment: more variables.
            wrapper: command that starts it, for instance faketime's.
            settings: fields of `RunConfig` beside those that the rig sets.

        Raises:
            ProgramError: it does not come up.
        """
        config = {
            "name": self.testbed.spec.name,
            "run_root": str(self.folder / "run"),
            "state_root": str(self.folder / "state"),
            "mode": mode,
        } | settings
        path = self.folder / "run.yaml"
        path.write_text(yaml.safe_dump(config))
        self._started += 1
        log = self.folder / f"controller-{self._started}.log"
        command = [*wrapper, sys.executable, "-P", "-m", "slicepilot.cli", "run", "-c", str(path), *options]
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=os.environ | dict(environment or {})
            )
        self.controller = Controller(process, self.run_folder / "ticks", log)
        if wait:
            self.controller.wait_ready(mode)
        return self.controller

    def stop(self) -> int | None:
        """End the controller, if one runs; returns its exit status."""
        controller, self.controller = self.controller, None
        return None if controller is None else controller.stop()

    def command(self, *arguments: str) -> dict[str, Any]:
        """``slicepilot`` with these arguments and ``--json``; raises ProgramError with what it says on failure."""
        done = subprocess.run(
            [sys.executable, "-P", "-m", "slicepilot.cli", *arguments, "--json"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        if done.returncode:
            raise ProgramError(
                f"slicepilot {' '.join(arguments)}: exit status {done.returncode}: {done.stderr.strip()}"
            )
        return json.loads(done.stdout)

    def restored_after_s(self, original: Mapping[str, str], fault: Callable[[], int], timeout_s: float = 10.0) -> float:
        """Inject a fault, and poll until the knobs have their original values.

        Args:
            original: by `Knobs.read`.
            fault: returns the time of the fault (CLOCK_MONOTONIC ns).
            timeout_s: at most.

        Returns:
            Seconds from the fault to the end of the first poll in which all knobs had their original values.

        Raises:
            ProgramError: not in time; names a knob.
        """
        files = {name: value for name, value in original.items() if not name.endswith("/shaper")}
        shapers = [name.removesuffix("/shaper") for name in original if name.endswith("/shaper")]
        # Prepare before the fault: on a busy machine this process would be late otherwise.
        with self.knobs.kept() as look_for_shapers, on_time():
            since_ns = fault()
            while True:
                now = self.knobs.files()
                existing = look_for_shapers()
                took_s = 1e-9 * (time.monotonic_ns() - since_ns)
                if now == files and existing == shapers:
                    return took_s
                if took_s > timeout_s:
                    wrong = [f"{name} = {now.get(name)!r} for {value!r}" for name, value in files.items()]
                    raise ProgramError(f"not restored within {timeout_s:g} s: {wrong}, shapers of {existing}")
                time.sleep(POLL_S)
