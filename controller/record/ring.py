"""The last ticks of a running controller in a file that other processes map: one writer, any number of readers.

The loop writes a record of fixed size after each tick, without a system call or a lock, and does not depend on readers:
a slow or stopped reader does not delay it. Metrics, records on disk, status and logs are made by readers in other
processes.

The file begins with `HEADER`; then come two JSON documents (what is fixed for a run, and notes that change about once a
second), the delay histograms, and the records. A record is complete when its ``sequence`` is that of its tick, before
and after reading; a document or histogram when its generation is even and did not change while it was read.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import struct
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from slicepilot.controller.contracts.charge import InCharge, charges_of
from slicepilot.controller.telemetry.layout import BUCKETS
from slicepilot.env.arrays import FloatArray
from slicepilot.env.encoding import KNOB_FEATURES
from slicepilot.env.knobs import KNOB_FIELDS, NUM_KNOBS, Knobs
from slicepilot.env.telemetry import NODE_FIELDS, SLICE_FIELDS, Telemetry

from .header import BEAT_AT, DELAYS_AT, DESCRIPTION_AT, HEADER, MAGIC, NOTES_AT, VERSION, WRITTEN_AT

PAGE = 4096
DOCUMENT_BYTES = 1 << 18
DEFAULT_SLOTS = 4096
DESCRIPTIONS = 256
Records = npt.NDArray[Any]
"""Ticks as `record_dtype` has them."""
STAGES_NS = ("wakeup_ns", "observe_ns", "infer_ns", "guard_ns", "apply_ns")

# Flags of a record.
LATE, UNUSABLE, APPLY_ERROR, HELD, POWERLESS = 1, 2, 4, 8, 16
"""``POWERLESS``: the mode acts, and no knob could be moved."""


def record_dtype(num_slices: int) -> np.dtype[Any]:
    """One tick.

    ``sequence`` is the tick's number + 1; ``time_ns`` CLOCK_REALTIME and ``monotonic_ns`` CLOCK_MONOTONIC at its start;
    ``wanted``, ``allowed`` and ``applied`` are knobs in the order of `KNOB_FIELDS`: what the policy wanted, what the
    guard allowed, and what holds by the receipt (in shadow: the settings of others). ``drawn``, in the order of
    `KNOB_FEATURES`, ``log_density`` and the flag `HELD` are a stochastic policy's
    (`slicepilot.agents.base.StochasticAgent`); NaN for others. Masks are of `slicepilot.controller.contracts.reasons`,
    ``description`` the generation of the run's description it was decided under.
    """
    s = num_slices
    return np.dtype(
        [
            ("sequence", "u8"),
            ("time_ns", "i8"),
            ("monotonic_ns", "i8"),
            ("description", "u4"),
            ("mode", "u1"),
            ("level", "u1"),
            ("flags", "u2"),
            ("node_reasons", "u4"),
            ("missed", "u4"),
            *((stage, "u4") for stage in STAGES_NS),
            ("age_s", "f4"),
            ("log_density", "f4"),
            ("slices", "f4", (len(SLICE_FIELDS), s)),
            ("node", "f4", len(NODE_FIELDS)),
            ("wanted", "f4", (len(KNOB_FIELDS), s)),
            ("allowed", "f4", (len(KNOB_FIELDS), s)),
            ("applied", "f4", (len(KNOB_FIELDS), s)),
            ("drawn", "f4", (s, len(KNOB_FEATURES))),
            ("reasons", "u4", s),
            ("valid", "u1", (s + 7) // 8 * 8),
        ],
        align=True,
    )


def masks_of(records: Records) -> npt.NDArray[np.uint32]:
    """Reason masks (N, S + 1): of each slice, then of the node."""
    return np.column_stack([records["reasons"], records["node_reasons"]])


def fingerprint(records: Records) -> str:
    """SHA-256 of ticks' bytes as they are in the ring, where padding is 0: by it evidence identifies them."""
    whole = np.zeros(len(records), records.dtype)
    for name in records.dtype.names or ():
        whole[name] = records[name]
    return hashlib.sha256(whole.tobytes()).hexdigest()


def charge_counts(records: Records) -> npt.NDArray[np.int64]:
    """Ticks by what was in charge, (4,) in the order of `InCharge`."""
    flags = records["flags"]
    charges = charges_of(records["level"], flags & LATE != 0, flags & POWERLESS != 0, masks_of(records))
    return np.bincount(charges, minlength=len(InCharge))


