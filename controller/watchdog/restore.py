"""Restores the original settings from a journal. May be repeated; groups and devices that are gone are no error.

CPU time first, which takes microseconds, then what shapes packets: everything that is held back is let through before
the first qdisc is removed, since a removal may wait for an RCU grace period. Last, tasks that were moved into groups go
back, and groups that were made are removed. Every knob that differs from its original setting is restored, except those
that are released in the journal.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from slicepilot.controller.actuators.bandwidth import (
    LET_GO_S,
    Bandwidth,
    BandwidthFiles,
    bandwidth_files,
    in_words,
    put_back_limit,
    put_back_pod_limit,
)
from slicepilot.controller.actuators.cilium.rate import put_back
from slicepilot.controller.actuators.cilium.throttle import OpenMaps
from slicepilot.controller.actuators.egress import unpace
from slicepilot.controller.actuators.nice import nice_of, renice
from slicepilot.controller.actuators.weight import weight_file, weight_refusal
from slicepilot.controller.system.cgroup import CpuGroup, CpuHierarchy
from slicepilot.controller.system.cgroup_paths import below
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.net import namespaces
from slicepilot.controller.system.net.qdisc import RootQdisc
from slicepilot.controller.system.net.rtnetlink import RouteSocket
from slicepilot.controller.system.own_groups import group_back, thread_back
from slicepilot.controller.system.processes import process_of, start_ticks

from .journal import EgressOriginals, Journal, PodOriginals, SliceOriginals


@dataclass
class RestoreReport:
    """The result for each knob, a line that begins with the slice.

    Attributes:
        restored: was restored; in a dry run, would be.
        gone: the group, namespace or device does not exist any more.
        released: set by another program, and kept.
        failed: could not be restored, and why.
        notes: other observations, such as a group that has moved.
        took_s: total time.
    """

    restored: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    took_s: float = 0.0

    def __str__(self) -> str:
        parts = [
            f"{len(entries)} {what}" + (f" ({'; '.join(entries)})" if what != "restored" else "")
            for what, entries in (("restored", self.restored), ("gone", self.gone), ("left to others", self.released))
            if entries or what == "restored"
        ]
        if self.failed:
            parts.append(f"{len(self.failed)} FAILED ({'; '.join(self.failed)})")
        notes = "".join(f"; {note}" for note in self.notes)
        return f"{', '.join(parts)} in {1e3 * self.took_s:.1f} ms{notes}"


def restore(journal: Journal, dry_run: bool = False, maps: OpenMaps | None = None) -> RestoreReport:
    """Restore everything; failures are reported, not raised.

    Args:
        journal: the original settings.
        dry_run: read everything and write nothing, to load code and data into memory.
        maps: of Cilium that stay open between calls; None: opened where they are pinned.
    """
    start = time.perf_counter()
    report = RestoreReport()
    if journal.of_this_boot:
        work = _Restoration(report, frozenset(journal.released), dry_run, OpenMaps() if maps is None else maps)
        for original in sorted(journal.slices, key=_renamed):  # what has to be looked for keeps no other waiting
            work.cpu(original)
        for original in journal.slices:  # no lock of interfaces is needed for these
            work.throttle(original)
        work.egress([entry for entry in journal.slices if entry.egress is not None])
        until_s = time.monotonic() + LET_GO_S
        for original in journal.slices:
            work.pod_limit(original, until_s)
        work.moves(journal)
    else:
        report.gone.append("everything: the machine has rebooted")
    report.took_s = time.perf_counter() - start
    return report


class _Restoration:
    """One pass over a journal."""

    def __init__(
        self, report: RestoreReport, released: frozenset[tuple[str, str]], dry_run: bool, maps: OpenMaps
    ) -> None:
        self._report, self._released, self._dry_run, self._maps = report, released, dry_run, maps

    def cpu(self, original: SliceOriginals) -> None:
        """Quota, weight, also that of its pod, and nice of threads."""
        if original.cgroup is None:
            return
        with self._reported(original.name):
            path = group_of(Path(original.cgroup), original.cgroup_inode)
            if path is None:
                self._report.gone.append(f"{original.name}: {original.cgroup}")
            else:
                if str(path) != original.cgroup:
                    self._report.notes.append(f"{original.name}: {original.cgroup} is {path} now")
                original = replace(original, cgroup=str(path))
                group = CpuGroup.at(path)
                self._knob(original.name, "cpu_limit_mcpu", lambda: self._container_quota(group, original))
                self._knob(original.name, "nice", lambda: self._weight(group, original))
        pod = original.pod
        if pod is not None and pod.weight is not None:
            with self._reported(original.name):
                above = group_of(Path(pod.cgroup), pod.cgroup_inode)
                if above is not None:  # where it has gone, its container has, too, which is reported
                    self._knob(original.name, "nice", lambda: self._weight(CpuGroup.at(above), pod))
        if original.threads:
            self._knob(original.name, "nice", lambda: restore_threads(original, self._dry_run))

    def pod_limit(self, original: SliceOriginals, until_s: float) -> None:
        """The quota of its pod; may have to wait for the kernel if its container has just been removed."""
        pod = original.pod
        if pod is None or pod.quota_us is None or pod.period_us is None:
            return
        wanted = Bandwidth(pod.quota_us, pod.period_us, pod.burst_us)

        def write(files: BandwidthFiles) -> None:
            if not put_back_pod_limit(files, wanted, until_s):
                self._report.notes.append(f"{original.name}: its pod's limit stays: a container was given more")

        with self._reported(original.name):
            above = group_of(Path(pod.cgroup), pod.cgroup_inode)
            if original.cgroup is not None and Path(original.cgroup).exists():
                until_s = 0.0  # no reason to wait
            if above is not None:
                group = CpuGroup.at(above)
                self._knob(original.name, "cpu_limit_mcpu", lambda: self._quota(group, wanted, write))

    def throttle(self, original: SliceOriginals) -> None:
        """The rate of its pod in Cilium's map."""
        entry = original.throttle
        if entry is not None:
            self._knob(
                original.name,
                "egress_mbps",
                lambda: put_back(self._maps.get(entry.pin, entry.map_id), entry, self._dry_run),
            )

    def egress(self, slices: list[SliceOriginals]) -> None:
        with contextlib.ExitStack() as undo:
            opened: dict[tuple[int, int], RouteSocket] = {}
            removals: list[tuple[str, EgressOriginals, RootQdisc]] = []
            for entry in sorted(slices, key=_moved):  # searching for a moved device takes longer
                assert entry.egress is not None
                if self._left(entry.name, "egress_mbps"):
                    continue
                with self._reported(entry.name):
                    qdisc = _qdisc(entry.egress, opened, undo)
                    if qdisc is None:
                        self._report.gone.append(f"{entry.name}: {entry.egress.device} in {entry.egress.netns}")
                        continue
                    removals.append((entry.name, entry.egress, qdisc))
                    if not self._dry_run and qdisc.present():
                        unpace(qdisc)
            for name, original, qdisc in removals:
                with self._reported(name):
                    self._done(name, self._shaper(original, qdisc))

    def moves(self, journal: Journal) -> None:
        """Move threads and processes back and remove our groups: last, since a move may wait for a grace period."""
        for thread in journal.threads:
            with self._reported(thread.slice):
                self._done(thread.slice, thread_back(thread, self._dry_run))
        for group in journal.groups:
            with self._reported(group.slice):
                self._done(group.slice, group_back(group, self._dry_run))

    def _container_quota(self, group: CpuGroup, original: SliceOriginals) -> str:
        wanted, pod = Bandwidth(original.quota_us, original.period_us, original.burst_us), original.pod

        def write(files: BandwidthFiles) -> None:
            above = None if pod is None else group_of(Path(pod.cgroup), pod.cgroup_inode)
            if above is None or pod is None or pod.quota_us is None or pod.period_us is None:
                files.write(*wanted)
                return
            with contextlib.closing(bandwidth_files(CpuGroup.at(above))) as pods:
                pods_own = Bandwidth(pod.quota_us, pod.period_us, pod.burst_us)
                if put_back_limit(files, wanted, pods, pods_own) != wanted:
                    self._report.notes.append(
                        f"{original.name}: the pod's limit was lowered; the container is capped to it"
                    )

        return self._quota(group, wanted, write)

    def _quota(self, group: CpuGroup, wanted: Bandwidth, write: Callable[[BandwidthFiles], None]) -> str:
        with contextlib.closing(bandwidth_files(group)) as files:
            now = files.read()
            if now == wanted:
                return ""
            if not self._dry_run:
                write(files)
            return f"{in_words(*now)} -> {in_words(*wanted)}"

    def _weight(self, group: CpuGroup, original: SliceOriginals | PodOriginals) -> str:
        if original.weight is None:
            return ""
        with contextlib.closing(weight_file(group)) as file:
            now = int(file.read())
            if now == original.weight:
                return ""
            if why := weight_refusal(group):  # made so by somebody else since
                self._report.notes.append(f"weight {original.weight} is not put back: {why}")
                return ""
            if not self._dry_run:
                file.write(b"%d" % original.weight)
            return f"weight {now} -> {original.weight}"

    def _shaper(self, original: EgressOriginals, qdisc: RootQdisc) -> str:
        if not qdisc.present():
            return ""
        if not self._dry_run:
            qdisc.remove()
        return f"{original.device}: shaper off"

    def _knob(self, name: str, knob: str, action: Callable[[], str]) -> None:
        if not self._left(name, knob):
            with self._reported(name):
                self._done(name, action())

    def _done(self, name: str, done: str) -> None:
        if done:
            self._report.restored.append(f"{name}: {done}")

    def _left(self, name: str, knob: str) -> bool:
        """Whether a knob is released, which is reported once."""
        left = (name, knob) in self._released
        if left and f"{name}: {knob}" not in self._report.released:
            self._report.released.append(f"{name}: {knob}")
        return left

    @contextlib.contextmanager
    def _reported(self, name: str) -> Iterator[None]:
        """Report failures, so that everything else is still tried."""
        try:
            yield
        except FileNotFoundError as error:
            self._report.gone.append(f"{name}: {error.filename}")
        except ActuatorError as error:
            (self._report.gone if error.vanished else self._report.failed).append(f"{name}: {error}")
        except OSError as error:
            self._report.failed.append(f"{name}: {error}")
        except Exception as error:  # noqa: BLE001 (also for our own bugs)
            self._report.failed.append(f"{name}: {type(error).__name__}: {error}")


