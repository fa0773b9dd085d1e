"""Contents of files piece by piece, decompressed where they are compressed: gzip, bzip2, xz, Zstandard, zip."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

from slicepilot.data.faults import DatasetError
from slicepilot.data.files import what_else

GZIP, BZIP2, XZ, ZSTANDARD, ZIP = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd", b"PK"
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
"""Endings of decompressed files; contents decide, not names."""
OTHER_KINDS = {
    b"PAR1": "Parquet",
    b"\x89HDF": "HDF5",
    b"ARROW1": "an Arrow file",
    b"7z\xbc\xaf\x27\x1c": "a 7-Zip archive",
    b"Rar!": "a RAR archive",
    b"\x04\x22\x4d\x18": "compressed by LZ4",
    b"\x1f\x9d": "compressed by compress (.Z)",
    b"SQLite format 3\0": "an SQLite database",
    b"\x80\x04\x95": "a Python pickle",
    b"\x93NUMPY": "a NumPy array",
    b"%PDF": "a PDF",
    b"\xd0\xcf\x11\xe0": "an Excel workbook",
}
"""Type of a file by its first bytes, for files that are neither text nor compressed as above."""
TAR, TAR_AT = b"ustar", 257
BROKEN = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, zipfile.BadZipFile)
"""Of compressed data that end early or are damaged; bz2 and Arrow raise OSError without a number."""
CHUNK_BYTES = 1 << 20
LONGEST_LINE = 1 << 16
UTF16 = "is UTF-16; expected UTF-8"
UTF16_SAMPLE, UTF16_SHARE = 512, 0.4  # bytes that are looked at, and share of a character's halves that are zero

OnProgress = Callable[[float], None]
"""Called with the share of a file that has been read, 0..1."""


@contextlib.contextmanager
def opened(path: Path) -> Iterator[tuple[io.BufferedReader, io.BufferedIOBase]]:
    """A file, and its contents, decompressed if need be; raises DatasetError if it cannot be opened."""
    if problem := what_else(path):
        raise DatasetError.at(path, f"{problem}; expected a regular file")
    try:
        raw = path.open("rb")
    except OSError as error:
        raise DatasetError.at(path, f"{error.strerror}; expected a file that can be read") from None
    with raw, _decompressed(path, raw) as stream:
        yield raw, stream


@contextlib.contextmanager
def _decompressed(path: Path, raw: io.BufferedReader) -> Iterator[io.BufferedIOBase]:
    """The contents of a file by its first bytes."""
    start = raw.peek(len(XZ))
    if start.startswith(GZIP):
        with gzip.GzipFile(fileobj=raw) as stream:
            yield stream
    elif start.startswith(BZIP2):
        with bz2.BZ2File(raw) as unpacked:
            yield unpacked
    elif start.startswith(XZ):
        with lzma.LZMAFile(raw) as unxz:
            yield unxz
    elif start.startswith(ZSTANDARD):
        import pyarrow as pa

        with pa.CompressedInputStream(raw, "zstd") as unzstd:
            yield io.BufferedReader(unzstd)
    elif start.startswith(ZIP):
        with _of_zip(path, raw) as member:
            yield member
    else:
        yield raw


@contextlib.contextmanager
def _of_zip(path: Path, raw: io.BufferedReader) -> Iterator[io.BufferedIOBase]:
    """The only file in a ZIP archive; raises DatasetError for any other archive."""
    try:
        with zipfile.ZipFile(raw) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX/")]
            if "xl/workbook.xml" in names:
                raise DatasetError.at(path, "is an Excel workbook; expected it saved as CSV in UTF-8")
            if len(names) != 1:
                raise DatasetError.at(path, f"is a ZIP archive of {len(names)} files; expected one that holds one file")
            try:
                member = archive.open(names[0])
            except (RuntimeError, NotImplementedError) as error:  # a password, or a method that the module lacks
                raise DatasetError.at(path, f"is a ZIP archive that cannot be unpacked ({error})") from None
            with member:
                yield io.BufferedReader(cast("io.RawIOBase", member))
    except zipfile.BadZipFile as error:
        raise DatasetError.at(path, f"is a damaged ZIP archive ({error}); expected a whole file") from None


def what_is_broken(error: Exception) -> str:
    """The fault of compressed data, by the exception of the module."""
    if isinstance(error, EOFError) or "truncated" in str(error).lower() or "end-of-stream" in str(error):
        return "the compressed data end early"
    return f"the compressed data are damaged ({error})"


def uncompressed_name(name: str) -> str:
    """A file's name in small letters without the ending of its compression."""
    lower = name.lower()
    return next((lower.removesuffix(ending) for ending in COMPRESSED if lower.endswith(ending)), lower)


def other_kind_of(start: bytes) -> str | None:
    """Type of a file that is no text, by its first bytes; None if unknown."""
    if start[TAR_AT : TAR_AT + len(TAR)] == TAR:
        return "a tar archive"
    return next((kind for mark, kind in OTHER_KINDS.items() if start.startswith(mark)), None)


def read_chunks(path: Path, on_progress: OnProgress | None = None) -> Iterator[bytes]:
    """The contents of a file, at most `CHUNK_BYTES` at a time.

    Raises:
        DatasetError: it cannot be read, or its compressed data are broken (after what came before has been handed on).
    """
    with opened(path) as (raw, stream):
        size = max(path.stat().st_size, 1)
        try:
            while chunk := stream.read(CHUNK_BYTES):
                if on_progress is not None:
                    on_progress(min(raw.tell() / size, 1.0))
                yield chunk
        except (*BROKEN, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise DatasetError.at(path, f"{error.strerror}; expected a file that can be read") from None
            raise DatasetError.at(path, f"{what_is_broken(error)}; expected a whole file") from None


def read_lines(path: Path, on_progress: OnProgress | None = None) -> Iterator[tuple[int, str, bool]]:
    """Number (from 1) and text of each line, and whether it has an end: LF, CR LF or, in all of the file, CR.

    Raises:
        DatasetError: as `read_chunks`; no line end in `LONGEST_LINE` bytes.
    """
    held, number, returns = b"", 0, None
    for chunk in read_chunks(path, on_progress):
        returns = b"\r" in chunk and b"\n" not in chunk if returns is None else returns
        *whole, held = (held + (chunk.replace(b"\r", b"\n") if returns else chunk)).split(b"\n")
        if len(held) > LONGEST_LINE:
            raise DatasetError.at(path, f"no line end in {len(held)} bytes; expected lines of text", number + 1)
        for line in whole:
            number += 1
            yield number, line.decode("utf-8", "replace").strip(), True
    if held:
        yield number + 1, held.decode("utf-8", "replace").strip(), False


def read_start(path: Path, length: int = 1 << 14) -> bytes:
    """The first bytes of a file; fewer, or none, where it ends or breaks off before; raises DatasetError as above."""
    return next(read_chunks(path), b"")[:length]


def utf16_of(start: bytes) -> str | None:
    """Python's name of the UTF-16 that a file begins in, with a byte order mark or without; None for anything else."""
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    sample = start[: min(len(start), UTF16_SAMPLE) // 2 * 2]
    first, second = sample[::2], sample[1::2]
    for encoding, zeros, others in (("utf-16-le", second, first), ("utf-16-be", first, second)):
        if zeros.count(0) > UTF16_SHARE * len(zeros) and not others.count(0):
            text = sample.decode(encoding, "replace")
            return encoding if "".join(text.split()).isprintable() else None
    return None
