"""The controller's journal while it runs: on disk, and in memory that the supervisor shares, before what it speaks of
is written to the kernel."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from slicepilot.controller.actuators.bandwidth import NO_QUOTA, bandwidth_files
from slicepilot.controller.actuators.cilium.choice import Choice
from slicepilot.controller.actuators.nice import ThreadOriginal
from slicepilot.controller.actuators.slice_knobs import FoundCpu
from slicepilot.controller.actuators.targets import SliceTargets, paced_by, pod_of
from slicepilot.controller.actuators.weight import weight_file
from slicepilot.controller.system.cgroup import CpuGroup
from slicepilot.controller.system.cgroup_paths import awaited
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.net.qdisc import RootQdisc
from slicepilot.controller.system.net.rtnetlink import RouteSocket
from slicepilot.controller.system.own_groups import MovedThread, OwnGroup
from slicepilot.env.knobs import KnobName

from .journal import EgressOriginals, Journal, PodOriginals, SliceOriginals
from .journal_file import JournalFile
from .journal_memory import JournalMemory


class JournalKeeper:
    """Surveys slices and writes the journal; from then on the knobs may be set.

    Its methods may be called from any thread; each returns when the file is on disk, which may take tens of
    milliseconds.

    Args:
        state: folder of the controller, on a disk; made if need be.
        targets: the slices.

    Attributes:
        file: the journal on disk; memory: the same for the supervisor.

    Raises:
        ActuatorError: a slice is missing, or the journal cannot be written (a full disk): nothing has been changed.
    """

    def __init__(self, state: Path, targets: Sequence[SliceTargets]) -> None:
        self._lock = threading.Lock()
        try:
            state.mkdir(parents=True, exist_ok=True)
            self.file = JournalFile(state)
        except OSError as error:
            raise ActuatorError.of(f"{state}: make the folder for the journal", error) from error
        self.memory = JournalMemory.create()
        try:
            released = tuple((entry.name, knob) for entry in targets for knob in sorted(entry.left))
            self._save(dataclasses.replace(Journal.of(survey(targets), os.getpid()), released=released))
        except BaseException:
            self.close()
            raise

    @property
    def journal(self) -> Journal:
        """What is on disk."""
        return self._journal

    def pacing(self, target: SliceTargets) -> Choice:
        """What the journal has of a slice that Cilium paces: the one thing that may be set for it."""
        return next((Choice(entry.throttle) for entry in self._journal.slices if entry.name == target.name), Choice())

    @property
    def maps(self) -> frozenset[tuple[str, int]]:
        """Path and number of the maps of Cilium that the journal speaks of."""
        entries = (entry.throttle for entry in self._journal.slices)
        return frozenset((entry.pin, entry.map_id) for entry in entries if entry is not None)

    def remember(self, name: str, threads: Sequence[ThreadOriginal]) -> None:
        """Add originals of a slice's threads (`NodeActuator` calls it before it renices them); raises ActuatorError."""
        with self._lock:
            self._save(self._journal.with_threads(name, tuple(threads)))

    def renew(self, target: SliceTargets) -> None:
        """Look again at a slice whose group or device was made anew, before its knobs are set; raises ActuatorError."""
        [found] = survey([target])
        with self._lock:
            others = tuple(entry for entry in self._journal.released if entry[0] != target.name)
            released = (*others, *((target.name, knob) for knob in sorted(target.left)))
            self._save(dataclasses.replace(self._journal.with_slice(found), released=released))

    def rebase(self, name: str, found: FoundCpu) -> None:
        """Restore what others have set since, in place of the first original settings; raises ActuatorError."""
        with self._lock:
            self._save(self._journal.with_cpu(name, found.quota, found.pod_quota, found.weight))

    def house(self, groups: Sequence[OwnGroup], threads: Sequence[MovedThread]) -> None:
        """What is made and moved for UPFs from now on, all of it, before that is done; raises ActuatorError."""
        with self._lock:
            self._save(dataclasses.replace(self._journal, groups=tuple(groups), threads=tuple(threads)))

    def release(self, name: str, knob: KnobName) -> None:
        """Do not restore a knob, which another program has set; raises ActuatorError."""
        with self._lock:
            if (name, knob) not in self._journal.released:
                self._save(dataclasses.replace(self._journal, released=(*self._journal.released, (name, knob))))

    def reclaim(self, name: str, knob: KnobName) -> None:
        """Take back a `release`: the first original setting is restored again; raises ActuatorError."""
        with self._lock:
            left = tuple(entry for entry in self._journal.released if entry != (name, knob))
            if left != self._journal.released:
                self._save(dataclasses.replace(self._journal, released=left))

    def remove(self) -> None:
        """Everything was put back: nothing is left to restore, which the supervisor knows in any case.

        Raises:
            ActuatorError: the journal stays on the disk; it counts as out of date until the machine is started anew.
        """
        with self._lock:
            self.memory.write(b"")
            try:
                self.file.remove()
            except OSError as error:
                raise ActuatorError.of(
                    f"{self.file.name}: everything was put back, but the journal stays: remove it", error
                ) from error

    def close(self) -> None:
        """Release files and memory; the supervisor has its own."""
        self.file.close()
        self.memory.close()

    def _save(self, journal: Journal) -> None:
        try:
            self.file.save(journal)
        except OSError as error:
            raise ActuatorError.of(f"{self.file.name}: write the journal", error) from error
        self.memory.write(journal.dump())
        self._journal = journal


