"""Where compiled programs lie, and their arrays as NumPy sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slicepilot.controller.system.bpf.libbpf import BpfObject

FOLDER = Path(__file__).parent / "bpf"


def mapped(loaded: BpfObject, name: str, dtype: npt.DTypeLike, *, writable: bool = False) -> npt.NDArray[Any]:
    """An mmapable array, or a data section, as the programs see it: a view that changes while it is read.

    Raises:
        ProbeError: the object was compiled from another layout than `layout`'s.
    """
    array, element = loaded.map(name), np.dtype(dtype)
    count, rest = divmod(array.max_entries * array.value_bytes, element.itemsize)
    if rest or (array.max_entries > 1 and array.value_bytes != element.itemsize):
        raise loaded.other_sources(f"{name} of {array.value_bytes} bytes each, expected {element.itemsize}")
    return np.frombuffer(array.memory(writable), element, count)
