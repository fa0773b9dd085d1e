"""Exports of the MongoDB collections of Andrade and Wickboldt (JNSM 33(4):90, 2025) as tidy tables.

The collections ``cpu``, ``latency`` and ``receive`` hold a document per experiment (1 to 26), run of it (``cycle``;
in older exports ``cicle``), time since its start (``ts``, every 30 s up to 1200, in some runs to 1230) and workload: a
UPF (``open5gs-upf-1``), a UE simulator (``open5gs-my5gran01``) or an iperf server (``open5gs-iperf01``), whose number
is the slice's. ``receive`` has the rates of UPFs and of iperf servers, distinguished by ``interface``. Rates and round
trips are means over the last two minutes, as the study's Prometheus queries made them; a document whose value is NaN
was written where Prometheus had no series, and is noted as ``missing``.

The study's scripts (``etl/info.py`` and ``etl/stat.py`` in its repository) count time from the first sample of a run,
whose start they round down to half a minute: a run may have a 42nd sample, at 1230 s. They take the last five minutes
as all from 900 s on, without an upper end, and drop values of 0. A round trip of 0 in a slice with traffic means that
no ping was answered; it is noted as ``unanswered`` and left out. Zeros of slices without traffic in the experiment are
valid and kept.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from slicepilot.configs.text import has_controls
from slicepilot.data.csv.chunks import OnProgress, uncompressed_name
from slicepilot.data.faults import DatasetError, FaultKind, Faults
from slicepilot.data.reference import published_settings
from slicepilot.data.tables.tidy import Stream

from .mongo_exports import ENDINGS, Document, ending_of, read_documents
from .units import COLLECTIONS, Unit, choose_unit

STEP_S, END_S = 30, 1200
LAST_S = END_S + STEP_S
"""Upper bound on timestamps."""
FIELDS = ("_id", "ts", "exp", "cycle", "cicle", "value", "workload", "priority", "interface")
REQUIRED = ("ts", "exp", "cycle", "value", "workload")
GROUPS = ("experiment", "slice", "priority")
_BATCH = 1 << 16
_COLLECTION = re.compile(r"(?:.*[._-])?(cpu|latency|receive)")
_WORKLOAD = re.compile(r".*?0*([1-9]\d{0,8})")
_NUMBER_KEYS = ("$numberDouble", "$numberInt", "$numberLong", "$numberDecimal")


def collection_of(path: Path) -> str | None:
    """The collection that a file's name says it is an export of, such as ``metrics.cpu.bson.gz``; None for others."""
    if ending_of(path) not in ENDINGS:
        return None
    result = _COLLECTION.fullmatch(Path(uncompressed_name(path.name)).stem)
    return result[1] if result else None


def read_andrade(
    path: Path, collection: str, faults: Faults, unit: str | None = None, on_progress: OnProgress | None = None
) -> Stream:
    """One collection: experiment, cycle, time_s, slice, workload, priority, in ``receive`` interface, and the value.

    ``cpu_use_mcpu``, ``latency_ms`` (round trip from UE to server) or ``receive_mbps``. The schema's metadata say in
    which unit the export was. Rows are bounded by the study's grid, so all are held until the unit is known.

    Args:
        path: an export; see `slicepilot.data.studies.andrade.mongo_exports`.
        faults: ``number``, ``range``, ``grid`` (times between the steps), ``unknown`` (experiments, workloads, fields),
            ``duplicate``, ``missing`` (no value, and points of the grid without a document), ``unanswered``, ``unit``.
        unit: the export's unit, one of the collection's; None: the plausible unit.

    Raises:
        DatasetError: nothing that could be read, fields missing in all documents, mixed units, or a unit that cannot
            be detected.
    """
    own = COLLECTIONS[collection]
    points = _Points(path, faults, zero_is_no_answer=collection == "latency")
    for line, document in read_documents(path, FIELDS, faults, on_progress):
        points.add(line, document)
    columns = points.columns()
    chosen = choose_unit(path, own, columns, points.active(columns), faults, unit)
    known = "by plausibility" if unit is None else "as given"
    schema = schema_of(collection).with_metadata({"source_unit": chosen.name, "source_unit_known": known})
    return Stream(schema, _batches(schema, columns, chosen), GROUPS)


def schema_of(collection: str) -> Any:
    """The columns of a collection's tidy table."""
    fields = [("experiment", pa.int16()), ("cycle", pa.int32()), ("time_s", pa.int32()), ("slice", pa.string())]
    fields += [("workload", pa.string()), ("priority", pa.string())]
    fields += [("interface", pa.string())] if collection == "receive" else []
    return pa.schema([*fields, (COLLECTIONS[collection].column, pa.float64())])


def _batches(schema: Any, columns: dict[str, Any], unit: Unit) -> Iterator[Any]:
    metric = schema.names[-1]
    columns = columns | {metric: columns["value"] * unit.factor, "slice": [f"slice{n}" for n in columns["slice"]]}
    table = pa.table({name: columns[name] for name in schema.names}, schema=schema)
    yield from table.to_batches(max_chunksize=_BATCH)


@dataclass(frozen=True, slots=True)
class _Point:
    """One document that fits the grid; its value is NaN where none was measured."""

    line: int
    experiment: int
    cycle: int
    time_s: int
    slice: int
    workload: str
    priority: str | None
    interface: str | None
    value: float

    def problem(self) -> tuple[FaultKind, str, object] | None:
        """Kind of fault, field and value where it is no point of the study."""
        if self.experiment not in active_slices():
            return "unknown", "exp", self.experiment
        if not 1 <= self.slice <= max(active_slices().values()):
            return "unknown", "workload", self.workload
        if self.cycle < 0:
            return "range", "cycle", self.cycle
        if not 0 <= self.time_s <= LAST_S:
            return "range", "ts", self.time_s
        if self.time_s % STEP_S:
            return "grid", "ts", self.time_s
        if self.value < 0 or math.isinf(self.value):
            return "range", "value", self.value
        return None


