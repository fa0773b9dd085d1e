"""The readers' loops over bytes and rows in C, compiled where there is a compiler when they are first wanted.

Machine code in a file of its own is there at once; what a just-in-time compiler needs to start takes longer than
reading some hundred megabytes. Where there is no compiler, or what it makes cannot be loaded, callers do the same in
NumPy and Arrow, some times slower.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SWITCH = "SLICEPILOT_NATIVE"
"""Name of the environment variable that leaves the compiled loops out where it is 0."""

HERE = Path(__file__).parent
COMPILERS = ("cc", "gcc", "clang")  # if CC names none
# Without contraction, sums are the same on processors that multiply and add at once.
OPTIONS = ("-std=c11", "-O3", "-fPIC", "-shared", "-ffp-contract=off")
COMPILING_S = 60.0


class Loops(NamedTuple):
    """The compiled loops; each raises `ctypes.ArgumentError` for an array of another type, or not contiguous."""

    parse_plain: Callable[..., int]
    mark_codes: Callable[..., None]
    number_codes: Callable[..., None]
    inspect_packets: Callable[..., int]
    add_packets: Callable[..., None]
    add_values: Callable[..., None]


@cache
def compiled() -> Loops | None:
    """The compiled loops; None where there are none."""
    if os.environ.get(SWITCH) == "0":
        return None
    for folder in _folders():
        try:
            path = _compiled(folder)
            return None if path is None else _loops(path)
        except OSError:  # not writable, or nothing may be executed there
            continue
    return None


def compiler() -> str | None:
    """Path of the compiler: what CC names if there is such a program, or one by a usual name."""
    return next(filter(None, map(shutil.which, [os.environ.get("CC", ""), *COMPILERS])), None)


def _folders() -> Iterator[Path]:
    """Where compiled code may be kept: beside the source, as Python's own is, or with the user's."""
    yield HERE / "__pycache__"
    yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slicepilot"


def _compiled(folder: Path) -> Path | None:
    """The compiled code in a folder, made if it is not there; None without a compiler that can make it."""
    sources = sorted(HERE.glob("*.c"))
    made_of = hashlib.sha256(" ".join(OPTIONS).encode())
    for source in sources:
        made_of.update(source.read_bytes())
    target = folder / f"{platform.machine()}-{made_of.hexdigest()[:16]}.so"
    if target.exists():
        return target
    found = compiler()
    if found is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    # Written beside and renamed: who loads it meanwhile sees all of it or nothing.
    with tempfile.TemporaryDirectory(prefix=".native-", dir=folder) as staging:
        made = Path(staging) / target.name
        command = [found, *OPTIONS, *map(str, sources), "-o", str(made)]
        try:
            subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=COMPILING_S)
        except subprocess.SubprocessError:
            return None
        made.replace(target)
    return target


def _loops(path: Path) -> Loops:
    """The loops of a compiled file with the types of their arguments, as in the sources."""
    number, byte = ctypes.c_int64, ctypes.c_uint8
    bytes_, shorts = _array(np.uint8), _array(np.int16)
    ints, short_ints, floats = _array(np.int64), _array(np.int32), _array(np.float64)
    # Other threads run while a block is parsed. What takes a fraction of a millisecond does not let go of the
    # interpreter: it would have to wait for it afterwards, five milliseconds where another thread has it.
    long, short = ctypes.CDLL(str(path)), ctypes.PyDLL(str(path))
    return Loops(
        _typed(
            long.parse_plain,
            [bytes_, number, byte, ints, number, ints, number, ints, ints, shorts, ints, ints],
            number,
        ),
        _typed(short.mark_codes, [number, short_ints, bytes_]),
        _typed(short.number_codes, [number, short_ints, ints, ints]),
        _typed(short.inspect_packets, [number, floats, short_ints, ints, ints, number], number),
        _typed(short.add_packets, [number, ints, short_ints, ints, ints, ints]),
        _typed(short.add_values, [number, ints, floats, ints, number, floats, number, number]),
    )


def _typed(loop: Any, arguments: list[Any], result: Any = None) -> Any:
    loop.argtypes, loop.restype = arguments, result
    return loop


def _array(kind: type[np.generic]) -> Any:
    return np.ctypeslib.ndpointer(kind, flags="C_CONTIGUOUS")
