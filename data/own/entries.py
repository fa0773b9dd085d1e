"""Propose a map's entry for files of a layout."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from slicepilot.data.faults import DatasetError, Faults
from slicepilot.data.tables.tidy import unit_of

from .columns import read_parquet
from .crossings import crossings_of, labels_of
from .csv_files import read_csv
from .json_files import IPERF3, REVERSE, SERVER, iperf3_rows, netdata_table, selector_of, series_of, written
from .look import Column, Look
from .map import FILE, FileMap, Mapped
from .map_text import Entry
from .names import (
    CPU_DIMENSIONS,
    KEPT,
    QUANTITY_NAMES,
    SLICE_LABELS,
    TIME_NAMES,
    UNIT_NAMES,
    VALUE_NAMES,
    Guess,
    guess,
    is_time,
    slice_in,
    slice_label,
    unit_in,
    words_of,
)
from .pcap_files import read_packets
from .reading import slice_name, stem_of, table_name
from .rows import LIMITS, Floats, date_ns, number_of, zone_of

DATES = (
    "%d.%m.%Y %H:%M:%S", "%d.%m.%Y %H:%M", "%m/%d/%Y %H:%M:%S", "%m/%d/%Y %H:%M", "%d/%m/%Y %H:%M:%S",
    "%d/%m/%Y %H:%M", "%m/%d/%Y %I:%M:%S %p", "%Y/%m/%d %H:%M:%S", "%d-%b-%Y %H:%M:%S", "%d %b %Y %H:%M:%S",
    "%b %d, %Y, %I:%M:%S %p", "%d-%m-%Y %H:%M:%S", "%Y%m%d %H%M%S", "%Y-%m-%d %H:%M:%S.%f %z", "%H:%M:%S",
)  # fmt: skip
MOST_FRAMES = 100_000
_ROWS_OR_TIME = {True: "a number of rows or a second time", False: "a number of rows, or a time of unknown unit"}
"""Why a column is left out, by whether a time was found."""
NETDATA_RATES = {"received": "offered_mbps", "sent": "carried_mbps"}


def entry_of(looks: Sequence[Look]) -> Entry:
    """The entry of files of the same layout; raises DatasetError for files without measurements."""
    look = looks[0]
    if look.format == "prometheus":
        return _prometheus(look)
    if look.format == "iperf3":
        return _iperf3(looks)
    if look.format == "ping":
        return _single(looks, Entry({"format": "ping", "interval_s": 1.0}, {"time": Guess("latency_ms", "ms")}))
    if look.format == "pcap":
        return _pcap(looks)
    if look.format == "netdata":
        return _netdata_json(looks)
    return _table(looks)


def _single(looks: Sequence[Look], entry: Entry) -> Entry:
    """Of files that say nothing of their slice."""
    if len(looks) > 1:
        entry.fields["slice"] = FILE
        entry.fields["slices"] = {stem_of(look.path): slice_name(stem_of(look.path)) for look in looks}
        entry.doubts["slices"] = "the files do not name their slices: named by their files"
    else:
        named = slice_in(stem_of(looks[0].path))
        entry.fields["slice_name"] = slice_name(named[0] if named else stem_of(looks[0].path))
        entry.doubts["slice_name"] = "the file does not name its slice: by the name of the file"
    return entry


# Tables


def _table(looks: Sequence[Look]) -> Entry:
    look = looks[0]
    columns = {column.name: column for column in look.columns}
    entry = Entry({"format": look.format})
    if look.layout is not None and look.layout.delimiter != ",":
        entry.fields["delimiter"] = look.layout.delimiter
    if look.layout is not None and look.layout.decimal != ".":
        entry.fields["decimal"] = look.layout.decimal
    time = _time_column(look.columns)
    if time is not None:
        _add_time(entry, columns[time])
    rest = [column for column in look.columns if column.name != time]
    slice_column = _slice_column(rest)
    long = _long_columns(rest, slice_column)
    if slice_column is not None:
        entry.fields["slice"] = slice_column
        rest = [column for column in rest if column.name != slice_column]
        _add_slices(entry, columns[slice_column].words, columns[slice_column].many)
    if long is not None:
        _add_long(entry, look, columns, long, rest)
    else:
        _add_wide(entry, looks, rest)
    if time is None:
        left_out = ", ".join(f'"{text.rpartition(":")[0]}"' for text in entry.left_out[:5])
        named = f"; left out: {left_out}" if left_out else ""
        entry.notes.append(f"no time column found{named} (set time: and time_unit:)")
    if not entry.columns:
        raise DatasetError.at(look.path, "no column with numbers beside the time; expected at least one")
    if slice_column is None and any(own.slice is None for own in entry.columns.values()):
        _single(looks, entry)
    return entry


def _add_slices(entry: Entry, words: Any, many: bool = False) -> None:
    renamed = {word: slice_name(word) for word in words if word and slice_name(word) != word}
    if renamed and len(renamed) <= 64:
        entry.fields["slices"] = renamed
    if many or len(words) > 64:
        entry.doubts["slice"] = f"{len(words)} or more different words: rather many slices"


def _time_column(columns: Sequence[Column]) -> str | None:
    by_name = {column.name.strip().lower(): column for column in columns}
    for name in TIME_NAMES:
        own = by_name.get(name) or next(
            (c for key, c in by_name.items() if re.sub(r"[\s_-]*[\[(].*[\])]\s*$", "", key) == name), None
        )
        if own is not None and (own.dated or own.is_number or _date_format(own) is not None):
            return own.name
    by_unit = [column.name for column in columns if column.is_number and is_time(column.name)]
    if by_unit:
        return by_unit[0]
    dated = [column.name for column in columns if column.dated or (not column.is_number and _date_format(column))]
    return dated[0] if dated else None


def _date_format(column: Column) -> str | None:
    """How a column's dates are written, ``iso`` or a format; None for what are no dates."""
    texts = column.texts[:50]
    utc = zone_of("UTC")
    if not texts:
        return None
    if all(date_ns(text, utc) is not None and not text.isdecimal() for text in texts):
        return "iso"
    return next((form for form in DATES if all(date_ns(text, utc, form) is not None for text in texts)), None)