OWN_NETNS = Path("/proc/self/ns/net")


def survey(targets: Sequence[SliceTargets]) -> tuple[SliceOriginals, ...]:
    """The knobs of slices as they are; writes nothing.

    A shaper of ours that a crash has left counts as the device's default: it is what restoring removes.

    Raises:
        ActuatorError: a target is missing or not permitted, or another program has configured a qdisc on a device.
    """
    return tuple(_slice(target) for target in targets)


def _slice(target: SliceTargets) -> SliceOriginals:
    egress, throttle = None, paced_by(target).throttle
    if throttle is None and target.egress_device is not None and "egress_mbps" not in target.left:
        egress = _egress(target.egress_device, target.netns)
    if target.cgroup is None or awaited(target.cgroup):
        return SliceOriginals(
            target.name, None, cgroup_inode=0, quota_us=0, period_us=0, weight=0, egress=egress, throttle=throttle
        )
    # By its own path: a link to it may lead elsewhere by the time that this is needed.
    path = target.cgroup.resolve()
    group = CpuGroup.at(path)
    with contextlib.closing(bandwidth_files(group)) as bandwidth, contextlib.closing(weight_file(group)) as weight:
        quota_us, period_us = bandwidth.read()
        return SliceOriginals(
            name=target.name,
            cgroup=str(path),
            cgroup_inode=_stat(path).st_ino,
            quota_us=quota_us,
            period_us=period_us,
            weight=None if target.weighs_pod else int(weight.read()),
            egress=egress,
            pod=_pod(pod_of(group), target) if target.moves_pod or target.weighs_pod else None,
            throttle=throttle,
        )


def _pod(group: CpuGroup, target: SliceTargets) -> PodOriginals:
    with contextlib.closing(bandwidth_files(group)) as bandwidth, contextlib.closing(weight_file(group)) as weight:
        quota_us, period_us = bandwidth.read()
        follows = target.moves_pod and quota_us != NO_QUOTA  # without a limit there is nothing to follow
        found = int(weight.read()) if target.weighs_pod else None
        limit = (quota_us, period_us) if follows else (None, None)
        return PodOriginals(str(group.path), _stat(group.path).st_ino, limit[0], limit[1], found)


def _egress(device: str, netns: Path | None) -> EgressOriginals:
    with contextlib.closing(RouteSocket(netns)) as route:
        qdisc = RootQdisc(route, device)
        qdisc.check()
        identity = _stat(netns or OWN_NETNS)
        return EgressOriginals(
            device=device,
            ifindex=qdisc.index,
            netns=None if netns is None else str(netns),
            netns_device=identity.st_dev,
            netns_inode=identity.st_ino,
        )


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise ActuatorError.of(f"{path}: look at it", error) from error
