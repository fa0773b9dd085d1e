"""One block of CSV text to typed columns; where some rows are bad, the good ones and what is wrong with the others.

Arrow takes a block as a whole or refuses it as a whole. What it refuses is cut into pieces, and of the pieces that it
refuses each line is judged by itself (`slicepilot.data.csv.sifting`). Both judge alike, so that what becomes of a row
does not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import replace

import numpy as np
import pyarrow as pa

from slicepilot.data.arrow import values_of

from .layout import UTF8_MARK, BadRows, Ints, Layout, Rows, fields_of
from .sifting import sift

SMALL = 256 << 10  # bytes of which each line may be looked at
PIECES = 8  # a refused block is cut into so many


def parse(layout: Layout, text: bytearray, unwanted: Callable[[], bool] = lambda: False) -> Rows:
    """Typed columns of whole lines; the last one may lack its line end. Other threads run meanwhile.

    Raises:
        CancelledError: nobody wants the rows any longer, as ``unwanted`` says; asked for every `SMALL` bytes or so
            of a block that takes long.
    """
    if unwanted():
        raise CancelledError
    rows = _at_once(layout, text)
    if rows is not None:
        return rows
    several = 0 <= text.find(b"\n") < len(text) - 1
    if len(text) > SMALL and several:
        return _joined([parse(layout, piece, unwanted) for piece in _pieces(text)])
    return sift(layout, text)


def _at_once(layout: Layout, text: bytearray) -> Rows | None:
    """The rows if all are good and each is one line, else None."""
    quoted = b'"' in text
    lone_returns = b"\r" in text and text.count(b"\r") != text.count(b"\r\n")
    if lone_returns or text.startswith(UTF8_MARK):  # which Arrow would swallow
        return None
    try:
        table = layout.read(text, layout.types, quoted)
    except pa.ArrowInvalid:
        return None
    # A quoted row may reach over many lines, and empty lines are skipped where there is one column.
    skips = quoted or len(layout.types) == 1
    if skips and table.num_rows != text.count(b"\n") + (not text.endswith(b"\n")):
        return None
    # Arrow forgives the last line a quote that is not closed.
    if quoted and not fields_of(_last_line(text), layout.delimiter):
        return None
    finite = [np.isfinite(values_of(column)).all() for column in table.columns if pa.types.is_floating(column.type)]
    return Rows(table, None, table.num_rows) if all(finite) else None


def _last_line(text: bytearray) -> bytes:
    end = len(text) - text.endswith(b"\n")
    return bytes(text[text.rfind(b"\n", 0, end) + 1 : end]).removesuffix(b"\r")


def _pieces(text: bytearray) -> list[bytearray]:
    """About `PIECES` parts of a block of several lines, each of whole lines; at least two."""
    step, pieces, start = len(text) // PIECES, [], 0
    while start < len(text):
        end = text.find(b"\n", start + step) + 1 or len(text)
        if end - start == len(text):
            end = text.find(b"\n") + 1
        pieces.append(text[start:end])
        start = end
    return pieces


def _joined(parts: list[Rows]) -> Rows:
    """Parts of a block, one after the other."""
    lines: list[Ints] = []
    bad: list[BadRows] = []
    before = 0
    for part in parts:
        own = np.arange(part.table.num_rows) if part.lines is None else part.lines
        lines.append(own + before)
        bad.extend(replace(rows, lines=rows.lines + before) for rows in part.bad)
        before += part.num_lines
    table = pa.concat_tables([part.table for part in parts]).unify_dictionaries().combine_chunks()
    return Rows(table, np.concatenate(lines), before, tuple(bad))