def _add_time(entry: Entry, column: Column) -> None:
    entry.fields["time"] = column.name
    if column.dated or not column.is_number:
        form = "iso" if column.dated else _date_format(column)
        entry.fields["time_unit"] = "text"
        if form not in {None, "iso"}:
            entry.fields["time_format"] = form
            if form is not None and "/%Y" in form:
                entry.doubts["time_format"] = "month or day first?"
        if not column.dated and not re.search(r"(Z|UTC|GMT|[+-]\d\d:?\d\d)$", column.texts[0].strip()):
            entry.fields["time_zone"] = "UTC"
            entry.doubts["time_zone"] = "the file has no zone"
        return
    known = column.values[np.isfinite(column.values)]
    highest = float(np.abs(known).max())
    in_name = unit_in(column.name)[0]
    unit = in_name.replace("µ", "u") if in_name in {"ns", "µs", "ms"} else None
    if unit is None:
        unit = "ns" if highest >= 1e17 else "us" if highest >= 1e14 else "ms" if highest >= 1e11 else "s"
        if unit == "s" and 0 < highest < 1e8 and in_name != "s" and "seconds" not in words_of(column.name):
            entry.doubts["time_unit"] = "the file has no unit: seconds since its start?"
    entry.fields["time_unit"] = unit


def _slice_column(columns: Sequence[Column]) -> str | None:
    by_name = {table_name(column.name): column for column in columns if column.words}
    for name in SLICE_LABELS:
        own = by_name.get(name.strip("_"))
        if own is None:
            continue
        numbers = own.values
        whole = not own.is_number or bool((numbers == np.rint(numbers)).all() and not own.many)
        if whole and not (name == "name" and not _are_slices(own)):
            return own.name
    return next((column.name for column in columns if not column.is_number and _are_slices(column)), None)


def _are_slices(column: Column) -> bool:
    words = [word for word in column.words if word]
    return bool(words) and not column.many and all((own := slice_in(word)) is not None and not own[1] for word in words)


def _long_columns(columns: Sequence[Column], slice_column: str | None) -> tuple[str, str] | None:
    """The column of quantities and the column of values, of a table with a row for each value."""
    by_name = {table_name(column.name): column for column in columns if column.name != slice_column}
    value = next((by_name[name] for name in map(table_name, VALUE_NAMES) if name in by_name), None)
    numbers = [column for column in by_name.values() if column.is_number]
    if value is None and len(numbers) == 1:
        value = numbers[0]
    if value is None or not value.is_number:
        return None
    texts = {name: column for name, column in by_name.items() if not column.is_number and column is not value}
    named = next((texts[name] for name in map(table_name, QUANTITY_NAMES) if name in texts), None)
    if named is None:
        named = next((column for column in texts.values() if _are_quantities(column, value)), None)
    return None if named is None else (named.name, value.name)