_HEAD = struct.Struct("=qqIBBHIIIIIIIff")  # the scalars after sequence
_WORD = 8
_LONGEST_NS = (1 << 32) - 1


class Tick(NamedTuple):
    """The scalars of a record, units as in `record_dtype`, in the file's order but for ``age_s``."""

    time_ns: int = 0
    monotonic_ns: int = 0
    mode: int = 0
    level: int = 0
    flags: int = 0
    node_reasons: int = 0
    missed: int = 0
    wakeup_ns: int = 0
    observe_ns: int = 0
    infer_ns: int = 0
    guard_ns: int = 0
    apply_ns: int = 0
    log_density: float = math.nan


class RingLayout:
    """Where things are in the file."""

    def __init__(self, num_slices: int, slots: int) -> None:
        self.dtype = record_dtype(num_slices)
        self.description = PAGE
        self.notes = self.description + DOCUMENT_BYTES
        self.delays = self.notes + DOCUMENT_BYTES
        size = 8 * num_slices * BUCKETS
        self.records = self.delays + (size + PAGE - 1) // PAGE * PAGE
        self.size = self.records + slots * self.dtype.itemsize


class TickRing:
    """The writing side.

    Args:
        path: made anew; a reader of an older file keeps that file.
        num_slices: of every record.
        slots: records kept.

    Attributes:
        descriptions: by generation, of the records in the ring.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, path: Path, num_slices: int, slots: int = DEFAULT_SLOTS) -> None:
        self.path, self.num_slices, self.slots = path, num_slices, slots
        layout = RingLayout(num_slices, slots)
        staging = path.with_name(f".{path.name}.{os.getpid()}")
        staging.unlink(missing_ok=True)  # of a controller of this process id that was killed
        descriptor = os.open(staging, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
        try:
            os.posix_fallocate(descriptor, 0, layout.size)
            self._memory = mmap.mmap(descriptor, layout.size)
        finally:
            os.close(descriptor)
        self._layout = layout
        self._records_at, self._record_bytes = layout.records, layout.dtype.itemsize
        head = (MAGIC, VERSION, num_slices, slots, layout.dtype.itemsize, layout.records, 0, time.monotonic_ns())
        HEADER.pack_into(self._memory, 0, *head, 0, 0, 0)
        self._records: npt.NDArray[Any] = np.frombuffer(self._memory, layout.dtype, slots, layout.records)
        self._delays = np.frombuffer(self._memory, np.uint64, num_slices * BUCKETS, layout.delays).reshape(
            num_slices, BUCKETS
        )
        # Only the writer needs numba; readers should start fast.
        from .ring_kernel import put

        self._put: Any = put
        self._words = memoryview(self._memory).cast("Q")
        flat = np.frombuffer(self._memory, np.uint8, slots * layout.dtype.itemsize, layout.records)
        table = flat.reshape(slots, layout.dtype.itemsize)
        self._tables = _views(table, layout.dtype)
        self._no_draw = np.full((num_slices, len(KNOB_FEATURES)), np.nan, np.float32)
        self._warm_up()
        fields: Any = layout.dtype.fields
        self._head_at = fields["time_ns"][1]
        self._written = 0
        self._description = 0
        self.descriptions: dict[int, dict[str, Any]] = {}
        staging.replace(path)

    @property
    def written(self) -> int:
        return self._written

    def describe(self, description: dict[str, Any]) -> None:
        """Replace the run's description (JSON); records from now on refer to it."""
        self._description = self._document(DESCRIPTION_AT, self._layout.description, description)
        self.descriptions[self._description] = description
        if len(self.descriptions) > DESCRIPTIONS:
            del self.descriptions[min(self.descriptions)]

    def note(self, notes: dict[str, Any]) -> None:
        self._document(NOTES_AT, self._layout.notes, notes)

    def delays(self, counts: npt.NDArray[np.uint32]) -> None:
        """Replace the delay histograms, packets since the probe's start by bucket (S, BUCKETS)."""
        generation = self._begin(DELAYS_AT)
        self._delays[:] = counts
        struct.pack_into("=Q", self._memory, DELAYS_AT, generation + 1)

    def ticks(self, first: int, end: int) -> Records:
        """A copy of the ticks [first, end), numbered from 0, without those that the loop has overwritten by now."""
        numbers = np.arange(first, end)
        copied = self._records[numbers % self.slots]
        # The tick that is being written uses the slot of the oldest tick.
        return copied[numbers > self._written - self.slots]

    def write(
        self,
        tick: Tick,
        telemetry: Telemetry,
        wanted: Knobs,
        allowed: Knobs,
        applied: Knobs,
        reasons: npt.NDArray[np.uint32],
        drawn: FloatArray | None = None,
    ) -> None:
        """Add one tick; telemetry and knobs of one lane, ``reasons`` (S,), ``drawn`` (S, 3).

        A decision or a draw of another shape is written as NaN.
        """
        written, words = self._written, self._words
        slot = written % self.slots
        at = self._records_at + slot * self._record_bytes
        words[at // _WORD] = 0
        head = *tick[:2], self._description, *tick[2:-1]
        floats = _number(telemetry.age_s[0]), _number(tick.log_density)
        try:
            _HEAD.pack_into(self._memory, at + self._head_at, *head, *floats)
        except struct.error:  # stopped for more than the four seconds that fit into 32 bits
            short = (min(value, _LONGEST_NS) for value in head[3:])
            _HEAD.pack_into(self._memory, at + self._head_at, *head[:3], *short, *floats)
        measured = telemetry.slices, telemetry.node, telemetry.valid
        knobs = wanted.values, allowed.values, applied.values
        draw = self._no_draw if drawn is None else drawn
        try:
            self._put(slot, *self._tables, *measured, *knobs, draw, reasons)
        except (TypeError, ValueError):  # of another precision, layout or shape
            plain = *map(_plain, measured[:2]), np.array(measured[2], np.bool_), *map(_plain, knobs)
            no_numbers = np.full((NUM_KNOBS, self.num_slices, 1), np.nan, np.float32)
            wanted_values = plain[3] if plain[3].shape == no_numbers.shape else no_numbers
            draw = _plain(draw) if draw.shape == self._no_draw.shape else self._no_draw
            plain = *plain[:3], wanted_values, *plain[4:], draw
            self._put(slot, *self._tables, *plain, np.array(reasons, np.uint32))
        self._written = words[at // _WORD] = written + 1
        words[WRITTEN_AT // _WORD] = written + 1
        words[BEAT_AT // _WORD] = tick.monotonic_ns

    def beat(self) -> None:
        self._words[BEAT_AT // _WORD] = time.monotonic_ns()

    def close(self) -> None:
        """Remove the file; readers keep what they have mapped."""
        self.path.unlink(missing_ok=True)

    def _warm_up(self) -> None:
        """Compile the writer, or load it from the cache."""
        telemetry, knobs = Telemetry.empty(self.num_slices), Knobs.none(self.num_slices).values
        measured = telemetry.slices, telemetry.node, telemetry.valid
        nothing = self._no_draw, np.zeros(self.num_slices, np.uint32)
        self._put(0, *self._tables, *measured, *[knobs] * 3, *nothing)
        self._put.disable_compile()  # compiling would take seconds

    def _begin(self, at: int) -> int:
        generation: int = struct.unpack_from("=Q", self._memory, at)[0] + 1
        struct.pack_into("=Q", self._memory, at, generation)
        return generation

    def _document(self, generation_at: int, at: int, value: dict[str, Any]) -> int:
        text = json.dumps(value, separators=(",", ":")).encode()
        if len(text) + 4 > DOCUMENT_BYTES:
            raise ValueError(f"document of {len(text)} bytes; expected at most {DOCUMENT_BYTES - 4}")
        generation = self._begin(generation_at) + 1
        struct.pack_into("=I", self._memory, at, len(text))
        self._memory[at + 4 : at + 4 + len(text)] = text
        struct.pack_into("=Q", self._memory, generation_at, generation)
        return generation


def _number(value: float) -> float:
    """The value, with a single bit pattern for NaN, since evidence identifies ticks by their bytes."""
    return value if value == value else math.nan  # noqa: PLR0124 (half as long as a call of math.isnan)


def _plain(values: FloatArray) -> FloatArray:
    return np.array(values, np.float32, order="C")


def _views(table: npt.NDArray[np.uint8], dtype: np.dtype[Any]) -> tuple[FloatArray, Any, Any]:
    fields: Any = dtype.fields
    first, masks, valid = fields["slices"][1], fields["reasons"][1], fields["valid"][1]
    end = masks + fields["reasons"][0].itemsize
    return (
        table[:, first:masks].view(np.float32),
        table[:, masks:end].view(np.uint32),
        table[:, valid : valid + fields["valid"][0].itemsize].view(np.bool_),
    )