class _Points:
    """Checks each document, and at the end which documents are missing."""

    def __init__(self, path: Path, faults: Faults, zero_is_no_answer: bool) -> None:
        self._path, self._faults, self._zero_is_no_answer = path, faults, zero_is_no_answer
        self._points: list[_Point] = []
        self._seen: dict[tuple[int, int, str, str | None], dict[int, int]] = {}  # line by time, per series
        self._unknown: set[str] = set()
        self._without: dict[str, int] = dict.fromkeys(REQUIRED, 0)
        self._documents = 0

    def add(self, line: int, document: Document) -> None:
        """Keep a document, or note what is wrong with it."""
        self._documents += 1
        for name in document:
            if name not in FIELDS and name not in self._unknown and len(self._unknown) < len(FIELDS):
                self._unknown.add(name)
                self._faults.add("unknown", line, "field", name, left_out=False)
        absent = [name for name in REQUIRED if _field(document, name) is None and name != "value"]
        if "value" not in document:
            absent.append("value")
        for name in absent:
            self._without[name] += 1
        if absent:
            self._faults.add("missing", line, absent[0])
            return
        point = self._point(line, document)
        if point is None:
            return
        times = self._seen.setdefault((point.experiment, point.cycle, point.workload, point.interface), {})
        if point.time_s in times:
            self._faults.add("duplicate", line, "ts", point.time_s)
            return
        times[point.time_s] = line
        if math.isnan(point.value):
            self._faults.add("missing", line, "value", document.get("value"))
            return
        if self._zero_is_no_answer and point.value == 0 and point.slice <= active_slices()[point.experiment]:
            self._faults.add("unanswered", line, "value", document.get("value"))
            return
        self._points.append(point)

    def _point(self, line: int, document: Document) -> _Point | None:
        """A document as a point of the grid; None, with a note, if it is no such point."""
        numbers: dict[str, float] = {}
        for name in ("exp", "cycle", "ts", "value"):
            number = _number(_field(document, name))
            whole = name == "value" or (number is not None and number.is_integer() and abs(number) < 1 << 31)
            if number is None or not whole:
                self._faults.add("number", line, name, document.get(name))
                return None
            numbers[name] = number
        for name in ("workload", "priority", "interface"):
            if has_controls(str(document.get(name, ""))):
                self._faults.add("control", line, name, document[name])
                return None
        workload = str(_field(document, "workload"))
        result = _WORKLOAD.fullmatch(workload)
        point = _Point(
            line=line,
            experiment=int(numbers["exp"]),
            cycle=int(numbers["cycle"]),
            time_s=int(numbers["ts"]),
            slice=int(result[1]) if result else 0,
            workload=workload,
            priority=_text(document.get("priority")),
            interface=_text(document.get("interface")),
            value=numbers["value"],
        )
        problem = point.problem()
        if problem is not None:
            self._faults.add(problem[0], line, *problem[1:])
        return point if problem is None else None

    def columns(self) -> dict[str, Any]:
        """The points as columns (N,), after noting where the grid has holes; raises DatasetError without any."""
        if not self._points:
            lacking = [name for name, count in self._without.items() if count == self._documents]
            what = f"no field {', '.join(lacking)}" if lacking else "no document fits"
            first = "; ".join(self._faults.describe()[:2])
            raise DatasetError.at(self._path, f"{what} ({first}); expected {', '.join(FIELDS)}")
        for (experiment, cycle, workload, _), lines in self._seen.items():
            holes = [time for time in range(0, END_S + 1, STEP_S) if time not in lines]
            names = [f"experiment {experiment}, cycle {cycle}, {workload}: {time} s" for time in holes]
            last = max(lines.values())
            self._faults.add_many("missing", [last] * len(holes), "ts", names, left_out=False)
        columns: dict[str, Any] = {
            name: [getattr(point, name) for point in self._points] for name in ("workload", "priority", "interface")
        }
        for name, kind in (("experiment", np.int16), ("cycle", np.int32), ("time_s", np.int32), ("slice", np.int16)):
            columns[name] = np.asarray([getattr(point, name) for point in self._points], kind)
        columns["line"] = np.asarray([point.line for point in self._points], np.int64)
        columns["value"] = np.asarray([point.value for point in self._points])
        return columns

    def active(self, columns: dict[str, Any]) -> Any:
        """Where the slice had traffic by the experiment's design, (N,)."""
        return columns["slice"] <= np.asarray([active_slices()[n] for n in columns["experiment"].tolist()])


@cache
def active_slices() -> dict[int, int]:
    """Number N of slices with traffic in each experiment: slice1 to sliceN."""
    return {setting.experiment: setting.active_slices for setting in published_settings()}


def _field(document: Document, name: str) -> Any:
    """A field; the cycle also by its older name. CSV writes nothing where there is none."""
    value = document.get(name)
    if value is None and name == "cycle":
        value = document.get("cicle")
    return None if value == "" else value


def _number(value: Any) -> float | None:
    """A number, plain, in one of MongoDB's forms or as text; NaN where there is none (null); None for anything else."""
    if value is None:
        return math.nan
    if isinstance(value, dict):
        value = next((value[key] for key in _NUMBER_KEYS if key in value), value)
    if hasattr(value, "to_decimal"):  # bson.Decimal128
        value = value.to_decimal()
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
    except OverflowError:
        return math.inf


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