def _are_quantities(column: Column, value: Column) -> bool:
    words = [word for word in column.words if word]
    return 0 < len(words) < 65 and sum(guess(word, value.values).known for word in words) > 0.5 * len(words)


def _add_long(
    entry: Entry, look: Look, columns: dict[str, Column], names: tuple[str, str], rest: Sequence[Column]
) -> None:
    quantity, value = names
    entry.fields |= {"quantity": quantity, "value": value}
    units = next((column.name for column in rest if table_name(column.name) in UNIT_NAMES), None)
    samples, known = _by_word(look, quantity, value, units)
    for word in columns[quantity].words:
        if not word:
            continue
        own = guess(word, samples.get(word, np.empty(0)), unit=known.get(word))
        entry.columns[word] = own
    _sum_same(entry)
    others = [column for column in rest if column.name not in {quantity, value, units}]
    _add_kept(entry, others, all_texts=True)


def _by_word(look: Look, quantity: str, value: str, units: str | None) -> tuple[dict[str, Floats], dict[str, str]]:
    """Some values, and the unit, of each word of a long table."""
    keep = (units,) if units is not None else ()
    layout = look.layout
    reader = FileMap(
        match="*",
        format=look.format,
        columns={"-": Mapped("value")},
        quantity=quantity,
        value=value,
        keep=keep,
        delimiter=layout.delimiter if layout else ",",
        decimal=layout.decimal if layout else ".",
    )
    raw = (read_parquet if look.format == "parquet" else read_csv)(look.path, reader, Faults())
    words, values = raw.words[quantity], raw.values[value]
    samples, known = {}, {}
    for code, name in enumerate(words.names):
        here = np.flatnonzero(words.codes == code)
        samples[name] = values[here[:2000]]
        if units is not None and len(here) and (at := raw.words[units].codes[here[0]]) >= 0:
            known[name] = raw.words[units].names[at]
    return samples, known


def _add_kept(entry: Entry, columns: Sequence[Column], all_texts: bool = False) -> list[Column]:
    """Columns of words that are kept; returns the others."""
    kept, others = [], []
    for column in columns:
        if not all_texts and _is_limit(column):
            others.append(column)
            continue
        few_words = not column.many and len(column.words) <= 100
        named = table_name(column.name) in KEPT
        if few_words and (named or (not column.is_number and len(column.texts) > 0)):
            kept.append(column.name)
        elif all_texts or not column.is_number:
            entry.left_out.append(f"{column.name}: {'empty' if not column.texts else 'texts'}")
        else:
            others.append(column)
    if kept:
        entry.fields["keep"] = kept
    return others


def _is_limit(column: Column) -> bool:
    """Whether it holds limits such as 500m, 2 Gbit/s and none."""
    quantity = guess(column.name, np.empty(0)).quantity
    texts = [*column.texts, *column.words]
    return quantity in LIMITS and all(number_of(text, column.decimal, quantity) is not None for text in texts)


def _add_wide(entry: Entry, looks: Sequence[Look], columns: Sequence[Column]) -> None:
    look = looks[0]
    columns = _add_kept(entry, columns)
    names = {table_name(column.name) for column in columns}
    of_cpu = len(names & CPU_DIMENSIONS) >= 2
    if "slice" not in entry.fields and "time" in entry.fields and (of_cpu or names == set(NETDATA_RATES)):
        entry.fields["format"] = "netdata" if look.format == "csv" else look.format
        for column in columns:
            entry.columns[column.name] = _netdata(column.name, column.values)
        _sum_same(entry)
        return
    hints = words_of(stem_of(look.path))
    by_slice = {} if "slice" in entry.fields else _sliced(columns)
    for column in columns:
        if table_name(column.name) in {"sequence", "seq", "index", "unnamed_0", "packet", "no", "id"} or (
            re.search(r"(^|_)(id|time|ts|timestamp)(_|$)|_(rx|tx)_ns$|^(sent|received)_ns$", table_name(column.name))
        ):
            entry.left_out.append(f"{column.name}: {_ROWS_OR_TIME['time' in entry.fields]}")
            continue
        own_slice, rest, labels = by_slice.get(column.name, (None, column.name, {}))
        own = guess(rest, column.values, hints, unit=column.unit, labels=labels)
        entry.columns[column.name] = own if own_slice is None else replace(own, slice=slice_name(own_slice))
    _sum_same(entry)


