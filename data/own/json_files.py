"""JSON documents of tools: Prometheus' range answers, Netdata's tables, iperf3's reports.

Formats: Prometheus, "HTTP API", range queries and instant queries; Netdata's API ``/api/v1/data`` with ``format=json``;
iperf3's ``--json`` and ``--json-stream`` (iperf_api.c of https://github.com/esnet/iperf).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slicepilot.configs.text import has_controls, on_a_line
from slicepilot.data.csv.chunks import read_chunks
from slicepilot.data.faults import DatasetError, Faults, shown

from .map import PER_TIME, FileMap
from .rows import LIMITS, MOST_COLUMNS, YEARS_NS, Raw, Words, checked, date_ns, require_columns, zone_of

MOST_BYTES = 1 << 26
"""Of a document, decompressed: it is parsed as a whole."""
MOST_SERIES = 10_000
SERIES, VALUE, ORIGIN = "series", "value", "origin of the value"
SERVER, REVERSE = "server_", "reverse_"
_LABEL = re.compile(r'\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,|$)')
_SELECTOR = re.compile(r"\s*([A-Za-z_:][A-Za-z0-9_:]*)?\s*(?:\{(.*)\})?\s*", re.DOTALL)
IPERF3 = (
    "bits_per_second", "bytes", "packets", "lost_packets", "lost_percent", "jitter_ms", "retransmits", "rtt",
    "snd_cwnd",
)  # fmt: skip


def load_json(path: Path) -> Any:
    """Parse a document; raises DatasetError if it is invalid, too large, or nested too deep."""
    parts, size = [], 0
    for chunk in read_chunks(path):
        parts.append(chunk)
        size += len(chunk)
        if size > MOST_BYTES:
            raise DatasetError.at(path, f"more than {MOST_BYTES >> 20} MiB of JSON; expected a part of it")
    text = b"".join(parts)
    try:
        return json.loads(text)
    except RecursionError:
        raise DatasetError.at(path, "JSON nested too deep; expected measurements") from None
    except ValueError as error:
        if isinstance(error, json.JSONDecodeError) and text.lstrip()[:1] == b"{" and "Extra data" in error.msg:
            return _lines_of(path, text)
        what = f"{error.msg} in line {error.lineno}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise DatasetError.at(path, f"no valid JSON ({on_a_line(what)}); expected a whole document") from None


def _lines_of(path: Path, text: bytes) -> list[Any]:
    """Documents line by line, as of ``iperf3 --json-stream``."""
    result = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                result.append(json.loads(line))
            except (ValueError, RecursionError):
                raise DatasetError.at(path, "no valid JSON; expected a document in each line", number) from None
    return result


# Prometheus


def series_of(path: Path, document: Any) -> list[tuple[dict[str, str], list[Any]]]:
    """Labels and samples ``[seconds, text]`` of each series of an answer.

    Raises:
        DatasetError: an error instead of an answer, no series, or what is no answer at all.
    """
    if isinstance(document, dict) and document.get("status") == "error":
        raise DatasetError.at(path, f"an error of the server ({on_a_line(str(document.get('error')))}); expected data")
    data = document.get("data", document) if isinstance(document, dict) else document
    result = data.get("result") if isinstance(data, dict) else data
    if not isinstance(result, list):
        raise DatasetError.at(path, "no answer of a Prometheus server; expected data.result with series")
    if len(result) > MOST_SERIES:
        raise DatasetError.at(path, f"{len(result):,} series; expected at most {MOST_SERIES:,}")
    series = []
    for number, own in enumerate(result):
        labels = own.get("metric", {}) if isinstance(own, dict) else None
        samples = (own.get("values") or [own.get("value")]) if isinstance(own, dict) else None
        if not isinstance(labels, dict) or not isinstance(samples, list):
            raise DatasetError.at(path, f"series {number}: expected metric with labels, and values")
        plain = {str(name): str(value) for name, value in labels.items()}
        if wrong := next((text for text in [*plain, *plain.values()] if has_controls(text) or len(text) > 1000), None):
            raise DatasetError.at(path, f"series {number}: label {shown(wrong)!r}: expected printable text")
        series.append((plain, samples))
    if not series:
        raise DatasetError.at(path, "no series in the answer; expected at least one")
    return series


def selector_of(text: str) -> dict[str, str] | None:
    """Labels of ``name{label="value"}``, with the name as ``__name__``; None for any other text."""
    match = _SELECTOR.fullmatch(text)
    if match is None or (match[1] is None and match[2] is None):
        return None
    labels = {} if match[1] is None else {"__name__": match[1]}
    rest = (match[2] or "").strip()
    while rest:
        label = _LABEL.match(rest)
        if label is None:
            return None
        labels[label[1]] = re.sub(r"\\(.)", r"\1", label[2])
        rest = rest[label.end() :]
    return labels


def written(labels: Mapping[str, str]) -> str:
    """The selector of some labels."""
    quoted = {name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in labels.items()}
    own = ",".join(f'{name}="{value}"' for name, value in sorted(quoted.items()) if name != "__name__")
    return labels.get("__name__", "") + (f"{{{own}}}" if own or "__name__" not in labels else "")


def read_prometheus(path: Path, entry: FileMap, faults: Faults) -> Raw:
    """The samples of the series that a map names.

    `SERIES` has the map's name of a series, `ORIGIN` all its labels, and `VALUE` the values.

    Raises:
        DatasetError: as `series_of`; a label that is not there; two series that would be the same column of a slice.
    """
    wanted: list[tuple[str, dict[str, str]]] = []
    for name in entry.columns:
        if (labels := selector_of(name)) is None:
            raise DatasetError.at(path, f'columns.{name}: expected a series such as name{{label="value"}}')
        wanted.append((name, labels))
    texts = entry.labels
    times: list[float] = []
    values: list[float] = []
    numbers: list[int] = []
    codes: list[int] = []
    series = series_of(path, load_json(path))
    require_columns(path, texts, sorted({label for labels, _ in series for label in labels}))
    chosen: list[tuple[str, dict[str, str]]] = []
    for number, (labels, samples) in enumerate(series, 1):
        known = next((own_name for own_name, own in wanted if own.items() <= labels.items()), None)
        if known is None:
            faults.note(f"left out: series {written(labels)[:200]}, which the map does not name")
            continue
        if entry.slice in texts and entry.slice not in labels:
            faults.add("missing", number, entry.slice, written(labels))
            continue
        _require_other(path, entry, (known, labels), chosen, texts)
        for sample in samples:
            time_s, value = _sample(sample)
            if math.isnan(time_s):
                faults.add("number", number, "values", str(sample)[:60])
                continue
            times.append(time_s)
            values.append(value)
            numbers.append(number)
            codes.append(len(chosen))
        chosen.append((known, labels))
    if not times:
        raise DatasetError.at(path, "no sample of a series that the map names; expected at least one")
    row = np.asarray(codes, np.int64)
    words = {SERIES: Words.of([name for name, _ in chosen]).take(row)}
    words[ORIGIN] = Words(row.astype(np.int32), tuple(written(labels) for _, labels in chosen))
    words |= {text: Words.of([labels.get(text) for _, labels in chosen]).take(row) for text in texts}
    lines = np.asarray(numbers, np.int64)
    limit = next((own.quantity for own in entry.columns.values() if own.quantity in LIMITS), "")
    own = checked(np.asarray(values, np.float64), lines, VALUE, faults, limit)
    stamps = np.rint(np.asarray(times) * (1e9 / PER_TIME)).astype(np.int64) * PER_TIME
    return Raw(len(lines), stamps, True, words, {VALUE: own}, lines)


def _sample(sample: Any) -> tuple[float, float]:
    """Seconds, NaN for none, and the value."""
    try:
        time_s, value = float(sample[0]), float(sample[1])
    except (TypeError, ValueError, IndexError, KeyError, OverflowError):
        return math.nan, math.nan
    return (time_s if abs(time_s) * 1e9 < YEARS_NS else math.nan), value


def _require_other(
    path: Path,
    entry: FileMap,
    own: tuple[str, dict[str, str]],
    others: Sequence[tuple[str, dict[str, str]]],
    texts: Sequence[str],
) -> None:
    name, labels = own
    if entry.columns[name].sum:
        return
    for other, known in others:
        if other == name and all(known.get(text) == labels.get(text) for text in texts):
            differ = [label for label in sorted({*known, *labels}) if known.get(label) != labels.get(label)]
            by = differ[0] if differ else "nothing"
            raise DatasetError.at(
                path,
                f"columns.{name}: two series of a slice, which differ in {by}; expected a series by {by}, or sum: true",
            )


# Netdata


def netdata_table(path: Path, document: Any) -> tuple[list[str], list[Any]]:
    """Names and rows of Netdata's answer with ``format=json``; raises DatasetError for any other document."""
    own = document.get("result", document) if isinstance(document, dict) else None
    labels, rows = (own.get("labels"), own.get("data")) if isinstance(own, dict) else (None, None)
    if not isinstance(labels, list) or not isinstance(rows, list) or len(labels) > MOST_COLUMNS:
        raise DatasetError.at(path, "no table of Netdata; expected labels and data")
    return [str(label) for label in labels], rows


