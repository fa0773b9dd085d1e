"""The controller's journal while it runs: as a file, and in memory shared with the supervisor. It is written before the
settings that it describes are changed."""

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
from slicepilot.controller.actuators.slice_knobs import OriginalCpu
from slicepilot.controller.actuators.targets import SliceTargets, paced_by, pod_of
from slicepilot.controller.actuators.weight import current_weight
from slicepilot.controller.system.cgroup import CpuGroup
from slicepilot.controller.system.cgroup_paths import awaited
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.net.qdisc import RootQdisc
from slicepilot.controller.system.net.rtnetlink import RouteSocket
from slicepilot.controller.system.own_groups import MovedThread, OwnGroup
from slicepilot.data.files import PRIVATE, remove_file, replace_file
from slicepilot.env.knobs import KnobName

from .journal import EgressOriginals, Journal, PodOriginals, SliceOriginals, journal_path
from .journal_memory import JournalMemory


class JournalKeeper:
    """Reads the original settings of slices and writes the journal; from then on the knobs may be set.

    Its methods may be called from any thread. They write no disk, and take about a millisecond.

    The state folder is made if it is missing.

    Attributes:
        path: of the journal; memory: the same for the supervisor.
        journal: what was written last.

    Raises:
        ActuatorError: a slice is missing, or the journal cannot be written; nothing has been changed.
    """

    def __init__(self, state: Path, targets: Sequence[SliceTargets]) -> None:
        self._lock = threading.Lock()
        try:
            state.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ActuatorError.of(f"{state}: make the state folder", error) from error
        self.state, self.path = state.absolute(), journal_path(state)
        self.memory = JournalMemory.create()
        try:
            released = tuple((entry.name, knob) for entry in targets for knob in sorted(entry.left))
            self._save(dataclasses.replace(Journal.of(survey(targets), os.getpid()), released=released))
        except BaseException:
            self.close()
            raise

    def pacing(self, target: SliceTargets) -> Choice:
        """The journal's entry of a slice that Cilium paces: nothing else may be set for it."""
        return next((Choice(entry.throttle) for entry in self.journal.slices if entry.name == target.name), Choice())

    @property
    def maps(self) -> frozenset[tuple[str, int]]:
        """Path and number of the maps of Cilium in the journal."""
        entries = (entry.throttle for entry in self.journal.slices)
        return frozenset((entry.pin, entry.map_id) for entry in entries if entry is not None)

    def remember(self, name: str, threads: Sequence[ThreadOriginal]) -> None:
        """Add original nice values of a slice's threads, before they are changed; raises ActuatorError."""
        with self._lock:
            self._save(self.journal.with_threads(name, tuple(threads)))

    def renew(self, target: SliceTargets) -> None:
        """Read a slice again whose group or device was made anew, before its knobs are set; raises ActuatorError."""
        [original] = survey([target])
        with self._lock:
            others = tuple(entry for entry in self.journal.released if entry[0] != target.name)
            released = (*others, *((target.name, knob) for knob in sorted(target.left)))
            self._save(dataclasses.replace(self.journal.with_slice(original), released=released))

    def rebase(self, name: str, newest: OriginalCpu) -> None:
        """Restore what others have set since, instead of the first original settings; raises ActuatorError."""
        with self._lock:
            self._save(self.journal.with_cpu(name, newest.quota, newest.pod_quota, newest.weight))

    def house(self, groups: Sequence[OwnGroup], threads: Sequence[MovedThread]) -> None:
        """Replace the groups and threads that are about to be made and moved for UPFs; raises ActuatorError."""
        with self._lock:
            self._save(dataclasses.replace(self.journal, groups=tuple(groups), threads=tuple(threads)))

    def release(self, name: str, knob: KnobName) -> None:
        """Do not restore a knob, which another program has set; raises ActuatorError."""
        with self._lock:
            if (name, knob) not in self.journal.released:
                self._save(dataclasses.replace(self.journal, released=(*self.journal.released, (name, knob))))

    def reclaim(self, name: str, knob: KnobName) -> None:
        """Take back a `release`: the first original setting is restored again; raises ActuatorError."""
        with self._lock:
            left = tuple(entry for entry in self.journal.released if entry != (name, knob))
            if left != self.journal.released:
                self._save(dataclasses.replace(self.journal, released=left))

    def remove(self) -> None:
        """Everything was restored: empty the supervisor's copy and remove the file; raises ActuatorError."""
        with self._lock:
            self.memory.write(b"")
            try:
                remove_file(self.path)
            except OSError as error:
                raise ActuatorError.of(f"{self.path}: remove the journal", error) from error

    def close(self) -> None:
        """Release the memory; the supervisor has its own descriptor."""
        self.memory.close()

    def _save(self, journal: Journal) -> None:
        try:
            replace_file(self.path, journal.dump(), PRIVATE)
        except OSError as error:
            raise ActuatorError.of(f"{self.path}: write the journal", error) from error
        self.memory.write(journal.dump())
        self.journal = journal


OWN_NETNS = Path("/proc/self/ns/net")


def survey(targets: Sequence[SliceTargets]) -> tuple[SliceOriginals, ...]:
    """The present settings of slices; writes nothing.

    A shaper that a crashed controller has left counts as the device's default, since restoring removes it.

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
    # A link to it may lead to another group by the time that this is needed.
    path = target.cgroup.resolve()
    group = CpuGroup.at(path)
    with contextlib.closing(bandwidth_files(group)) as bandwidth:
        return SliceOriginals(
            name=target.name,
            cgroup=str(path),
            cgroup_inode=_stat(path).st_ino,
            **bandwidth.read()._asdict(),
            weight=None if target.weighs_pod else current_weight(group),
            egress=egress,
            pod=_pod(pod_of(group), target) if target.moves_pod or target.weighs_pod else None,
            throttle=throttle,
        )


def _pod(group: CpuGroup, target: SliceTargets) -> PodOriginals:
    with contextlib.closing(bandwidth_files(group)) as bandwidth:
        limit = bandwidth.read()
        follows = target.moves_pod and limit.quota_us != NO_QUOTA  # without a limit there is nothing to follow
        own_weight = current_weight(group) if target.weighs_pod else None
        original = PodOriginals(str(group.path), _stat(group.path).st_ino, None, None, own_weight)
        return dataclasses.replace(original, **limit._asdict()) if follows else original


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
        raise ActuatorError.of(f"{path}: read its inode", error) from error
