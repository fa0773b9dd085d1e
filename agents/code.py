"""Agents and policies in Python code that a user names: ``module:Class``, or ``FILE.py:Class``.

Importing runs code. Root imports only from paths that no other user can change, and no user imports a file of another
user: `slicepilot.configs.ownership`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from slicepilot.configs import ConfigError, did_you_mean
from slicepilot.configs.ownership import check_own

from .base import Agent
from .predicting import PredictingAgent

EXPECTED = "expected an agent (name, request_mcpu, reset, decide; agents/base.py) or a policy (predict)"
INSTEAD = "copy it into a folder of yours, and read it first"


def is_code(name: str) -> bool:
    """Whether a name is that of a class in a module or file, which agents' own names never are."""
    return ":" in name


def load_agent(given: str, what: str, name: str | None = None) -> Agent:
    """Import a class or function, call it without arguments, and take the result for an agent.

    Args:
        given: ``package.module:Class``, or ``path/to/FILE.py:Class``.
        what: begins errors.
        name: of the agent, else its own, or the class's.

    Raises:
        ConfigError: the module or attribute does not exist, cannot be imported or called, or is no agent, or another
            user can change it.
    """
    where, _, attribute = given.rpartition(":")
    if not where or not attribute.isidentifier():
        raise ConfigError(f"{what}: expected module:Class or FILE.py:Class")
    try:
        module = _of_file(Path(where), what) if where.endswith(".py") else _of_name(where, what)
    except (ConfigError, KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:  # also what ends a process: it is anybody's code
        raise ConfigError(f"{what}: cannot be imported: {type(error).__name__}: {error}") from error
    if not hasattr(module, attribute):
        public = [other for other in vars(module) if not other.startswith("_")]
        raise ConfigError(f"{what}: {where} has no {attribute}: {did_you_mean(attribute, public)}")
    made = getattr(module, attribute)
    if isinstance(made, type) or not _acts(made):
        try:
            made = made()
        except Exception as error:
            raise ConfigError(
                f"{what}: calling {attribute}() without arguments fails: {type(error).__name__}: {error}"
            ) from error
    called: str = name or getattr(made, "name", None) or attribute
    if callable(getattr(made, "decide", None)):
        missing = [part for part in ("name", "request_mcpu", "reset") if not hasattr(made, part)]
        if missing:
            raise ConfigError(f"{what}: {type(made).__name__} has no {', '.join(missing)}; {EXPECTED}")
        agent: Agent = made
        if agent.name != called:
            agent.name = called
        return agent
    if callable(getattr(made, "predict", None)):
        return PredictingAgent(made, called)
    raise ConfigError(f"{what}: {type(made).__name__}; {EXPECTED}")


def _acts(made: Any) -> bool:
    return callable(getattr(made, "decide", None)) or callable(getattr(made, "predict", None))


def _of_file(path: Path, what: str) -> ModuleType:
    check_own(path, f"{what}: ", INSTEAD)
    name = f"slicepilot_policy_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ConfigError(f"{what}: no such file; expected FILE.py:Class")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]  # so that Ray sends objects with their code: workers could not import it
    return module


def _of_name(name: str, what: str) -> ModuleType:
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        prefix = ".".join(parts[:depth])
        spec = importlib.util.find_spec(prefix)  # imports what is above it, which has been checked
        if spec is None:
            raise ConfigError(
                f"{what}: no module {prefix!r}; expected an installed module, or the path of a file: "
                f"./{parts[-1]}.py:Class"
            )
        if os.geteuid() == 0:
            for location in [spec.origin] if spec.origin else spec.submodule_search_locations or []:
                if Path(location).is_absolute():  # else built in
                    check_own(Path(location), f"{what}: ", INSTEAD)
    return importlib.import_module(name)