def read_netdata_json(path: Path, entry: FileMap, faults: Faults) -> Raw:
    """The columns that a map names; raises DatasetError as `netdata_table`, or for a missing column."""
    labels, rows = netdata_table(path, load_json(path))
    time = entry.time or "time"
    require_columns(path, [time, *entry.columns], labels)
    zone = zone_of(entry.time_zone)
    at = {name: labels.index(name) for name in [time, *entry.columns]}
    times: list[int] = []
    lines: list[int] = []
    columns: dict[str, list[float]] = {name: [] for name in entry.columns}
    for number, row in enumerate(rows, 1):
        cells = row if isinstance(row, list) and len(row) == len(labels) else None
        stamp = None if cells is None else _moment(cells[at[time]], entry, zone)
        if cells is None or stamp is None:
            faults.add("document", number, time, str(row)[:60])
            continue
        times.append(stamp)
        lines.append(number)
        for name, column in columns.items():
            cell = cells[at[name]]
            cell = cell[0] if isinstance(cell, list) and cell else cell  # with anomaly rate and annotations
            column.append(float(cell) if isinstance(cell, int | float) and abs(cell) < 1e300 else math.nan)
    if not times:
        raise DatasetError.at(path, "no rows; expected at least one")
    at_lines = np.asarray(lines, np.int64)
    values = {name: checked(np.asarray(own), at_lines, name, faults) for name, own in columns.items()}
    return Raw(len(times), np.asarray(times, np.int64), True, {}, values, at_lines)


