"""Backends by name: the simulator, and whatever part of `slicepilot` offers one.

A part offers a backend by having a module ``plugin`` with a `BackendPlugin` called ``BACKEND``. It is found when it is
asked for, so nothing below has to know what is built on it, and a new backend is a new folder.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from . import outside
from .errors import ConfigError, did_you_mean

SIMULATOR = "simulator"


@dataclass(frozen=True)
class Check:
    """One finding of ``slicepilot doctor``: what it is for, and what to do where it is not ``ok``."""

    name: str
    ok: bool
    found: str
    needed_for: str
    hint: str = ""


@dataclass(frozen=True)
class Command:
    """A command of the command line.

    Attributes:
        target: its function, as ``module:function``.
        help: in one line.
        makes: whether it makes something outside its process, which is put away when it ends
            (`slicepilot.configs.outside`).
    """

    target: str
    help: str
    makes: bool = False


@dataclass(frozen=True)
class BackendPlugin:
    """What a backend of real traffic offers. Functions are named, as ``module:function``, and imported when called.

    All but the name may be left out: who asks for what is not offered is told so.

    Attributes:
        name: in configurations and on the command line.
        open_backend: ``(scenario, control_period_s=None, *, name=None)`` to a backend that plays a scenario, with
            `slicepilot.training.evaluation.turns.TurnsBackend`'s methods; ``name`` is that of a node that is up.
        open_guarded: ``(scenario, guard, *, name=None)`` to the same under a guard
            (`slicepilot.training.finetune.guarded.Guarded`).
        open_node: ``(name, control_period_s, scenario)`` to a `slicepilot.controller.loop.node.Node`.
        open_live: ``(name, control_period_s=None, *, mode="shadow", seconds=None, run="default")`` to a backend of a
            node under the traffic that there is, for who takes its steps himself: knobs stay as they are in shadow, or
            are under guard and supervisor.
        points: ``(name)`` to where a node's packets are measured, a list of
            `slicepilot.controller.telemetry.points.SlicePoints`.
        missing: ``()`` to what this machine lacks for it, a line each.
        checks: ``()`` to what ``slicepilot doctor`` says of it, a list of `Check`.
        cluster_checks: ``(kubeconfig, node)`` to what ``slicepilot doctor --kubernetes`` says, likewise.
        groups: groups of commands that it adds, with their help.
        commands: that it adds, by name, as in ``"bench loop"``.
    """

    name: str
    open_backend: str | None = None
    open_guarded: str | None = None
    open_node: str | None = None
    open_live: str | None = None
    points: str | None = None
    missing: str | None = None
    checks: str | None = None
    cluster_checks: str | None = None
    groups: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, Command] = field(default_factory=dict)

    @property
    def opens(self) -> bool:
        """Whether it is a backend, or has commands alone."""
        return any((self.open_backend, self.open_guarded, self.open_node, self.open_live))

    def call(self, which: str, *arguments: Any, **named: Any) -> Any:
        """Call one of the functions above; raises what it raises, and ConfigError for one to open that is left out.

        Without ``missing`` nothing is missing, without ``checks`` or ``cluster_checks`` there are no findings.
        """
        target: str | None = getattr(self, which)
        if target is None:
            if which in {"missing", "checks", "cluster_checks"}:
                return []
            able = ", ".join(sorted(name for name, other in plugins().items() if getattr(other, which)))
            raise ConfigError(f"backend = {self.name!r}: has no {which}; accepted: {able}")
        if which.startswith("open_"):
            outside.will_make(self.name)
        return load_target(target)(*arguments, **named)


def load_target(target: str) -> Any:
    """What ``module:attribute`` names; imports the module."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


@cache
def plugins() -> dict[str, BackendPlugin]:
    """All that there are, by name.

    Looked for beside `slicepilot.configs` alone, and not wherever Python would find a folder of the name: that could
    be the working folder.
    """
    # In a checkout the parts are links to folders: the namespace's folder is the one that holds the link.
    root = Path(__file__).parents[1]
    found = (importlib.import_module(f"slicepilot.{file.parent.name}.plugin") for file in root.glob("*/plugin.py"))
    return {plugin.BACKEND.name: plugin.BACKEND for plugin in sorted(found, key=lambda plugin: plugin.__name__)}


def plugin(name: str, field: str = "backend") -> BackendPlugin:
    """One of them; raises ConfigError for an unknown name."""
    check_name(name, field, simulator=False)
    return plugins()[name]


def check_name(name: str, field: str = "backend", *, simulator: bool = True) -> str:
    """The name again; raises ConfigError where no backend is called so."""
    names = [*([SIMULATOR] if simulator else []), *(one.name for one in plugins().values() if one.opens)]
    if name not in names:
        raise ConfigError(f"{field}: unknown name {name!r}; {did_you_mean(name, names)}")
    return name
