"""Checks of a forwarding file beyond its fields: ranges, delays against the clock, order and repetition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slicepilot.data.arrow import values_of
from slicepilot.data.csv.blocks import Block
from slicepilot.data.faults import DatasetError, FaultKind, Faults

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

PACKET_BYTES = (1, 65_549)  # up to the longest IPv4 packet in an Ethernet frame
# How far a delay may be from the difference of the clock's readings: files may round it to whole microseconds or to six
# significant digits.
ROUNDED_US, ROUNDED_RATIO = 1.0, 1e-5
UNITS = {1e3: "nanoseconds", 1e-3: "milliseconds", 1e-6: "seconds"}  # by what they make of a microsecond
UNIT_RATIO = 0.1  # how far from such a factor a value may be: short delays in ms have few digits
MIXED_ROWS, MIXED_SHARE = 100, 0.01  # in another unit: from then on it is the file, and not some rows
# Each CPU has its own buffer of rows, which holds less than a second at the published rates.
REORDERED_NS = 1_000_000_000
RECENT_ROWS = 1 << 18  # kept of the last second, and at least those of a block


def in_range(block: Block, faults: Faults) -> Block:
    """The rows whose delay and times are not negative and whose length is one of `PACKET_BYTES`."""
    limits = {"delay_us": (0.0, np.inf), "pkt_len": PACKET_BYTES, "ts_rx_ns": (0, np.inf), "ts_tx_ns": (0, np.inf)}
    for column, (low, high) in limits.items():
        values = values_of(block.table.column(column))
        if len(values) and (values.min() < low or values.max() > high):
            block = without(block, (values < low) | (values > high), faults, "range", column)
    return block


def without(block: Block, wrong: Mask, faults: Faults, kind: FaultKind, column: str | None = None) -> Block:
    """The rows that are not wrong (N,); the others are noted, with their values in columns of numbers."""
    if not wrong.any():
        return block
    values = None if column is None else values_of(block.table.column(column))[wrong]
    faults.add_many(kind, block.lines()[wrong], column, values)
    return block.where(~wrong)


class Units:
    """Whether delays are the differences of the clock's readings, in microseconds."""

    def __init__(self, path: Path, faults: Faults) -> None:
        self._path, self._faults = path, faults
        self._rows = 0
        self._other = dict.fromkeys(UNITS, 0)
        self._first: dict[float, str] = {}

    def count(self, rows: int) -> None:
        self._rows += rows

    def agreeing(self, block: Block) -> Block:
        """The rows of which that is so; raises DatasetError where most rows so far are in another unit."""
        delay_us = values_of(block.table.column("delay_us"))
        passed_us = (values_of(block.table.column("ts_tx_ns")) - values_of(block.table.column("ts_rx_ns"))) / 1e3
        off = np.abs(delay_us - passed_us) > ROUNDED_US + ROUNDED_RATIO * np.abs(passed_us)
        if not off.any():
            return block
        ratio = np.divide(delay_us, passed_us, out=np.zeros_like(delay_us), where=passed_us > 0)
        in_other = np.zeros(len(block), np.bool_)
        for factor in UNITS:
            result = np.flatnonzero(off & (np.abs(ratio / factor - 1) <= UNIT_RATIO))
            in_other[result] = True
            self._other[factor] += len(result)
            if len(result) and factor not in self._first:
                row = result[0]
                self._first[factor] = f"line {block.lines()[row]} has {delay_us[row]:g} where {passed_us[row]:g} passed"
        self._faults.add_many("unit", block.lines()[in_other], "delay_us", delay_us[in_other])
        apart = off & ~in_other
        self._faults.add_many("mismatch", block.lines()[apart], "delay_us", delay_us[apart])
        self._judge(max(MIXED_ROWS, self._rows // 2))
        return block.where(~off)

    def end(self) -> None:
        """After the last row; raises DatasetError where many rows are in another unit."""
        self._judge(min(max(MIXED_ROWS, int(MIXED_SHARE * self._rows)), (self._rows + 1) // 2))

    def _judge(self, enough: int) -> None:
        factor, count = max(self._other.items(), key=lambda item: item[1])
        if not count or count < enough:
            return
        problem = (
            f"delay_us = {UNITS[factor]} in {count} of {self._rows} rows, {factor:g} times what the clock says: "
            f"{self._first[factor]}; expected microseconds"
        )
        raise DatasetError.at(self._path, problem)


class Recent:
    """What left within the second before the latest packet: to know rows again, and the clock when it goes back.

    Rows are given as C columns of integers (N,), the first being the time at which they left.

    Attributes:
        latest_ns: when the latest packet left, -1 before any.
    """

    def __init__(self) -> None:
        self.latest_ns = -1
        self._parts: list[list[npt.NDArray[Any]]] = []

    def behind(self, sent_ns: Ints) -> Mask:
        """Which rows left more than `REORDERED_NS` before a row that precedes them in the file."""
        latest_ns = np.maximum.accumulate(np.append(self.latest_ns, sent_ns))
        return np.asarray(sent_ns < latest_ns[:-1] - REORDERED_NS)

    def repeated(self, columns: list[npt.NDArray[Any]]) -> Mask:
        """Which rows stand in the file before, among those that left within `REORDERED_NS` before the latest."""
        parts = [*self._parts, columns]
        sent_ns = np.concatenate([part[0] for part in parts])
        ordered = sent_ns if (np.diff(sent_ns) >= 0).all() else np.sort(sent_ns)
        twice = ordered[1:][np.diff(ordered) == 0]
        result = np.zeros(len(columns[0]), np.bool_)
        if len(twice):
            positions = [np.flatnonzero(np.isin(part[0], twice)) for part in parts]
            parted = [np.stack([column[at] for column in part]) for part, at in zip(parts, positions, strict=True)]
            rows = np.concatenate(parted, axis=1)
            order = np.lexsort(rows)
            again = order[1:][(rows[:, order[1:]] == rows[:, order[:-1]]).all(axis=0)]
            before = rows.shape[1] - len(positions[-1])
            result[positions[-1][again[again >= before] - before]] = True
        return result

    def keep(self, columns: list[npt.NDArray[Any]]) -> None:
        """These rows come before the next batch."""
        if not len(columns[0]):
            return
        self.latest_ns = max(self.latest_ns, int(columns[0].max()))
        since_ns = self.latest_ns - REORDERED_NS
        self._parts = [part for part in (*self._parts, columns) if part[0].max() >= since_ns]
        while len(self._parts) > 1 and sum(len(part[0]) for part in self._parts) > RECENT_ROWS:
            self._parts.pop(0)
