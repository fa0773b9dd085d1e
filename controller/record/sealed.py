"""Records that a controller has sealed (`slicepilot.controller.record.seals`): what of a folder may be believed.

A tick counts when it is, bit for bit, what the loop wrote into the ring, under the description that the controller
gave, in a run of this controller, and once. All else is named with what is wrong: forged or changed, from elsewhere,
told twice. Ticks that were sealed and are not there are counted.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from slicepilot.configs import ConfigError

from .columns import Records
from .reader import SegmentReader, Stretch
from .seals import LOG, MOST_BYTES, OLDER_LOG, VERSION, canonical, digest_of, load_key, mac_of, open_private

_FIELDS = {"seals": 4, "run": 5, "ticks": 6}


@dataclass(frozen=True)
class Seal:
    """Ticks of one description: sequences ``first`` to ``last``, the SHA-256 of their bytes."""

    run_id: str
    generation: int
    first: int
    last: int
    digest: str


@dataclass
class Seals:
    """What the seals of a state folder say.

    Attributes:
        ticks: all seals, in the order in which they were written.
        descriptions: SHA-256 of each, and the digest of its bundle (None: none), by run and generation.
        broken: lines that are not the controller's, by file.
    """

    ticks: list[Seal] = field(default_factory=list)
    descriptions: dict[tuple[str, int], tuple[str, str | None]] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path) -> Seals:
        """Read them, and check every line.

        Raises:
            ConfigError: there are none, they may not be read, or others can have written them.
        """
        seals = cls()
        try:
            key = load_key(folder)
            previous = "0"
            for name in (OLDER_LOG, LOG):
                path = folder / name
                if name == LOG or path.exists():
                    previous = seals._read(path, key, previous)
        except FileNotFoundError as error:
            raise ConfigError(
                f"records: {error.filename}: missing; accepted: the folder 'records' in the state of a controller, "
                "which seals what it records"
            ) from None
        except OSError as error:
            raise ConfigError(
                f"{error.filename}: {error.strerror}; accepted: root, or who ran the controller"
            ) from error
        return seals

    def _read(self, path: Path, key: bytes, previous: str) -> str:
        """One file; returns the last MAC."""
        with os.fdopen(open_private(path, os.O_RDONLY), "rb") as file:
            lines = file.read(2 * MOST_BYTES).decode("ascii", "replace").split("\n")
        before = "0"
        for number, text in enumerate(lines[:-1], 1):  # what follows the last newline is half a line
            line, _, mac = text.rpartition(" ")
            fields = line.split(" ")
            if number == 1:
                # The file before may be gone for its age; a file that was put in front of another one is not.
                before = fields[-1]
                if previous not in {before, "0"}:
                    self.broken.setdefault(path.name, "line 1 does not follow the file before")
            sound = len(mac) == 64 and hmac.compare_digest(mac_of(key, before, line).encode(), mac.encode())
            before = mac
            if not sound or _FIELDS.get(fields[0]) != len(fields):
                self.broken.setdefault(path.name, f"line {number} is not the controller's")
            elif fields[0] == "seals" and fields[1] != str(VERSION):
                raise ConfigError(f"{path}: version {fields[1]}; accepted: {VERSION}")
            elif fields[0] == "run":
                self.descriptions[fields[1], int(fields[2])] = fields[3], None if fields[4] == "-" else fields[4]
            elif fields[0] == "ticks":
                self.ticks.append(Seal(fields[1], int(fields[2]), int(fields[3]), int(fields[4]), fields[5]))
        return before


class SealedRecords:
    """The stretches of a records folder that its controller has sealed.

    Args:
        folder: ``records`` in a controller's state folder, which holds the seals.

    Attributes:
        broken: files that were left out, in part or altogether, and why.
        unsealed: ticks that were read and do not count: not sealed, changed, or told twice.

    Raises:
        ConfigError: no such folder, or no seals beside it.
    """

    def __init__(self, folder: Path) -> None:
        self.reader = SegmentReader(folder)
        self._seals = Seals.load(folder.resolve().parent)
        self._by_run: dict[str, list[int]] = defaultdict(list)
        for index, seal in enumerate(self._seals.ticks):
            self._by_run[seal.run_id].append(index)
        for indices in self._by_run.values():
            indices.sort(key=lambda index: self._seals.ticks[index].first)
        self._there: set[int] = set()
        self._pending: dict[str, Stretch] = {}
        self.unsealed = 0

    @property
    def broken(self) -> dict[str, str]:
        """See the class."""
        return self._seals.broken | self.reader.broken

    def stretches(self) -> Iterator[Stretch]:
        """Sealed ticks, oldest first within a run."""
        for segment in self.reader.segments():
            try:
                records = segment.records()
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                self.reader.note(segment.path, error)
                continue
            yield from self._sealed(segment.path, Stretch(segment.description, records))
        for left in self._pending.values():
            self.unsealed += len(left.records)

    def missing(self, bundle: str) -> tuple[int, int]:
        """Sealed ticks of a bundle that were not among `stretches`, and how many it has; since the first that was.

        What is older may have made room: the oldest segments go first.
        """
        ticks = self._seals.ticks
        theirs = [i for i, seal in enumerate(ticks) if self._bundle(seal) == bundle]
        first = next((at for at, index in enumerate(theirs) if index in self._there), len(theirs))
        counts = [(ticks[i].last - ticks[i].first + 1, i in self._there) for i in theirs[first:]]
        return sum(count for count, there in counts if not there), sum(count for count, _ in counts)

    def _bundle(self, seal: Seal) -> str | None:
        return self._seals.descriptions.get((seal.run_id, seal.generation), ("", None))[1]

    def _sealed(self, path: Path, stretch: Stretch) -> Iterator[Stretch]:
        run_id, why = stretch.key, ""
        if run_id not in self._by_run:
            why = "no run of this controller, or one that it has not sealed"
        elif not self._described(stretch):
            why = "its description is not the one that the controller gave"
        elif len(stretch.records) and (np.diff(stretch.records["sequence"].astype(np.int64)) <= 0).any():
            why = "its ticks are not in order"
        if why:
            self.unsealed += len(stretch.records)
            self.reader.note(path, why)
            return
        before = self._pending.pop(run_id, None)
        if before is not None and before.records.dtype == stretch.records.dtype:
            parts = before.records, stretch.records
            if before.description == stretch.description and parts[0][-1]["sequence"] < parts[1][0]["sequence"]:
                stretch = Stretch(stretch.description, np.concatenate(parts))
            else:
                self.unsealed += len(before.records)
        elif before is not None:
            self.unsealed += len(before.records)
        yield from self._match(path, stretch)

    def _described(self, stretch: Stretch) -> bool:
        """Whether a description is one that the controller gave in that run, for the bundle of all of the ticks.

        It need not be that of the ticks' generation: a publisher that looks too late has a newer one of the run.
        """
        known, digest = self._seals.descriptions, hashlib.sha256(canonical(stretch.description)).hexdigest()
        given = {bundle for (run, _), (told, bundle) in known.items() if run == stretch.key and told == digest}
        generations = np.unique(stretch.records["description"]).tolist()
        return all(known.get((stretch.key, one), ("", None))[1] in given for one in generations)

    def _match(self, path: Path, stretch: Stretch) -> Iterator[Stretch]:
        """Those of a stretch's ticks that are sealed; what a seal to come may hold waits for the next segment."""
        records, ticks = stretch.records, self._seals.ticks
        sequences = records["sequence"].astype(np.int64)
        indices = self._by_run[stretch.key]
        at = bisect_left(indices, int(sequences[0]) if len(records) else 0, key=lambda index: ticks[index].first)
        counted, rest = 0, len(records)
        for index in indices[at:]:
            seal = ticks[index]
            start, end = np.searchsorted(sequences, (seal.first, seal.last + 1)).tolist()
            if start == len(records):
                break
            if sequences[-1] < seal.last:
                rest = start
                break
            part = records[start:end]
            if index in self._there:
                self._name(path, seal, "were told before")
            elif len(part) == seal.last - seal.first + 1 and hmac.compare_digest(_digest(part), seal.digest):
                self._there.add(index)
                counted += len(part)
                yield Stretch(stretch.description, part)
            else:
                self._name(path, seal, "are not as the controller wrote them")
        if rest < len(records):
            self._pending[stretch.key] = Stretch(stretch.description, records[rest:])
        self.unsealed += rest - counted

    def _name(self, path: Path, seal: Seal, what: str) -> None:
        self.reader.note(path, f"ticks {seal.first} to {seal.last} of run {seal.run_id} {what}")


def _digest(records: Records) -> str:
    """Of the bytes as the ring has them, where what lies between fields is 0."""
    whole = np.zeros(len(records), records.dtype)
    for name in records.dtype.names or ():
        whole[name] = records[name]
    return digest_of([whole.tobytes()])
