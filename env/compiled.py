"""Functions compiled by numba: when they are called, or ahead of time, for a process that is to do without numba.

numba with LLVM takes some 130 MiB of a process, and seconds where nothing is in its cache. A library of functions
compiled ahead (`slicepilot.controller.ahead`) has neither; who wants that calls `use` before anything else is imported
from here.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class Array(NamedTuple):
    """An array argument; contiguous (C), unless its rows stand in something wider."""

    dtype: npt.DTypeLike
    ndim: int
    contiguous: bool = True


Signature = tuple[Array | type, ...]
"""Arguments of a function: arrays, and int, float or bool."""

_CONTIGUOUS, _ALIGNED = 0x1, 0x100  # NumPy's C API, NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_ALIGNED

entries: dict[str, tuple[Callable[..., Any], Signature]] = {}
"""By the library's names: compiled functions that Python calls, and with what. Filled as their files are imported."""

_library: Any = None


def use(library: Any) -> None:
    """Take functions from a library, an extension module, in files that are imported from now on."""
    global _library  # noqa: PLW0603 (decorators have nobody to ask)
    _library = library


def ahead() -> bool:
    """Whether functions are taken from a library."""
    return _library is not None


def kernel(*signatures: Signature, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorator of a function for numba, which divides as NumPy does and keeps what it has compiled.

    Args:
        signatures: what Python calls it with. One that only other kernels call has none.
        options: further ones of `numba.njit`.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        names = _names(function, len(signatures))
        if _library is not None:  # what no name stands for is inside of what one does
            return _checked([getattr(_library, name) for name in names], signatures) if names else function
        from numba import njit

        settings: dict[str, Any] = {"cache": True, "error_model": "numpy"} | options
        compiled = njit(**settings)(function)
        entries.update((name, (compiled, signature)) for name, signature in zip(names, signatures, strict=True))
        return compiled

    return decorate


def never_compile_again(compiled: Any) -> None:
    """From now on a kernel raises TypeError for arrays it is not compiled for: a tick has no seconds for that."""
    if hasattr(compiled, "disable_compile"):  # those of a library cannot
        compiled.disable_compile()


def digest_of(*functions: Callable[..., Any]) -> str:
    """A digest of the files that compiled functions stand in, for the cache of another that calls them.

    numba's cache of a function (``cache=True``) lasts until its own file changes, whatever becomes of what it calls. If
    the function is made inside another one, what it mentions of that one's variables is part of the cache's key: let it
    mention this.
    """
    sources = sorted({inspect.getfile(inspect.unwrap(function)) for function in functions})
    return hashlib.sha256(b"\0".join(Path(source).read_bytes() for source in sources)).hexdigest()


def _names(function: Callable[..., Any], count: int) -> list[str]:
    """In a library, one for each signature; plain words, as Python and C want them."""
    file = function.__module__.rpartition(".")[2]
    return [f"{file}_{function.__name__}_{number}" for number in range(count)]


class _Choice:
    """A function of a library, the arrays that it takes, and the arguments that it had the last time."""

    def __init__(self, function: Callable[..., Any], signature: Signature) -> None:
        self.function = function
        self.arrays = [
            (i, np.dtype(one.dtype), one.ndim, _ALIGNED | _CONTIGUOUS * one.contiguous)
            for i, one in enumerate(signature)
            if isinstance(one, Array)
        ]
        self.last: tuple[Any, ...] = (self,) * len(signature)  # which nobody has


def _checked(functions: Sequence[Callable[..., Any]], signatures: Sequence[Signature]) -> Callable[..., Any]:
    """The library's function for what is given: it would read an array of another kind as if it were its own."""
    choices = [_Choice(*one) for one in zip(functions, signatures, strict=True)]

    def call(*arguments: Any) -> Any:
        for choice in choices:
            last = choice.last
            for i, dtype, ndim, flags in choice.arrays:
                array = arguments[i]
                if array is last[i]:  # a loop has most of its arrays from the start
                    continue
                if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != ndim:
                    break
                if array.flags.num & flags != flags:
                    break
            else:
                result = choice.function(*arguments)
                choice.last = arguments
                return result
        given = ", ".join(
            f"{one.dtype} {one.shape}" if isinstance(one, np.ndarray) else f"{one!r}" for one in arguments
        )
        raise TypeError(f"{given}: accepted: what it was compiled for")

    return call
