"""The controller's journal while it runs: on disk, and in memory that the supervisor shares, before what it speaks of
is written to the kernel."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from slicepilot.controller.actuators.cilium.choice import Choice
from slicepilot.controller.actuators.nice import ThreadOriginal
from slicepilot.controller.actuators.slice_knobs import FoundCpu, SliceTargets
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.own_groups import MovedThread, OwnGroup
from slicepilot.env.knobs import KnobName

from .journal import Journal
from .journal_file import JournalFile
from .journal_memory import JournalMemory
from .survey import survey


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
            released = tuple((one.name, knob) for one in targets for knob in sorted(one.left))
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
        return next((Choice(one.throttle) for one in self._journal.slices if one.name == target.name), Choice())

    @property
    def maps(self) -> frozenset[tuple[str, int]]:
        """Path and number of the maps of Cilium that the journal speaks of."""
        entries = (one.throttle for one in self._journal.slices)
        return frozenset((entry.pin, entry.map_id) for entry in entries if entry is not None)

    def remember(self, name: str, threads: Sequence[ThreadOriginal]) -> None:
        """Add originals of a slice's threads (`NodeActuator` calls it before it renices them); raises ActuatorError."""
        with self._lock:
            self._save(self._journal.with_threads(name, tuple(threads)))

    def renew(self, target: SliceTargets) -> None:
        """Look again at a slice whose group or device was made anew, before its knobs are set; raises ActuatorError."""
        [found] = survey([target])
        with self._lock:
            others = tuple(one for one in self._journal.released if one[0] != target.name)
            released = (*others, *((target.name, knob) for knob in sorted(target.left)))
            self._save(dataclasses.replace(self._journal.with_slice(found), released=released))

    def rebase(self, name: str, found: FoundCpu) -> None:
        """Have what others have set since put back, in place of what was found at first; raises ActuatorError."""
        with self._lock:
            self._save(self._journal.with_cpu(name, found.quota, found.pod_quota, found.weight))

    def house(self, groups: Sequence[OwnGroup], threads: Sequence[MovedThread]) -> None:
        """What is made and moved for UPFs from now on, all of it, before that is done; raises ActuatorError."""
        with self._lock:
            self._save(dataclasses.replace(self._journal, groups=tuple(groups), threads=tuple(threads)))

    def release(self, name: str, knob: KnobName) -> None:
        """Leave a knob as it is when restoring: somebody else has set it; raises ActuatorError."""
        with self._lock:
            if (name, knob) not in self._journal.released:
                self._save(dataclasses.replace(self._journal, released=(*self._journal.released, (name, knob))))

    def reclaim(self, name: str, knob: KnobName) -> None:
        """Take back a `release`: what was found at first is put back again; raises ActuatorError."""
        with self._lock:
            left = tuple(one for one in self._journal.released if one != (name, knob))
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
