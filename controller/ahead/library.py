"""The library beside this file, where it is of these sources and for this processor."""

from __future__ import annotations

import hashlib
import importlib
import platform
from pathlib import Path
from typing import Any

from slicepilot.configs.compiled import PACKAGE
from slicepilot.env import compiled

NAME = "kernels"
"""Of the extension module; Python's version and the kind of processor are in its file's name, too."""

_SOURCES = (
    "agents/runtime",
    "controller/contracts",
    "controller/guard",
    "controller/record",
    "controller/telemetry",
    "env",
)
"""Folders that functions and the constants in them are from."""

_X86_64_V3 = frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"})


def take() -> str:
    """Have functions taken from the library, in files that are imported from now on; returns `why_not`.

    Where there is none that fits, numba compiles them when they are called: they do the same then.
    """
    missing = why_not()
    if not missing:
        compiled.use(_library())
    return missing


def why_not() -> str:
    """What is wrong with the library; empty if nothing is."""
    try:
        library = _library()
    except ImportError as error:
        return str(error)
    if library.sources() != digest():
        return f"{Path(library.__file__).name} was compiled from other sources"
    if platform.machine() == "x86_64" and not _flags() >= _X86_64_V3:
        return f"{Path(library.__file__).name} is for processors with AVX2"
    return ""


def digest() -> int:
    """Of the sources; 62 bits, which compiled code can return."""
    told = hashlib.sha256()
    for file in sorted(file for part in _SOURCES for file in (PACKAGE / part).glob("*.py")):
        told.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return int.from_bytes(told.digest()[:8], "little") >> 2


def _library() -> Any:
    return importlib.import_module(f"{__package__}.{NAME}")


def _flags() -> set[str]:
    with Path("/proc/cpuinfo").open(encoding="ascii", errors="replace") as file:
        return set(next((line for line in file if line.startswith("flags")), "").split())
