"""Documents of a MongoDB collection from its exports: mongodump's BSON, mongoexport's JSON and CSV, also
compressed.

JSON may be a sequence of documents or an array (``--jsonArray``), plain or extended (MongoDB Extended JSON v2, relaxed
and canonical: ``{"$numberDouble": "1.5"}``). Documents that cannot be read are noted and left out.
"""

from __future__ import annotations

import codecs
import json
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from slicepilot.data.csv.blocks import read_blocks
from slicepilot.data.csv.chunks import COMPRESSED, OnProgress, read_chunks, uncompressed_name
from slicepilot.data.faults import DatasetError, Faults

Document = Mapping[str, Any]
ENDINGS = (".bson", ".json", ".jsonl", ".ndjson", ".csv")

LONGEST_BSON = 16 << 20  # https://www.mongodb.com/docs/manual/reference/limits/
LONGEST_JSON = 1 << 20  # far above any document of the schemas that are read here
_BETWEEN = re.compile(r"[\s,]*")
# Where the next document begins after an unreadable one.
_NEXT_IN_ARRAY = re.compile(r"\}\s*,\s*(?=\{)")
_NEXT_ON_LINE = re.compile(r"\n(?=[^\s}\]])")
_BOM = "\ufeff"


def ending_of(path: Path) -> str:
    """A file's ending in small letters, without that of its compression; empty if it has none."""
    return Path(uncompressed_name(path.name)).suffix


def read_documents(
    path: Path, fields: tuple[str, ...], faults: Faults, on_progress: OnProgress | None = None
) -> Iterator[tuple[int, Document]]:
    """Each document with its line (JSON, CSV) or its number from 1 (BSON).

    Args:
        path: the export; its ending determines its format.
        fields: that a CSV export may have, in any order.
        faults: ``document`` for unreadable documents, ``truncated`` for an incomplete last document, and those of
            `slicepilot.data.csv.blocks.read_blocks`.

    Raises:
        DatasetError: another ending, no such file, compressed data that are broken (after what came before has been
            handed on), or no document in it.
    """
    ending = ending_of(path)
    if ending not in ENDINGS:
        raise DatasetError.at(
            path, f"ending {ending!r}; expected {', '.join(ENDINGS)}, also with {', '.join(COMPRESSED)}"
        )
    if ending == ".csv":
        yield from _csv(path, fields, faults, on_progress)
        return
    result = False
    chunks = read_chunks(path, on_progress)
    for pair in _bson(chunks, faults) if ending == ".bson" else _json(chunks, faults):
        yield pair
        result = True
    if not result:
        first = f"no document could be read, the first in {faults.examples()[0]}" if faults else "nothing in it"
        raise DatasetError.at(path, f"{first}; expected an export of MongoDB, as {ending} says")


def _bson(chunks: Iterator[bytes], faults: Faults) -> Iterator[tuple[int, Document]]:
    """Documents, each of which begins with its length (https://bsonspec.org/spec.html)."""
    import bson
    from bson.codec_options import CodecOptions, DatetimeConversion
    from bson.errors import BSONError

    options: Any = CodecOptions(
        unicode_decode_error_handler="replace", datetime_conversion=DatetimeConversion.DATETIME_AUTO
    )
    held, number = b"", 0
    for chunk in chunks:
        held, start = held + chunk, 0
        while len(held) - start >= 4:
            [length] = struct.unpack_from("<i", held, start)
            if not 5 <= length <= LONGEST_BSON:
                # Where the next document begins is unknown.
                faults.add("document", number + 1, "length", length)
                return
            if len(held) - start < length:
                break
            number += 1
            try:
                yield number, bson.decode(held[start : start + length], codec_options=options)
            except (BSONError, ValueError, OverflowError, RecursionError) as error:
                faults.add("document", number, None, error)
            start += length
        held = held[start:]
    if held:
        faults.add("truncated", number + 1, None, f"{len(held)} bytes of a document")


def _json(chunks: Iterator[bytes], faults: Faults) -> Iterator[tuple[int, Document]]:
    """Documents in sequence, with or without commas between and brackets around them."""
    decoder = json.JSONDecoder()
    decoded = codecs.getincrementaldecoder("utf-8")("replace")
    text, line, ended = "", 1, False
    in_array: bool | None = None
    while not ended:
        chunk = next(chunks, None)
        ended = chunk is None
        text += decoded.decode(chunk or b"", final=ended)
        start = 0
        if in_array is None:
            start = len(text) - len(text.lstrip(_BOM + " \t\r\n"))
            in_array = text.startswith("[", start) if start < len(text) else None
            start += in_array or 0
            line += text.count("\n", 0, start)
        while True:
            [start, begin] = [_BETWEEN.match(text, start).end(), start]  # type: ignore[union-attr]
            line += text.count("\n", begin, start)
            if start == len(text) or (in_array and text[start] == "]"):
                break
            try:
                value, end = decoder.raw_decode(text, start)
            except (ValueError, RecursionError) as error:
                following = _NEXT_IN_ARRAY if in_array else _NEXT_ON_LINE
                result = following.search(text, getattr(error, "pos", start))
                if result is None and not ended and len(text) - start < LONGEST_JSON:
                    break  # perhaps it goes on in the next chunk
                end = result.end() if result else len(text)
                cut_off = result is None and text[-1] not in "\n]"
                faults.add("truncated" if cut_off else "document", line, None, text[start : min(end, start + 80)])
            else:
                if isinstance(value, dict):
                    yield line, value
                else:
                    faults.add("document", line, None, text[start:end])
            line += text.count("\n", start, end)
            start = end
        text = text[start:]


def _csv(
    path: Path, fields: tuple[str, ...], faults: Faults, on_progress: OnProgress | None
) -> Iterator[tuple[int, Document]]:
    types = dict.fromkeys(fields, pa.string())
    for block in read_blocks(path, types, faults, optional=fields, others=pa.string(), on_progress=on_progress):
        yield from zip(block.lines().tolist(), block.table.to_pylist(), strict=True)