def group_of(path: Path, inode: int) -> Path | None:
    """Where a cgroup is now: at its path, or under another name; None where it was removed.

    The inode is the group's id, which the kernel does not use again (kernfs, ``kernfs_node.id``).
    """
    try:
        if path.stat().st_ino == inode:
            return path
    except FileNotFoundError:
        pass
    with contextlib.suppress(ActuatorError, OSError):
        hierarchy = CpuHierarchy.find()
        if hierarchy.version == 1:  # groups of version 2 keep their names
            # It stays where it is (cgroup-v1/cgroups.rst, "rename"), so that those above it are as many as before.
            root = hierarchy.root.resolve()
            above = [folder for folder in path.resolve().parents if folder.is_relative_to(root)]
            for level, folder in enumerate(above, 1):
                for entry, number in below(folder, level):
                    if number == inode:
                        return entry
    return None


def _renamed(original: SliceOriginals) -> bool:
    """Whether its group is not at its path any more."""
    try:
        return original.cgroup is not None and Path(original.cgroup).stat().st_ino != original.cgroup_inode
    except (OSError, ValueError):
        return True


def _moved(original: SliceOriginals) -> bool:
    """Whether a device's namespace is not at its path any more."""
    egress = original.egress
    return egress is not None and _at_path(egress.netns, (egress.netns_device, egress.netns_inode)) is None


