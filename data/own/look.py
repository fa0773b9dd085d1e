"""Inspect a file of unknown layout: its format and the contents of its columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from slicepilot.configs.text import few
from slicepilot.data.captures import is_capture
from slicepilot.data.csv.blocks import read_blocks
from slicepilot.data.csv.chunks import OTHER_KINDS, other_kind_of, read_start
from slicepilot.data.faults import DatasetError, Faults
from slicepilot.data.tables.tidy import damaged

from .columns import encoded, is_number, opened, words_of
from .csv_files import Layout, layout_of
from .json_files import iperf3_rows, load_json, netdata_table, series_of
from .map import Format
from .ping_files import is_ping
from .rows import NOTHING, Floats, number_of

MOST_ROWS = 1_000_000
SAMPLE = 400
MOST_WORDS = 500
PARQUET = b"PAR1"
KINDS = "CSV, Parquet, JSON of Prometheus, Netdata or iperf3, a log of ping, pcap or pcapng"


@dataclass
class Column:
    """A sample of a column.

    Attributes:
        texts: the first that are not empty; numbers and dates as the file has them.
        words: different texts, at most `MOST_WORDS`.
        many: whether there are more.
        dated: whether its type is a date.
    """

    name: str
    texts: list[str]
    words: dict[str, None]
    many: bool = False
    dated: bool = False
    decimal: str = "."

    @property
    def values(self) -> Floats:
        """Its first numbers (N,), NaN for other texts."""
        parsed = [number_of(text, self.decimal) for text in self.texts]
        return np.asarray([math.nan if own is None else own[0] for own in parsed], np.float64)

    @property
    def is_number(self) -> bool:
        """Whether nearly all values are numbers."""
        known = [number_of(text, self.decimal) is not None for text in self.texts]
        return bool(known) and sum(known) >= 0.8 * len(known) and bool(np.isfinite(self.values).any())

    @property
    def unit(self) -> str | None:
        """The unit after its numbers, None without a unit."""
        parsed = (number_of(text, self.decimal) for text in self.texts)
        return next((own[1] for own in parsed if own is not None and own[1] is not None), None)

    def add(self, texts: Sequence[str]) -> None:
        for text in texts:
            if len(self.texts) < SAMPLE and text.lower() not in NOTHING:
                self.texts.append(text)
            if len(self.words) >= MOST_WORDS:
                self.many = self.many or text not in self.words
                if len(self.texts) >= SAMPLE:
                    return
            else:
                self.words.setdefault(text)


@dataclass(frozen=True)
class Look:
    """A sample of a file.

    Attributes:
        columns: of a table, in its order; layout: of CSV.
    """

    path: Path
    format: Format
    columns: tuple[Column, ...] = ()
    layout: Layout | None = None
    document: Any = None


def look_at(path: Path) -> Look:
    """Look at a file.

    Raises:
        DatasetError: it cannot be read, or is of no format that is known.
    """
    start = read_start(path, 1 << 16)
    if not start:
        raise DatasetError.at(path, f"is empty; expected {KINDS}")
    if start[:4] == PARQUET:
        return _parquet(path)
    if is_capture(start):
        return Look(path, "pcap")
    if start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
        return _json(path)
    if is_ping(start):
        return Look(path, "ping")
    other = other_kind_of(start)
    if other is not None or start[:4] in OTHER_KINDS or b"\0" in start[:1024]:
        raise DatasetError.at(path, f"is {other or 'no text'}; expected {KINDS}")
    return _csv(path)


def _json(path: Path) -> Look:
    document = load_json(path)
    own = document if isinstance(document, dict) else {}
    events = isinstance(document, list) and any(isinstance(part, dict) and "event" in part for part in document)
    if "intervals" in own or ("start" in own and "end" in own) or events:
        iperf3_rows(path, document)
        return Look(path, "iperf3", document=document)
    result = own.get("result", own)
    if isinstance(result, dict) and "labels" in result:
        netdata_table(path, document)
        return Look(path, "netdata", document=document)
    if isinstance(document, list | dict) and (own.get("status") or own.get("data") or own.get("result") or document):
        series_of(path, document)
        return Look(path, "prometheus", document=document)
    raise DatasetError.at(path, f"JSON of no known kind; expected {KINDS}")


def _csv(path: Path) -> Look:
    layout = layout_of(path)
    if len(layout.names) < 2:
        raise DatasetError.at(path, f"of no known kind; expected {KINDS}")
    columns = {name: Column(name, [], {}, decimal=layout.decimal) for name in layout.names}
    rows = 0
    for block in read_blocks(path, {}, Faults(), others=pa.string(), delimiter=layout.delimiter, skip=layout.skip):
        for name in block.table.column_names:
            words = encoded(block.table.column(name))
            own = columns[name]
            if not own.many:
                own.add([words.names[code] for code in words.codes[:SAMPLE].tolist() if code >= 0])
                own.add(
                    [word for word in words.names if word]
                    if len(words.names) <= 4 * MOST_WORDS
                    else words.names[:SAMPLE]
                )
        rows += len(block)
        if rows >= MOST_ROWS:
            break
    named = [column for name, column in columns.items() if name]
    return Look(path, "csv", tuple(named), layout)


def _parquet(path: Path) -> Look:
    file = opened(path)
    columns: list[Column] = []
    try:
        batch = next(file.iter_batches(batch_size=MOST_ROWS, use_threads=False), None)
    except (OSError, pa.ArrowException, ValueError) as error:
        raise damaged(path, error, "a Parquet file") from error
    if batch is None or not batch.num_rows:
        raise DatasetError.at(path, "no rows; expected at least one")
    strange = []
    for name in batch.schema.names:
        values = batch.column(name)
        kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
        dated = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
        if pa.types.is_nested(kind) or pa.types.is_binary(kind):
            strange.append(name)
            continue
        own = Column(name, [], {}, dated=dated)
        words = words_of(path, name, values[: 1 << 16] if is_number(kind) or dated else values)
        own.add([words.names[code] for code in words.codes[:SAMPLE].tolist() if code >= 0])
        own.add(words.names[: 4 * MOST_WORDS])
        columns.append(own)
    if not columns:
        raise DatasetError.at(path, f"columns {few(strange)} are nested; expected numbers and texts")
    return Look(path, "parquet", tuple(columns))
