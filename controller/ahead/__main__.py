"""Compiles the library: ``python -m slicepilot.controller.ahead [FOLDER]``, beside this file by default.

It is for this Python and this kind of processor, made by what numba has for that (numba.pycc) and a C compiler. One
that is there already, of the same sources, stays. PYTHONHASHSEED=0 makes the same bytes of the same sources.
"""

from __future__ import annotations

import importlib
import os
import platform
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from slicepilot.env import compiled

from .library import NAME, digest, why_not

MODULES = (
    *("agents.runtime.policy", "controller.guard.guard", "controller.record.ring_kernel"),
    *("controller.telemetry.window", "env.sliding"),
)
"""With what they import they hold all functions that the loop calls."""


def build(folder: Path) -> Path:
    """Compile all that Python calls, with what it is called with; the file appears in the folder when it is whole.

    Raises:
        Exception: of numba or setuptools, many kinds.
    """
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        # numba keeps nothing of this: it is compiled for another processor than the one it is on.
        os.environ["NUMBA_CACHE_DIR"] = scratch
        # Python's own linker command may name folders to look for libraries in, which root would, on other machines.
        os.environ["LDSHARED"] = "cc -shared"
        numba: Any = importlib.import_module("numba")
        _forget_folders(numba)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pycc is to be replaced; by what, nobody has written yet
            pycc: Any = importlib.import_module("numba.pycc")
        for module in MODULES:
            importlib.import_module(f"slicepilot.{module}")
        library = pycc.CC(NAME)
        library.output_dir = scratch
        library.target_cpu = "x86-64-v3" if platform.machine() == "x86_64" else "generic"
        for name, (function, signature) in compiled.entries.items():
            types = tuple(numba.typeof(_example(one)) for one in signature)
            library.export(name, types)(_calling(function, len(signature)))
        told = digest()
        library.export("sources", "int64()")(lambda: told)
        library.compile()
        made = Path(scratch, library.output_file)
        # The scratch folder's name is in there, and a checksum of it all.
        subprocess.run(["strip", "--strip-unneeded", "--remove-section=.note.gnu.build-id", made], check=True)
        return made.replace(folder / made.name)


def _forget_folders(numba: Any) -> None:
    """What raises, and numba's own C, has the name of its file in it: without the folders of this machine."""
    flags = sysconfig.get_config_var("CFLAGS")  # which the variable replaces
    os.environ["CFLAGS"] = f"{flags} -ffile-prefix-map={Path(numba.__file__).parents[1]}/="
    numba.core.bytecode.FunctionIdentity.filename = property(
        lambda function: Path(function.code.co_filename).name, lambda *_: None
    )


def _example(of: compiled.Array | type) -> Any:
    if not isinstance(of, compiled.Array):
        return of()
    array = np.zeros((2,) * of.ndim, of.dtype)
    return array if of.contiguous else array[:, ::2]


def _calling(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """A function of that many arguments, which numba wants to see; how numbers are treated is told to what it calls."""
    names = ", ".join(f"a{i}" for i in range(count))
    return eval(f"lambda {names}: function({names})", {"function": function})


def main(arguments: list[str]) -> int:
    """Returns the exit status."""
    folder = Path(arguments[0]) if arguments else Path(__file__).parent
    if not arguments and not why_not():
        return 0
    try:
        print(build(folder))
    except Exception as error:  # noqa: BLE001 (what can go wrong is other people's)
        header = Path(sysconfig.get_path("include"), "Python.h")
        lines = [f"no {header}"] if not header.exists() else [type(error).__name__, *str(error).split("\n")]
        why = next(line for line in reversed(lines) if line.strip())
        print(f"ahead: {why}; it needs a C compiler (Debian and Ubuntu: apt install gcc python3-dev)", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
