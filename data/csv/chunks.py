"""What a file holds, piece by piece, decompressed where it is compressed by gzip."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from slicepilot.data.faults import DatasetError
from slicepilot.data.files import what_else

from .blocks import GZIP

CHUNK_BYTES = 1 << 20

OnProgress = Callable[[float], None]
"""Called with the share of a file that has been read, 0..1."""


def read_chunks(path: Path, on_progress: OnProgress | None = None) -> Iterator[bytes]:
    """The contents of a file, at most `CHUNK_BYTES` at a time.

    Raises:
        DatasetError: it cannot be read, or its compressed data are broken (after what came before has been handed on).
    """
    if problem := what_else(path):
        raise DatasetError.at(path, f"{problem}; accepted: a regular file")
    try:
        with path.open("rb") as raw:
            size = max(path.stat().st_size, 1)
            compressed = raw.read(len(GZIP)) == GZIP
            raw.seek(0)
            stream: Any = gzip.GzipFile(fileobj=raw) if compressed else raw
            while chunk := stream.read(CHUNK_BYTES):
                if on_progress is not None:
                    on_progress(min(raw.tell() / size, 1.0))
                yield chunk
    except EOFError:
        raise DatasetError.at(path, "the compressed data end early; accepted: whole files") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DatasetError.at(path, f"the compressed data are damaged ({error}); accepted: whole files") from None
    except OSError as error:
        raise DatasetError.at(path, f"{error.strerror or error}; accepted: a file that can be read") from None


def read_start(path: Path, length: int = 1 << 14) -> bytes:
    """The first bytes of a file; fewer, or none, where it ends or breaks off before; raises DatasetError as above."""
    return next(read_chunks(path), b"")[:length]
