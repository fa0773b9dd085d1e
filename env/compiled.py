"""Functions compiled by numba. Nothing else of the project imports it: see `_ignore_the_working_folder`."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, overload

from numba import njit
from numba.core import config as _numba_config

__all__ = ["is_cached", "kernel", "never_compile_again", "njit"]


def _ignore_the_working_folder() -> None:
    """Have numba take settings from the environment only.

    At each compilation it also reads a file in the working folder. Another user may have written that file, and its
    ``cache_dir`` names the folder from which numba loads and runs compiled code without a check.
    """
    config: Any = _numba_config  # untyped
    config._config_fname = ""
    config.reload_config()


_ignore_the_working_folder()

# What kernels of other folders build on: tables of telemetry, knobs and features, and kernels that they call.
_SHARED = (
    *("env/encoding.py", "env/knobs.py", "env/telemetry.py", "env/encoding_kernels.py"),
    *("agents/heuristics/greedy_kernels.py", "agents/bounds.py"),
)


@overload
def kernel(function: Callable[..., Any], /) -> Any: ...
@overload
def kernel(**options: Any) -> Callable[[Callable[..., Any]], Any]: ...
def kernel(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Decorator: numba compiles the function when it is first called, and caches the result for later processes.

    It divides as NumPy does. The cache is discarded when a Python file in the function's folder changes, or what many
    build on (`_SHARED`); numba itself compares the function's own file only.

    Args:
        function: to be compiled.
        options: further options of `numba.njit`.
    """
    if function is None:
        return functools.partial(kernel, **options)
    settings: dict[str, Any] = {"cache": True, "error_model": "numpy"} | options
    compiled: Any = njit(**settings)(function)
    if settings["cache"] and hasattr(compiled, "_cache"):  # not where NUMBA_DISABLE_JIT is set
        compiled._cache._cache_file._source_stamp = _digest(Path(inspect.getfile(function)).parent)
    return compiled


def is_cached(compiled: Any) -> bool:
    """Whether numba loads a kernel that it compiled earlier; if not, the first call takes seconds."""
    return not hasattr(compiled, "_cache") or bool(compiled._cache._cache_file._load_index())


def never_compile_again(compiled: Any) -> None:
    """Make a kernel raise TypeError for arrays that it is not compiled for, instead of compiling during a tick."""
    compiled.disable_compile()


@functools.cache
def _digest(folder: Path) -> str:
    files = [*sorted(folder.glob("*.py")), *(Path(__file__).parents[1] / name for name in _SHARED)]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()
