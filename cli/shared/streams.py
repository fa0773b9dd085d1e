"""Standard output and error: never a traceback for a character that they do not have, and what goes to ``-``."""

from __future__ import annotations

import codecs
import io
import os
import sys
from pathlib import Path

from slicepilot.configs import ConfigError
from slicepilot.configs.text import speaks_utf8

STDOUT = Path("-")
# What commands print themselves beside ASCII; all else becomes a question mark.
_PLAIN = {"\u2026": "...", "\u2013": "-", "\u2014": "-", "\u00b7": "-", "\u00d7": "x", "\u00b5": "u", "\u03bc": "u"}
_PLAIN |= {"\u2265": ">=", "\u2264": "<=", "\u2192": "->", "\u2022": "*", "\u2212": "-", "\u00b1": "+-", "\u2500": "-"}


def prepare_streams() -> None:
    """Write ASCII where the locale is none of UTF-8, and replace what the encoding lacks."""
    codecs.register_error("slicepilot", _replaced)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            encoding = stream.encoding if speaks_utf8(os.environ) else "ascii"
            stream.reconfigure(encoding=encoding, errors="slicepilot")


def _replaced(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(_PLAIN.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


def write_out(out: Path, data: bytes, option: str = "--out") -> None:
    """Write a file, or to standard output where it is ``-``; raises ConfigError."""
    from slicepilot.data.files import replace_file

    if out == STDOUT:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        replace_file(out, data)
    except OSError as error:
        raise ConfigError(f"{option} = {str(out)!r}: {error.strerror}; expected a file that can be written") from error


def require_single(out: Path | None, as_json: bool, option: str = "--out") -> None:
    """Refuse ``-`` beside ``--json``, since both are written to standard output; raises ConfigError."""
    if out == STDOUT and as_json:
        raise ConfigError(f"{option} = '-': not with --json, which is written to standard output as well")


def refuse_stdout(out: Path | None, expected: str, option: str = "out") -> None:
    """Refuse ``-`` for what is no text; raises ConfigError."""
    if out == STDOUT:
        raise ConfigError(f"{option} = '-': standard output takes text alone; expected {expected}")
