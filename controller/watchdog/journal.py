"""The original settings, as a file: all that any process needs to restore them.

One JSON document with its checksum, in a folder that only root can open and that is in memory (``/run``): original
settings hold until the next boot, so no disk is needed. The supervisor has the same in memory of its own
(`journal_memory`). Nothing but the standard library and the actuators' plain files is imported here, because the
supervisor has to be small.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slicepilot.controller.actuators.bandwidth import Bandwidth
from slicepilot.controller.actuators.cilium.rate import OriginalThrottle
from slicepilot.controller.actuators.nice import ThreadOriginal
from slicepilot.controller.system.own_groups import MovedThread, OwnGroup
from slicepilot.controller.system.processes import start_ticks

from .lock import private_folder

VERSION = 6
PREFIX = "journal-"


def journal_path(state: Path) -> Path:
    """Where the journal of a controller is, given its state folder; raises ActuatorError."""
    digest = hashlib.sha256(os.fsencode(state.absolute())).hexdigest()[:16]
    return private_folder() / f"{PREFIX}{digest}-{state.name}"


def states_with_journal(root: Path) -> list[Path]:
    """State folders in ``root`` that have a journal, even if the folder itself was removed; raises ActuatorError."""
    names = [path.name.split("-", 2)[2] for path in private_folder().glob(f"{PREFIX}*-*")]
    return [root / name for name in names if journal_path(root / name).exists()]


@dataclass(frozen=True)
class EgressOriginals:
    """A device with its default root qdisc, which our shaper then replaces.

    Attributes:
        device: its name; ifindex: its number in the namespace, which a renamed device keeps.
        netns: configured path of its network namespace; None is the controller's own.
        netns_device, netns_inode: identify that namespace; the path may lead to another later.
    """

    device: str
    ifindex: int
    netns: str | None
    netns_device: int
    netns_inode: int


@dataclass(frozen=True)
class PodOriginals:
    """The group above a container's: as in `SliceOriginals`, and None for what stays as it is.

    Attributes:
        cgroup, cgroup_inode: identify the group.
        quota_us, period_us, burst_us: its limit, where that follows the container's.
        weight: its weight, where that is moved instead of the container's.
    """

    cgroup: str
    cgroup_inode: int
    quota_us: int | None
    period_us: int | None
    weight: int | None
    burst_us: int = 0


@dataclass(frozen=True)
class SliceOriginals:
    """The original settings of one slice's knobs.

    Attributes:
        name: of the slice.
        cgroup: path of its group; None where its CPU time is left alone.
        cgroup_inode: identifies that group; a group that was removed and made again has none of our settings.
        quota_us, period_us, burst_us: CFS bandwidth; a quota of -1 is none.
        weight: of ``cpu.shares`` (cgroup v1) or ``cpu.weight`` (v2); None where its pod's is moved, or none can be.
        threads: originals of threads that were reniced, oldest first.
        egress: its device, or None; throttle: its entry in Cilium's map, where that sets its egress rate instead.
        pod: the group above, where that follows the container's limit, or has the weight.
    """

    name: str
    cgroup: str | None
    cgroup_inode: int
    quota_us: int
    period_us: int
    weight: int | None
    threads: tuple[ThreadOriginal, ...] = ()
    egress: EgressOriginals | None = None
    pod: PodOriginals | None = None
    throttle: OriginalThrottle | None = None
    burst_us: int = 0


@dataclass(frozen=True)
class Journal:
    """All original settings, and the controller that read them.

    Attributes:
        boot_id: of the boot in which they were read; after another boot there is nothing to restore.
        pid, start_ticks: the controller (`slicepilot.controller.system.processes`).
        created_ns: CLOCK_REALTIME.
        slices: their original settings.
        released: (slice, knob) that another program has set and that are not restored.
        groups: groups that are made, or about to be, for UPFs that have none of their own.
        threads: kernel threads that are moved into UPFs' groups.
    """

    boot_id: str
    pid: int
    start_ticks: int
    created_ns: int
    slices: tuple[SliceOriginals, ...]
    released: tuple[tuple[str, str], ...] = ()
    groups: tuple[OwnGroup, ...] = ()
    threads: tuple[MovedThread, ...] = ()

    @classmethod
    def of(cls, slices: tuple[SliceOriginals, ...], pid: int) -> Journal:
        """A journal of settings that a running process has just read."""
        return cls(boot_id(), pid, start_ticks(pid) or 0, time.time_ns(), slices)

    @classmethod
    def load(cls, path: Path) -> Journal:
        """Read and check a file; raises OSError, or JournalError for a damaged file."""
        return cls.parse(path.read_bytes(), str(path))

    @classmethod
    def parse(cls, data: bytes, where: str) -> Journal:
        """The inverse of `dump`; raises JournalError, whose message begins with ``where``."""
        try:
            raw: Any = json.loads(data)
            version, sha256, journal = (raw[key] for key in ("version", "sha256", "journal"))
        except (ValueError, RecursionError, KeyError, TypeError, IndexError) as error:
            raise JournalError(f"{where}: not a journal ({error})") from None
        if version != VERSION:
            raise JournalError(f"{where}: version = {version!r:.60}; expected {VERSION}")
        if sha256 != checksum(journal):
            raise JournalError(f"{where}: changed since it was written (wrong checksum)")
        try:
            value: Journal = _convert(cls, journal)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise JournalError(f"{where}: not the fields of a journal ({error!s:.100})") from None
        return value

    def dump(self) -> bytes:
        plain = json.loads(json.dumps(dataclasses.asdict(self)))
        return json.dumps({"version": VERSION, "sha256": checksum(plain), "journal": plain}, indent=1).encode()

    @property
    def of_this_boot(self) -> bool:
        return self.boot_id == boot_id()

    @property
    def alive(self) -> bool:
        """Whether the controller that has written it runs."""
        return self.of_this_boot and start_ticks(self.pid) == self.start_ticks

    def with_slice(self, original: SliceOriginals) -> Journal:
        """A copy with the entry of one slice added or replaced."""
        others = tuple(entry for entry in self.slices if entry.name != original.name)
        return dataclasses.replace(self, slices=(*others, original))

    def with_cpu(self, name: str, quota: Bandwidth | None, pod_quota: Bandwidth | None, weight: int | None) -> Journal:
        """A copy with other CPU settings of one slice; None keeps a setting."""
        [entry] = [each for each in self.slices if each.name == name]
        pod = entry.pod
        if pod is not None:
            if pod_quota is not None and pod_quota.quota_us >= 0:  # without a limit there is nothing to follow
                pod = dataclasses.replace(pod, **pod_quota._asdict())
            pod_weight = pod.weight if weight is None or pod.weight is None else weight
            pod = dataclasses.replace(pod, weight=pod_weight)
        if quota is not None:
            entry = dataclasses.replace(entry, **quota._asdict())
        own_weight = entry.weight if weight is None or entry.weight is None else weight
        return self.with_slice(dataclasses.replace(entry, weight=own_weight, pod=pod))

    def with_threads(self, name: str, threads: tuple[ThreadOriginal, ...]) -> Journal:
        """A copy with original nice values of threads added to one slice."""
        [entry] = [each for each in self.slices if each.name == name]
        return self.with_slice(dataclasses.replace(entry, threads=(*entry.threads, *threads)))


def checksum(plain: Any) -> str:
    """SHA-256 of a journal's values, independent of their formatting."""
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def boot_id() -> str:
    """Identifies the current boot (random(4))."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class JournalError(ValueError):
    """A journal that cannot be read: a message of one line that begins with the file."""


def _convert(kind: Any, raw: Any) -> Any:
    """Plain values as a dataclass of str, int, bool, tuples, None and such dataclasses.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: fields or types that do not fit.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:  # X | None
        return None if raw is None else _convert(arguments[0], raw)
    if origin is tuple:
        kinds = [arguments[0]] * len(raw) if arguments[-1] is ... else arguments
        return tuple(_convert(item_kind, item) for item_kind, item in zip(kinds, raw, strict=True))
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{name: _convert(hints[name], value) for name, value in raw.items()})
    if type(raw) is not kind:  # not isinstance: True is not a number
        raise TypeError(f"{raw!r:.60}: expected {kind.__name__}")
    return raw
