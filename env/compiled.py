"""Compiled functions of several files that call each other."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any


def digest_of(*functions: Callable[..., Any]) -> str:
    """A digest of the files that compiled functions stand in, for the cache of another that calls them.

    numba's cache of a function (``cache=True``) lasts until its own file changes, whatever becomes of what it calls. If
    the function is made inside another one, what it mentions of that one's variables is part of the cache's key: let it
    mention this.
    """
    sources = sorted({inspect.getfile(inspect.unwrap(function)) for function in functions})
    return hashlib.sha256(b"\0".join(Path(source).read_bytes() for source in sources)).hexdigest()