def _sliced(columns: Sequence[Column]) -> dict[str, tuple[str, str, dict[str, str]]]:
    """By column, the slice that its name says, the rest of the name, and its labels; empty where names say none."""
    result: dict[str, tuple[str, str, dict[str, str]]] = {}
    selectors = {column.name: selector_of(column.name) for column in columns}
    if columns and all(labels and set(labels) - {"__name__"} for labels in selectors.values()):
        labelled = {name: labels for name, labels in selectors.items() if labels is not None}
        label = slice_label({key for labels in labelled.values() for key in labels})
        label = label or _differing_label(list(labelled.values()))
        for name, labels in labelled.items():
            result[name] = (labels.get(label, "slice") if label else "slice", labels.get("__name__", ""), labels)
        return result
    for column in columns:
        if (named := slice_in(column.name)) is not None:
            result[column.name] = (*named, {})
    return result if len(result) >= max(1, len(columns) - 2) or len({own[0] for own in result.values()}) > 1 else {}


def _differing_label(labels: Sequence[dict[str, str]]) -> str | None:
    """A label that all series have and in which they differ."""
    names = [name for name in labels[0] if name != "__name__" and all(name in own for own in labels)]
    return next((name for name in names if len({own[name] for own in labels}) > 1), names[0] if names else None)


def _sum_same(entry: Entry) -> None:
    """Columns that would become the same: those of CPU time are added up, others get names of their own."""
    groups: dict[Any, list[str]] = {}
    for name, own in entry.columns.items():
        groups.setdefault((own.quantity, own.slice), []).append(name)
    for (quantity, _), names in groups.items():
        if len(names) == 1:
            continue
        if quantity == "cpu_use_mcpu" and all(set(words_of(name)) & CPU_DIMENSIONS for name in names):
            for name in names:
                entry.columns[name] = replace(entry.columns[name], sum=True)
            continue
        for name in names[1:]:
            first, own = names[0], entry.columns[name]
            ending = quantity.rpartition("_")[2]
            other = table_name(name)
            other = other if unit_of(other) else f"{other}_{ending}"
            if any(other == known.quantity for known in entry.columns.values()) or other in {"time_s", "slice"}:
                other = f"other_{other}"[:60]
            entry.columns[name] = replace(own, quantity=other, doubt=f"{quantity} too? {first} is it here")


# Netdata


def _netdata(name: str, values: Floats) -> Guess:
    plain = table_name(name)
    if plain in CPU_DIMENSIONS:
        return Guess(
            "cpu_use_mcpu", "%", sum=True, doubt="% of one CPU, as of containers? of all CPUs, as of system.cpu?"
        )
    if plain in NETDATA_RATES:
        return Guess(NETDATA_RATES[plain], "kbit/s", doubt="kilobits/s, as of Netdata's net charts; of N3 or of N6?")
    return guess(name, values)


def _netdata_json(looks: Sequence[Look]) -> Entry:
    labels, rows = netdata_table(looks[0].path, looks[0].document)
    if not labels or not rows:
        raise DatasetError.at(looks[0].path, "no rows; expected a table of Netdata")
    entry = Entry({"format": "netdata", "time": labels[0]})
    for index, name in enumerate(labels[1:], 1):
        cells = [row[index] for row in rows[:400] if isinstance(row, list) and len(row) == len(labels)]
        numbers = [cell[0] if isinstance(cell, list) and cell else cell for cell in cells]
        known = np.asarray([float(cell) for cell in numbers if isinstance(cell, int | float)], np.float64)
        entry.columns[name] = _netdata(name, known)
    _sum_same(entry)
    return _single(looks, entry)


# Prometheus, iperf3, captures


def _prometheus(look: Look) -> Entry:
    series = series_of(look.path, look.document)
    every = [labels for labels, _ in series]
    entry = Entry({"format": "prometheus"})
    label = slice_label({name for labels in every for name in labels if name != "__name__"}) or _differing_label(every)
    if label is not None and all(label in labels for labels in every):
        entry.fields["slice"] = label
        _add_slices(entry, dict.fromkeys(labels[label] for labels in every))
        if label not in {"slice", "slice_id", "slice_name", "s_nssai", "snssai", "nssai"}:
            entry.doubts["slice"] = f"does {label} identify slices?"
    else:
        label = None
        _single([look], entry)
    kept = [name for name in every[0] if name in KEPT and name != label and all(name in own for own in every)]
    if kept:
        entry.fields["keep"] = kept
    hints = words_of(stem_of(look.path))
    for labels, samples in _kinds(series, label, kept):
        numbers = [
            number_of(str(sample[1])) for sample in samples[:400] if isinstance(sample, list) and len(sample) > 1
        ]
        values = np.asarray([own[0] for own in numbers if own is not None], np.float64)
        name = labels.get("__name__", "")
        quantile = labels.get("quantile", "")
        own = guess(f"{name}_{quantile}" if quantile else name, values, hints, labels=labels)
        entry.columns[written(labels)] = own
    _sum_same(entry)
    return entry


