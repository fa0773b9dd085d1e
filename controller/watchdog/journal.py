"""The original settings, as a file: all that any process needs to restore them.

One JSON document with its checksum: ``journal.json`` in a controller's state folder, replaced as a whole, and the same
in memory (`journal_memory`) and in root's own folder (`journal_file`). Nothing beside the standard library and the
actuators' plain files is imported here: the supervisor has to be small.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from slicepilot.controller.actuators.cilium.rate import FoundThrottle
from slicepilot.controller.actuators.nice import ThreadOriginal
from slicepilot.controller.system.own_groups import MovedThread, OwnGroup
from slicepilot.controller.system.processes import start_ticks

VERSION = 5
FILE = "journal.json"


@dataclass(frozen=True)
class EgressOriginals:
    """A device with its default root qdisc, which ours then replaces.

    Attributes:
        device: its name; ifindex: its number in the namespace, which stays when it is renamed.
        netns: path of its network namespace as it was given; none is the controller's own.
        netns_device, netns_inode: which namespace that was; paths may lead elsewhere later.
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
        cgroup, cgroup_inode: which.
        quota_us, period_us: where its limit follows the container's.
        weight: where it is moved in place of the container's.
    """

    cgroup: str
    cgroup_inode: int
    quota_us: int | None
    period_us: int | None
    weight: int | None


@dataclass(frozen=True)
class SliceOriginals:
    """The original settings of one slice's knobs.

    Attributes:
        name: of the slice.
        cgroup: path of its group; none where its CPU time is left alone.
        cgroup_inode: which group that was: one that was removed and made again has nothing of ours.
        quota_us, period_us: CFS bandwidth; a quota of -1 is none.
        weight: of ``cpu.shares`` (cgroup v1) or ``cpu.weight`` (v2); None: its pod's is moved.
        threads: originals of threads that were reniced, oldest first.
        egress: its device, or none; throttle: its entry in Cilium's map, where that is its egress rate instead.
        pod: the group above, where that follows, or has the weight.
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
    throttle: FoundThrottle | None = None


@dataclass(frozen=True)
class Journal:
    """All original settings, and the controller that read them.

    Attributes:
        boot_id: of the boot in which they were read: after another boot nothing of ours is left.
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
        """Of settings that were just read by a process that lives."""
        return cls(boot_id(), pid, start_ticks(pid) or 0, time.time_ns(), slices)

    @classmethod
    def load(cls, path: Path) -> Journal:
        """Read and check a file.

        Raises:
            FileNotFoundError: there is none.
            OSError: it cannot be read.
            JournalError: it is broken; one line that names file, field and value.
        """
        return cls.parse(path.read_bytes(), str(path))

    @classmethod
    def parse(cls, data: bytes, where: str) -> Journal:
        """The inverse of `dump`; raises JournalError, whose message begins with ``where``."""
        accepted = "what a controller has written"
        try:
            raw: Any = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise JournalError(f"{where}: not a journal ({error}); accepted: {accepted}") from None
        if not isinstance(raw, dict) or raw.keys() != {"version", "sha256", "journal"}:
            raise JournalError(f"{where}: not a journal; accepted: {accepted}")
        if raw["version"] != VERSION:
            raise JournalError(f"{where}: version = {raw['version']!r:.60}; accepted: {VERSION}")
        if raw["sha256"] != checksum(raw["journal"]):
            raise JournalError(f"{where}: changed since it was written (its checksum is another); accepted: {accepted}")
        return as_value(cls, raw["journal"], where)

    def dump(self) -> bytes:
        """As it is written."""
        plain = json.loads(json.dumps(dataclasses.asdict(self)))
        return json.dumps({"version": VERSION, "sha256": checksum(plain), "journal": plain}, indent=1).encode()

    @property
    def of_this_boot(self) -> bool:
        """Whether the machine has not been started anew since."""
        return self.boot_id == boot_id()

    @property
    def alive(self) -> bool:
        """Whether the controller that has written it lives."""
        return self.of_this_boot and start_ticks(self.pid) == self.start_ticks

    def with_slice(self, original: SliceOriginals) -> Journal:
        """With one slice's entry added, or replaced."""
        others = tuple(entry for entry in self.slices if entry.name != original.name)
        return dataclasses.replace(self, slices=(*others, original))

    def with_cpu(
        self, name: str, quota: tuple[int, int] | None, pod_quota: tuple[int, int] | None, weight: int | None
    ) -> Journal:
        """With other CPU knobs of one slice, in microseconds of quota and period; None for those that stay."""
        [entry] = [each for each in self.slices if each.name == name]
        pod = entry.pod
        if pod is not None:
            if pod_quota is None or pod_quota[0] < 0:  # without a limit there is nothing to follow
                quota_us, period_us = pod.quota_us, pod.period_us
            else:
                quota_us, period_us = pod_quota
            pod_weight = pod.weight if weight is None or pod.weight is None else weight
            pod = dataclasses.replace(pod, quota_us=quota_us, period_us=period_us, weight=pod_weight)
        quota_us, period_us = quota or (entry.quota_us, entry.period_us)
        own_weight = entry.weight if weight is None or entry.weight is None else weight
        return self.with_slice(
            dataclasses.replace(entry, quota_us=quota_us, period_us=period_us, weight=own_weight, pod=pod)
        )

    def with_threads(self, name: str, threads: tuple[ThreadOriginal, ...]) -> Journal:
        """With originals of one slice's threads added; raises KeyError for an unknown slice."""
        for entry in self.slices:
            if entry.name == name:
                return self.with_slice(dataclasses.replace(entry, threads=(*entry.threads, *threads)))
        raise KeyError(name)


