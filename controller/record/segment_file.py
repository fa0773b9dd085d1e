"""Opening a file of the records folder, which the publisher's user owns: whoever reads it may be root.

What lies there may be a link to somebody else's file, a FIFO, a file of terabytes, or Parquet that was made to break
its reader. It is opened without following links or waiting, and its size, rows and columns are looked at before any of
it is decoded; whatever is wrong with it is one `ConfigError`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from slicepilot.configs import ConfigError

MOST_BYTES, MOST_DECODED_BYTES = 1 << 27, 1 << 28
MOST_ROWS, MOST_COLUMNS = 1 << 17, 1 << 14
_OPTIONS: dict[str, Any] = {
    "page_checksum_verification": True,
    "pre_buffer": False,
    # Of texts and lists in the footer.
    "thrift_string_size_limit": 1 << 20,
    "thrift_container_size_limit": 1 << 20,
}


@contextlib.contextmanager
def open_segment(path: Path) -> Iterator[pq.ParquetFile]:
    """A Parquet file of a records folder, within limits.

    Raises:
        FileNotFoundError: it has gone.
        ConfigError: anything else that is wrong with it, also what comes up while it is read in the ``with`` block.
    """
    try:
        with os.fdopen(_descriptor(path), "rb") as source, pq.ParquetFile(source, **_OPTIONS) as file:
            _check(file.metadata)
            yield file
    except (FileNotFoundError, ConfigError):
        raise
    except Exception as error:
        # Arrow and NumPy have errors of every kind for bytes that nobody has written.
        raise ConfigError(f"damaged: {plain_line(str(error)) or type(error).__name__}") from error


def plain_line(text: str, longest: int = 200) -> str:
    """A text from outside on one line, without what a terminal would act on."""
    shown = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in " ".join(text.split()))
    return shown if len(shown) <= longest else f"{shown[: longest - 3]}..."


def _descriptor(path: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        what = "a link" if error.errno == errno.ELOOP else error.strerror
        raise ConfigError(f"{what}; accepted: a file of the controller's publisher") from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:
        os.close(descriptor)
        raise ConfigError(f"no regular file of at most {MOST_BYTES} bytes; accepted: one of the controller's publisher")
    return descriptor


def _check(metadata: Any) -> None:
    decoded = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    for what, found, most in (
        ("rows", metadata.num_rows, MOST_ROWS),
        ("columns", metadata.num_columns, MOST_COLUMNS),
        ("bytes once decoded", decoded, MOST_DECODED_BYTES),
    ):
        if not 0 <= found <= most:
            raise ConfigError(f"{found} {what}; accepted: at most {most}")