def _kinds(
    series: Sequence[tuple[dict[str, str], list[Any]]], label: str | None, kept: Sequence[str]
) -> list[tuple[dict[str, str], list[Any]]]:
    """Series that differ in more than their slice, by the labels in which they do."""
    every = [labels for labels, _ in series]
    names = dict.fromkeys(name for labels in every for name in labels if name != label and name not in kept)
    by_slice: dict[str | None, list[dict[str, str]]] = {}
    for labels in every:
        by_slice.setdefault(labels.get(label or ""), []).append(labels)
    # Labels in which the series of a slice differ; others only name where it runs.
    distinguishing = [
        name
        for name in names
        if name == "__name__" or any(len({own.get(name) for own in group}) > 1 for group in by_slice.values())
    ]
    shown = distinguishing or [name for name in names if len({labels.get(name) for labels in every}) == 1][:1]
    result: dict[str, tuple[dict[str, str], list[Any]]] = {}
    for labels, samples in series:
        own = {name: labels[name] for name in shown if name in labels}
        result.setdefault(written(own), (own, samples))
    return list(result.values())


def _iperf3(looks: Sequence[Look]) -> Entry:
    entry = Entry({"format": "iperf3"})
    began, rows, sender = iperf3_rows(looks[0].path, looks[0].document)
    for name in dict.fromkeys(name for row in rows for name in row):
        plain = name.removeprefix(SERVER).removeprefix(REVERSE)
        if plain in IPERF3 and plain not in {"bytes", "snd_cwnd"}:
            entry.columns[name] = _iperf3_guess(name, plain, sender, SERVER in name)
    if "offered_mbps" not in {own.quantity for own in entry.columns.values()} and sender is None:
        entry.doubts["columns"] = "the report does not say whether sender or receiver wrote it"
    if began is None:
        entry.doubts["format"] = "the report has no date: times are from its start"
    return _single(looks, entry)


def _iperf3_guess(name: str, plain: str, sender: bool | None, of_server: bool) -> Guess:
    prefix = name[: len(name) - len(plain)]
    if plain == "bits_per_second":
        if prefix == REVERSE:
            return Guess("downlink_mbps", "bit/s")
        if of_server or sender is False:
            return Guess("carried_mbps", "bit/s")
        return Guess("offered_mbps", "bit/s", doubt="what the sender sent; of a receiver: carried_mbps")
    known = {
        "jitter_ms": Guess("jitter_ms", "ms"),
        "lost_percent": Guess("loss_ratio", "%"),
        "rtt": Guess("latency_ms", "µs"),
        "packets": Guess("packets"),
        "lost_packets": Guess("lost_packets"),
        "retransmits": Guess("retransmits"),
    }[plain]
    return replace(known, quantity=f"{prefix}{known.quantity}") if prefix else known


def _pcap(looks: Sequence[Look]) -> Entry:
    paths = [look.path for look in looks]
    entry = Entry({"format": "pcap"})
    packets = read_packets(paths, Faults(), most=MOST_FRAMES)
    crossings = crossings_of(paths, packets, Faults())
    if np.isfinite(crossings.delay_us).any():
        entry.columns["delay_us"] = Guess("delay_us", "us")
    else:
        entry.doubts["format"] = "only N3 was captured: no delays without a capture of N6"
    entry.columns["packet_bytes"] = Guess("packet_bytes", "B")
    labels = labels_of(packets, crossings)
    if len(labels["direction"].codes) and len(np.unique(labels["direction"].codes)) > 1:
        entry.fields["keep"] = ["direction"]
    for name in ("upf_address", "ue_network", "qfi", "teid"):
        names = [label for label in labels[name].names if label]
        if len(names) > 1:
            entry.fields["slice"] = name
            entry.fields["slices"] = {label: slice_name(f"{name.partition('_')[0]}-{label}") for label in names[:64]}
            entry.doubts["slice"] = f"{len(names)} different; else upf_address, ue_network, qfi or teid"
            return entry
    entry.fields["slice_name"] = (
        slice_name(f"upf-{labels['upf_address'].names[0]}") if labels["upf_address"].names else "upf"
    )
    entry.doubts["slice_name"] = "one UPF, one network of UEs and one QFI: all packets are of one slice"
    return entry
