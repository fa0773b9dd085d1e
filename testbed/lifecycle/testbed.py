"""The testbed itself: starts, attaches to, changes and removes it."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slicepilot.configs import ConfigError, validate
from slicepilot.controller.system.cgroup import CpuHierarchy
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.env.arrays import FloatArray

from . import carrying, cgroups, network
from .journal import TestbedJournal, uninterrupted
from .layout import GTPU_PORT, PFCP_PORT, STATE_FOLDER, Layout, SlicePlan
from .processes import ProcessId, Program, bin_folder, binary, obstacle, spawn
from .removal import reclaim, remove_all, running, take_down
from .sessions import SmfClient
from .spec import TestbedSpec

SPEC_FILE = "spec.json"
SYSTEM_COMMANDS = ("nsenter", "chrt")


@dataclass(frozen=True)
class SliceStatus:
    """One slice of a running testbed."""

    name: str
    netns: str
    pid: int
    alive: bool
    sessions: int
    cgroup: Path


def missing() -> list[str]:
    """What this machine lacks for a testbed, one line each; empty where it can run."""
    lacks = []
    if os.geteuid() != 0:
        lacks.append("root (network namespaces and cgroups need it)")
    if not Path("/dev/net/tun").exists():
        lacks.append("/dev/net/tun (modprobe tun)")
    lacks += [f"{name} (package util-linux)" for name in SYSTEM_COMMANDS if shutil.which(name) is None]
    try:
        lacks += _missing_programs(bin_folder())
    except ConfigError as error:
        lacks.append(str(error))
    try:
        CpuHierarchy.find()
    except (ActuatorError, OSError) as error:
        lacks.append(str(error))
    return lacks


def _missing_programs(folder: Path) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for name in ("upf", "smf", "load", "sink"):
        if reason := obstacle(folder / name):
            reasons.setdefault(reason, []).append(name)
    return [f"{', '.join(names)} in {folder}: {reason}" for reason, names in reasons.items()]


class Testbed:
    """A running testbed. `up` creates a testbed, `attach` opens a testbed that another command has created.

    Everything is in a `TestbedJournal` before it is created, so `down` can remove it whatever happened in between.
    """

    __test__ = False

    def __init__(self, spec: TestbedSpec) -> None:
        self.spec, self.slices = spec, spec.slice_set()
        self.layout = Layout(spec.name, self.slices.names, tuple(own.qfi for own in self.slices.slices))
        self.journal = TestbedJournal(self.layout.state)
        self.controller = CpuHierarchy.find()

    # -- life --------------------------------------------------------------------------------------------------

    @classmethod
    def up(cls, spec: TestbedSpec, *, owned: bool = False) -> Testbed:
        """Bring a testbed up; on any failure, Ctrl-C included, everything that was created is removed again.

        Args:
            spec: what to bring up.
            owned: the testbed goes down with this process. If the process is killed, the next testbed of the same name
                removes the remains.

        Raises:
            ConfigError: something is missing on this machine, or a testbed of this name is there.
            NotCarriedError: it came up and carries no packets; where they are lost.
            ProgramError, OSError, NetlinkError: it could not be brought up.
        """
        if lacks := missing():
            raise ConfigError(f"testbed: this machine lacks {'; '.join(lacks)}")
        testbed = cls(spec)
        reclaim(spec.name)
        with testbed.journal.locked():
            if testbed.journal.exists:
                raise ConfigError(
                    f"testbed {spec.name!r} is up, or was left by a crash; use another --name, or "
                    f"`slicepilot testbed down --name {spec.name}` first"
                )
            try:
                testbed._build(ProcessId.of(os.getpid()) if owned else None)
            except BaseException:
                remove_all(testbed.journal)
                raise
        return testbed

    @classmethod
    def attach(cls, name: str) -> Testbed:
        """Open a running testbed; raises ConfigError if there is none of this name."""
        path = STATE_FOLDER / name / SPEC_FILE
        if not path.exists():
            raise ConfigError(f"testbed {name!r} is not up; running: {', '.join(running()) or 'none'}")
        return cls(validate(TestbedSpec, json.loads(path.read_text()), str(path)))

    def down(self) -> None:
        """Remove all it made; see `take_down`."""
        take_down(self.spec.name)

    def _build(self, owner: ProcessId | None) -> None:
        spec, layout = self.spec, self.layout
        self.journal.record("testbed", name=spec.name, owner=owner and dataclasses.asdict(owner))
        children = (*self.slices.names, *((cgroups.EDGE,) if spec.edge_workers else ()))
        cgroups.make(spec.name, children, self.controller, self.journal)
        self.deploy(None)
        network.build(layout, self.journal, spec.uplink_mbps, spec.uplink_queue_ms)
        self.log_folder.mkdir()
        starting = [self._spawn_upf(plan) for plan in layout.slices]
        smf = self._spawn_smf()
        for upf in starting:
            upf.wait_ready()
        self._set_up_sessions(smf)
        self.check_carrying()
        if spec.edge_workers:
            self._start_edge()
        (layout.state / SPEC_FILE).write_text(json.dumps(dataclasses.asdict(spec)))

    # -- programs ----------------------------------------------------------------------------------------------

    @property
    def log_folder(self) -> Path:
        """Where the programs log."""
        return self.layout.state / "logs"

    def cgroup(self, slice_name: str) -> Path:
        """The cpu cgroup of a slice, or of the edge application."""
        return cgroups.parent_of(self.spec.name, self.controller) / slice_name

    def start(self, name: str, namespace: str, arguments: Sequence[str | Path], **options: Any) -> Program:
        """Start a program as `spawn` does, on record."""
        with uninterrupted():  # what runs is on record
            program = spawn(name, namespace, arguments, self.log_folder, **options)
            self.journal.record("process", program=name, **dataclasses.asdict(program.process))
        return program

    def _spawn_upf(self, plan: SlicePlan) -> Program:
        arguments: list[str | Path] = [
            binary("upf"),
            f"--node-id={plan.n4_upf}",
            f"--n4={plan.n4_upf}:{PFCP_PORT}",
            f"--n3={plan.n3_upf}:{GTPU_PORT}",
            "--tun=tun",
            f"--ue-pool={plan.ue_pool}",
            f"--rcvbuf={self.spec.n3_buffer_bytes}",
            f"--burn-ns={round(1e3 * self.spec.burn_us)}",
        ]
        return self.start(f"upf-{plan.name}", plan.netns, arguments, cgroup=self.cgroup(plan.name))

    def _spawn_smf(self) -> SmfClient:
        commands, answers = SmfClient.make_pipes(self.layout.state)
        try:
            arguments: list[str | Path] = [
                binary("smf"),
                f"--n4=0.0.0.0:{PFCP_PORT}",
                "--node-id=10.101.0.1",
                "--script=-",
            ]
            self.start("smf", self.layout.ran, arguments, stdin=commands, stdout=answers)
            smf = SmfClient(self.layout.state)
            smf.wait_ready()
            return smf
        finally:
            os.close(commands)
            os.close(answers)

    def _set_up_sessions(self, smf: SmfClient) -> None:
        for plan, spec in zip(self.layout.slices, self.slices.slices, strict=True):
            smf.associate(plan)
            for ue in range(self.spec.ues):
                smf.establish(plan, spec, ue)
        smf.close()

    def check_carrying(self) -> None:
        """Send a packet through each slice in both directions; raises NotCarriedError for those that do not arrive."""
        carrying.check(self.layout, self.spec.burn_us)

    def restart_upf(self, slice_name: str) -> None:
        """Stop a slice's UPF and start it anew; the SMF notices by its recovery time stamp and sets its sessions up."""
        plan = self.layout.slices[self.slices.index(slice_name)]
        self.upf(slice_name).stop()
        # The Recovery Time Stamp counts seconds (TS 29.244, clause 8.2.65), so a quicker restart is not noticed.
        time.sleep(1.0)
        self._spawn_upf(plan).wait_ready()

    def _start_edge(self) -> None:
        arguments: list[str | Path] = [
            binary("edge"),
            f"--workers={self.spec.edge_workers}",
            f"--counter={self.edge_counter}",
        ]
        self.start("edge", self.layout.data_network, arguments, cgroup=self.cgroup(cgroups.EDGE)).wait_ready()

    def deploy(self, request_mcpu: FloatArray | None) -> None:
        """Weights of the slices' groups as Kubernetes sets them for CPU requests (S,); None: the slice specs' own."""
        own = self.slices.column("cpu_request_mcpu")[:, 0]
        for name, request in zip(self.slices.names, own if request_mcpu is None else request_mcpu, strict=True):
            cgroups.request(self.cgroup(name), float(request), self.controller.version)
        if self.spec.edge_workers:
            cgroups.request(self.cgroup(cgroups.EDGE), self.spec.edge_request_mcpu, self.controller.version)

    @property
    def edge_counter(self) -> Path:
        """File in which the edge application counts its finished blocks of work (8 bytes, little endian, mmapped)."""
        return self.layout.state / "edge.count"

    def program(self, name: str) -> ProcessId | None:
        """The last started program of this name, where it runs."""
        started = self._started(name)
        return started[-1] if started and started[-1].alive else None

    def _started(self, name: str) -> list[ProcessId]:
        entries = self.journal.entries("process")
        return [ProcessId(entry["pid"], entry["start_ticks"]) for entry in entries if entry["program"] == name]

    def smf(self) -> SmfClient:
        """A connection to the SMF."""
        return SmfClient(self.layout.state)

    def upf(self, slice_name: str) -> ProcessId:
        """The UPF of a slice that was started last."""
        return self._started(f"upf-{slice_name}")[-1]

    def status(self) -> list[SliceStatus]:
        """Every slice's state."""
        result = []
        for plan in self.layout.slices:
            upf = self.upf(plan.name)
            result.append(SliceStatus(plan.name, plan.netns, upf.pid, upf.alive, self.spec.ues, self.cgroup(plan.name)))
        return result