def checksum(plain: Any) -> str:
    """Of a journal's plain values, however they are written."""
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def boot_id() -> str:
    """Of the running system (random(4))."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


T = TypeVar("T")


class JournalError(ValueError):
    """A journal that cannot be read: the message is one line that names the file, the field and what is accepted."""


def as_value(kind: type[T], raw: Any, where: str) -> T:
    """``raw`` as a dataclass of str, int, bool, tuples, None and such dataclasses; raises JournalError."""
    value = _convert(kind, raw, f"{where}: ")
    assert isinstance(value, kind)
    return value


def _convert(kind: Any, raw: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:  # X | None
        return None if raw is None else _convert(arguments[0], raw, where)
    if origin is tuple:
        return _tuple(arguments, raw, where)
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, raw, where)
    if type(raw) is not kind:  # not isinstance: True is no number
        raise JournalError(f"{where.rstrip('.: ')} = {raw!r:.60}; accepted: {kind.__name__}")
    return raw


def _tuple(arguments: tuple[Any, ...], raw: Any, where: str) -> tuple[Any, ...]:
    lengths = "any length" if arguments[-1] is ... else f"{len(arguments)} entries"
    if not isinstance(raw, list) or (arguments[-1] is not ... and len(raw) != len(arguments)):
        raise JournalError(f"{where.rstrip('.: ')} = {raw!r:.60}; accepted: a list of {lengths}")
    kinds = [arguments[0]] * len(raw) if arguments[-1] is ... else arguments
    return tuple(
        _convert(kind, item, f"{where}{index}.") for index, (kind, item) in enumerate(zip(kinds, raw, strict=True))
    )


def _dataclass(kind: Any, raw: Any, where: str) -> Any:
    fields = {field.name: field for field in dataclasses.fields(kind)}
    if not isinstance(raw, dict):
        raise JournalError(f"{where.rstrip('.: ')} = {raw!r:.60}; accepted: an object with {', '.join(fields)}")
    wrong = sorted(raw.keys() ^ fields.keys())
    if wrong:
        state = "unknown" if wrong[0] in raw else "missing"
        raise JournalError(f"{where}{wrong[0]}: {state}; accepted: {', '.join(fields)}")
    hints = typing.get_type_hints(kind)
    return kind(**{name: _convert(hints[name], raw[name], f"{where}{name}.") for name in fields})