def _moment(cell: Any, entry: FileMap, zone: Any) -> int | None:
    if isinstance(cell, str):
        return date_ns(cell, zone, entry.time_format)
    if not isinstance(cell, int | float) or isinstance(cell, bool) or not abs(cell) < 1e13:
        return None
    return round(cell * (1e9 if abs(cell) < 1e11 else 1e6) / PER_TIME) * PER_TIME  # milliseconds have 13 digits


# iperf3


def iperf3_rows(path: Path, document: Any) -> tuple[float | None, list[dict[str, float]], bool | None]:
    """When a test began (seconds since 1970, None where it does not say), its intervals, whether the sender wrote it.

    It begins after the warm-up (``--omit``), which is left out: iperf3 counts the times of intervals anew from there.
    Intervals have ``start``, ``end`` and those of `IPERF3`; what the server says (``--get-server-output``) and the
    other direction (``--bidir``) begin with `SERVER` and `REVERSE`.

    Raises:
        DatasetError: no report, or none with a result.
    """
    if isinstance(document, list):  # events of --json-stream
        pairs = [(str(own.get("event")), own.get("data")) for own in document if isinstance(own, dict)]
        document = {event: data for event, data in pairs if event in {"start", "end", "error"}}
        document["intervals"] = [data for event, data in pairs if event == "interval"]
    if not isinstance(document, dict) or not isinstance(document.get("start", {}), dict):
        raise DatasetError.at(path, "no report of iperf3; expected start, intervals and end")
    rows = list(_intervals(document))
    if not rows:
        error = document.get("error")
        why = f" ({on_a_line(str(error))})" if error else ""
        raise DatasetError.at(path, f"no intervals with a rate in it{why}; expected a report of iperf3 --json")
    server = document.get("server_output_json")
    for row, more in zip(rows, _intervals(server) if isinstance(server, dict) else (), strict=False):
        row |= {f"{SERVER}{name}": value for name, value in more.items() if name in IPERF3}
    start = document.get("start", {})
    stamp, test = start.get("timestamp"), start.get("test_start")
    began = stamp.get("timesecs") if isinstance(stamp, dict) else None
    omitted = test.get("omit") if isinstance(test, dict) else None
    known = began if isinstance(began, int | float) and 0 < began < 1e10 else None
    if known is not None and isinstance(omitted, int | float) and 0 < omitted < 1e5:
        known += omitted
    return known, rows, _sender(document)


