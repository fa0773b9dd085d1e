"""CSV files of any size as blocks of typed columns, in order, in bounded memory.

A file is cut at line ends, and some blocks are parsed at a time, each in a thread of its own. Types are given and never
guessed: what a row means does not depend on what the first rows look like.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import threading
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slicepilot.data.arrow import filtered
from slicepilot.data.faults import DatasetError, Faults, shown
from slicepilot.data.files import what_else

from .encodings import UTF16, utf16_of
from .layout import UTF8_MARK, BadRows, Layout, Rows
from .rows import parse

BLOCK_BYTES = 1 << 20  # stays in a CPU's cache, and is parsed within some 10 ms: so much later a signal is answered
THREADS = 2
HEADER_BYTES = 64 << 10  # read to find the header
HOPELESS = 10_000  # rows none of which fits: a file of another kind
GZIP = b"\x1f\x8b"
OTHER_KINDS = {b"PAR1": "Parquet", b"\x89HDF": "HDF5"}
OTHER_DELIMITERS = {";": "semicolons", "\t": "tabs"}

OnProgress = Callable[[float], None]
"""Called with the share of a file that has been read, 0..1."""


@dataclass(frozen=True)
class Block:
    """Rows that follow each other in a file.

    Attributes:
        table: typed columns in the file's order, one chunk each.
        first_line: line of the file, from 1, where the block's text begins.
    """

    table: Any
    first_line: int
    _lines: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        """Number of rows N."""
        return self.table.num_rows

    def lines(self) -> npt.NDArray[np.int64]:
        """Line of the file, from 1, of each row (N,)."""
        own = np.arange(len(self), dtype=np.int64) if self._lines is None else self._lines
        return own + self.first_line

    def where(self, keep: npt.NDArray[np.bool_]) -> Block:
        """The rows whose mask (N,) is True."""
        if keep.all():
            return self
        own = self.lines() - self.first_line
        return replace(self, table=filtered(self.table, keep), _lines=own[keep])


def read_blocks(
    path: str | Path,
    columns: Mapping[str, Any],
    faults: Faults,
    *,
    optional: Collection[str] = (),
    others: Any = None,
    nullable: bool = False,
    delimiter: str = ",",
    block_bytes: int = BLOCK_BYTES,
    threads: int = THREADS,
    on_progress: OnProgress | None = None,
) -> Iterator[Block]:
    """Blocks of a CSV file (RFC 4180 without line breaks inside of fields; UTF-8; gzip or not) with a header.

    Rows that do not fit are left out and noted in ``faults``: ``columns`` (too many or too few fields), ``number``,
    ``text`` (not UTF-8); ``truncated`` if it is the last one and has no line end. A last row without line end that fits
    is kept and noted as ``truncated``: nobody can tell whether its last field is whole. Empty lines are no rows.

    Args:
        path: of the file. Whether it is compressed is told by its first bytes.
        columns: Arrow type of each column by its name in the header: signed integers, floats (finite numbers only),
            strings, dictionaries of strings.
        faults: where bad rows are noted.
        optional: names that the header may lack.
        others: type of columns that are not named; None: there must not be any.
        nullable: an empty field of a number column is null, and no fault.
        delimiter: one character.
        block_bytes: text parsed at once; lines of more than twice as much are refused. Memory in use is about six of
            these for each thread.
        threads: that parse.
        on_progress: told about the share of the file that has been read.

    Raises:
        DatasetError: there is no such file, it is empty or no text, its columns are not these, a line has no end, it
            has no rows or none that fits; the compressed data are damaged or end early (what came before that has
            been handed on by then).
    """
    path = Path(path)
    with _opened(path) as (raw, stream), ThreadPoolExecutor(threads, "csv") as pool:
        size = max(path.stat().st_size, 1)
        cutter = _Cutter(path, stream, block_bytes)
        layout = Layout(_types(path, cutter.header(delimiter), columns, optional, others), delimiter, nullable)
        waiting: deque[tuple[Future[Rows], bytearray]] = deque()
        position, stopped = _Position(path, faults), threading.Event()
        try:
            for text in cutter:
                waiting.append((pool.submit(parse, layout, text, stopped.is_set), text))
                if len(waiting) > threads:
                    parsed, read = waiting.popleft()
                    yield from position.blocks(parsed.result())
                    cutter.take_back(read)
                if on_progress is not None:
                    on_progress(min(raw.tell() / size, 1.0))
            while waiting:
                parsed, text = waiting.popleft()
                cut_off = None if waiting or cutter.ended else bytes(text[text.rfind(b"\n") + 1 :])
                yield from position.blocks(parsed.result(), cut_off)
        finally:
            # A reader that is stopped, by Ctrl-C perhaps, waits for what its threads are at.
            stopped.set()
            for parsed, _ in waiting:
                parsed.cancel()
        position.end(cutter)


class _Cutter:
    """Blocks of whole lines of a stream.

    Attributes:
        ended: whether the last block's last line has its end.
        broken: what is wrong with the compressed data, if anything is.
        lost: the line in which compressed data broke off.
    """

    def __init__(self, path: Path, stream: io.BufferedIOBase, block_bytes: int) -> None:
        self.ended = True
        self.broken: str | None = None
        self.lost = b""
        self._path, self._stream, self._block_bytes, self._rest = path, stream, block_bytes, b""
        self._spare: list[bytearray] = []

    def header(self, delimiter: str) -> list[str]:
        """The names of the columns, which the first line holds."""
        text = self._read(min(self._block_bytes, HEADER_BYTES))
        if not text and not self.broken:
            raise DatasetError.at(self._path, "is empty; accepted: a CSV file whose first line names its columns")
        if utf16_of(text) is not None:
            raise DatasetError.at(self._path, UTF16)
        for mark, kind in OTHER_KINDS.items():
            if text.startswith(mark):
                raise DatasetError.at(self._path, f"{kind}; accepted: CSV in UTF-8")
        line, end, rest = text.removeprefix(UTF8_MARK).partition(b"\n")
        if not end and (self.broken or len(text) >= self._block_bytes):
            problem = self.broken or f"no line end in {len(text)} bytes"
            raise DatasetError.at(self._path, f"{problem}; accepted: whole CSV files", 1)
        self._rest = bytes(rest)
        try:
            names = line.decode().strip("\r")
        except UnicodeDecodeError:
            raise DatasetError.at(self._path, "no text; accepted: CSV in UTF-8", 1) from None
        if not names.strip():
            raise DatasetError.at(self._path, "no header; accepted: a CSV file whose first line names its columns", 1)
        if not names.replace("\t", "").isprintable():
            raise DatasetError.at(self._path, "no text; accepted: CSV in UTF-8", 1)
        return [name.strip() for name in next(csv.reader([names], delimiter=delimiter))]

    def __iter__(self) -> Iterator[bytearray]:
        """The rest of the stream; raises DatasetError for a line that is longer than two blocks."""
        more = True
        while more:
            text = self._read(self._block_bytes)
            more = not self.broken and len(text) == len(self._rest) + self._block_bytes
            end = text.rfind(b"\n") + 1 if more or self.broken else len(text)
            if more and not end:
                raise DatasetError.at(self._path, f"no line end in {len(text)} bytes; accepted: a CSV file")
            self._rest = bytes(memoryview(text)[end:])
            if self.broken:
                self.lost = self._rest
            del text[end:]
            self.ended = not text or text.endswith(b"\n")
            if text:
                yield text

    def take_back(self, text: bytearray) -> None:
        """A block whose text nobody needs any longer is read into again: new memory costs more than what is read."""
        self._spare.append(text)

    def _memory(self, num_bytes: int) -> bytearray:
        text = self._spare.pop() if self._spare else bytearray()
        try:
            text.extend(bytes(max(num_bytes - len(text), 0) + 1))  # never by nothing, which would not fail
            del text[num_bytes:]
        except BufferError:  # somebody does need it
            return bytearray(num_bytes)
        return text

    def _read(self, num_bytes: int) -> bytearray:
        """What is left over from the block before and so many bytes more, or as many as the stream has."""
        size = len(self._rest)
        text = self._memory(size + num_bytes)
        text[:size] = self._rest
        with memoryview(text) as view:
            try:
                while not self.broken and size < len(text) and (count := self._stream.readinto1(view[size:])):
                    size += count
            except EOFError:
                self.broken = "the compressed data end early"
            except (zlib.error, gzip.BadGzipFile) as error:
                self.broken = f"the compressed data are damaged ({error})"
            except OSError as error:
                raise DatasetError.at(self._path, f"{error.strerror}; accepted: a file that can be read") from None
        del text[size:]
        return text


class _Position:
    """Where in the file the next block begins, and how many rows came before."""

    def __init__(self, path: Path, faults: Faults) -> None:
        self._path, self._faults = path, faults
        self._line, self._good, self._bad = 2, 0, 0

    def blocks(self, rows: Rows, cut_off: bytes | None = None) -> Iterator[Block]:
        """The block, if it has any good row; ``cut_off``: its last line, where that has no end."""
        last = rows.num_lines - 1
        for bad in sorted(rows.bad, key=lambda bad: int(bad.lines[0])):
            self._note(bad, None if cut_off is None else last)
        block = Block(rows.table, self._line, rows.lines)
        if cut_off is not None and len(block) and block.lines()[-1] == self._line + last:
            self._faults.add("truncated", self._line + last, None, cut_off, left_out=False)
        self._line += rows.num_lines
        self._good += len(block)
        self._bad += sum(map(len, rows.bad))
        if len(block):
            yield block
        if not self._good and self._bad >= HOPELESS:
            self._nothing_fits()

    def end(self, cutter: _Cutter) -> None:
        """After the last block: raises DatasetError for what makes the whole file unusable."""
        if cutter.lost:
            self._faults.add("truncated", self._line, None, cutter.lost)
        if cutter.broken is not None:
            raise DatasetError.at(self._path, f"{cutter.broken}; accepted: whole files", self._line)
        if not self._good and self._bad:
            self._nothing_fits()
        if not self._good:
            raise DatasetError.at(self._path, "no rows after the header; accepted: at least one")

    def _note(self, bad: BadRows, cut_off: int | None) -> None:
        """Note bad rows; ``cut_off``: the block's line that has no end."""
        rest = len(bad)
        if bad.lines[-1] == cut_off:
            rest -= 1
            value = bad.values[rest] if rest < len(bad.values) else None
            self._faults.add("truncated", self._line + int(bad.lines[rest]), bad.column, value)
        self._faults.add_many(bad.kind, self._line + bad.lines[:rest], bad.column, bad.values)

    def _nothing_fits(self) -> None:
        first = self._faults.examples()[0]
        raise DatasetError.at(self._path, f"none of {self._bad} rows fits its columns, the first in {first}")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[io.BufferedReader, io.BufferedIOBase]]:
    """A file, and its contents if it is compressed."""
    if problem := what_else(path):
        raise DatasetError.at(path, f"{problem}; accepted: a regular file")
    try:
        raw = path.open("rb")
    except OSError as error:
        raise DatasetError.at(path, f"{error.strerror}; accepted: a CSV file, compressed by gzip or not") from None
    with raw:
        if raw.peek(len(GZIP))[: len(GZIP)] != GZIP:
            yield raw, raw
            return
        with gzip.GzipFile(fileobj=raw) as stream:
            yield raw, stream


def _types(
    path: Path, names: list[str], columns: Mapping[str, Any], optional: Collection[str], others: Any
) -> dict[str, Any]:
    """Arrow type of each column of a header; raises DatasetError where it is not as expected."""
    missing = [name for name in columns if name not in names and name not in optional]
    for delimiter, word in OTHER_DELIMITERS.items() if len(names) == 1 else ():
        if missing and set(missing) <= {name.strip().strip('"') for name in names[0].split(delimiter)}:
            raise DatasetError.at(path, f"fields are separated by {word}; accepted: commas", 1)
    unknown = [name for name in names if name not in columns] if others is None else []
    twice = sorted({name for name in names if names.count(name) > 1})
    wrong = [
        f"{what} {', '.join(map(shown, some))}"
        for what, some in (("missing", missing), ("unknown", unknown), ("twice", twice))
        if some
    ]
    if wrong:
        more = "" if others is None else " and others"
        raise DatasetError.at(path, f"columns: {'; '.join(wrong)}; accepted: {', '.join(columns)}{more}", 1)
    return {name: columns.get(name, others) for name in names}