def _qdisc(
    original: EgressOriginals, opened: dict[tuple[int, int], RouteSocket], undo: contextlib.ExitStack
) -> RootQdisc | None:
    """The device's root qdisc, through one socket for each namespace; None when namespace or device have gone."""
    identity = original.netns_device, original.netns_inode
    if identity not in opened:
        path = _at_path(original.netns, identity) or namespaces.find(identity)
        if path is None:
            return None
        opened[identity] = route = RouteSocket(path)
        undo.callback(route.close)
    route = opened[identity]
    device = route.name_of(original.ifindex)
    return None if device is None else RootQdisc(route, device)


def _at_path(path: str | None, identity: tuple[int, int]) -> Path | None:
    candidate = Path(path or f"/proc/{os.getpid()}/ns/net")
    try:
        return candidate if namespaces.identity(candidate) == identity else None
    except OSError:
        return None


def restore_threads(original: SliceOriginals, dry_run: bool = False) -> str:
    """Give each thread of a slice the nice it had, wherever it is now; returns what was done.

    A thread that is not in the journal was started later: if it has the level of a reniced thread, it has inherited it,
    and gets the original of its process.

    Raises:
        ActuatorError: a thread cannot be reniced. That a thread has ended is no error.
    """
    originals = {
        entry.thread: entry.nice for entry in original.threads if start_ticks(entry.thread) == entry.start_ticks
    }
    processes = {entry.process: entry.nice for entry in reversed(original.threads)}
    processes |= {entry.thread: entry.nice for entry in original.threads if entry.thread == entry.process}
    ours = {level for thread in originals if (level := nice_of(thread)) not in {None, originals[thread]}}
    for thread in _members(Path(original.cgroup)) if original.cgroup is not None else ():
        if thread not in originals and nice_of(thread) in ours:
            process = process_of(thread)
            if process in processes:
                originals[thread] = processes[process]
    changed = {thread: nice for thread, nice in originals.items() if nice_of(thread) not in {None, nice}}
    for thread, nice in ({} if dry_run else changed).items():
        renice(thread, nice)
    return f"nice of {len(changed)} threads" if changed else ""


def _members(group: Path) -> list[int]:
    try:
        return [int(thread) for thread in CpuGroup.at(group).threads_file.read_text().split()]
    except (ActuatorError, OSError):  # the group has gone; its threads may be elsewhere
        return []