def _sender(document: dict[str, Any]) -> bool | None:
    sums = [own.get("sum") for own in _listed(document.get("intervals"))]
    sender = next((own.get("sender") for own in sums if isinstance(own, dict)), None)
    return sender if isinstance(sender, bool) else None


def _listed(value: Any) -> list[dict[str, Any]]:
    return [own for own in value if isinstance(own, dict)] if isinstance(value, list) else []


def _intervals(document: dict[str, Any]) -> Iterator[dict[str, float]]:
    for interval in _listed(document.get("intervals")):
        streams = _listed(interval.get("streams"))
        total = interval.get("sum")
        own: dict[str, Any] = total if isinstance(total, dict) else (streams[0] if streams else {})
        if own.get("omitted") is True:
            continue
        row = _figures(own)
        trips = [value for stream in streams if (value := _figures(stream).get("rtt")) is not None]
        if trips:
            row["rtt"] = sum(trips) / len(trips)
        reverse = interval.get("sum_bidir_reverse")
        if isinstance(reverse, dict):
            row |= {f"{REVERSE}{name}": value for name, value in _figures(reverse).items() if name in IPERF3}
        if "start" in row and "bits_per_second" in row:
            yield row


def _figures(own: dict[str, Any]) -> dict[str, float]:
    names = ("start", "end", *IPERF3)
    numbers = {name: own.get(name) for name in names}
    return {
        name: float(value)
        for name, value in numbers.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15
    }


def read_iperf3(path: Path, entry: FileMap, faults: Faults) -> Raw:
    """The figures of each interval that a map names; raises DatasetError as `iperf3_rows`, or for a missing figure."""
    began, rows, _ = iperf3_rows(path, load_json(path))
    require_columns(path, list(entry.columns), sorted({name for row in rows for name in row} - {"start", "end"}))
    lines = np.arange(1, len(rows) + 1)
    start = np.asarray([row["start"] for row in rows]) + (began or 0.0)
    values = {
        name: checked(np.asarray([row.get(name, math.nan) for row in rows]), lines, name, faults)
        for name in entry.columns
    }
    stamps = np.rint(start * (1e9 / PER_TIME)).astype(np.int64) * PER_TIME
    return Raw(len(rows), stamps, began is not None, {}, values, lines)
