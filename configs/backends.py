"""Backends by name: the simulator, and every part of `slicepilot` with a module ``plugin``.

The module has a `BackendPlugin` called ``BACKEND``. Plugins are looked up when they are needed, so that no package
depends on the backends above it, and a new backend is a new folder.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from . import outside
from .errors import ConfigError, did_you_mean

SIMULATOR = "simulator"
_LISTS = frozenset({"missing", "checks", "cluster_checks"})
"""Functions of a plugin that return a list, which is empty for a plugin without them."""


@dataclass(frozen=True)
class Check:
    """A prerequisite: what this machine has of it, which commands need it, and how to provide it."""

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
        makes: whether it creates something outside its process and removes it at the end
            (`slicepilot.configs.outside`).
        urgent: whether it starts ahead of ordinary processes, where that is permitted: a busy node is what it is for.
    """

    target: str
    makes: bool = False
    urgent: bool = False

    @property
    def help(self) -> str:
        """The first paragraph of the function's docstring, read from its source: an import can take seconds."""
        module, _, function = self.target.partition(":")
        spec = importlib.util.find_spec(module)
        assert spec is not None
        source = Path(str(spec.origin)).read_text()
        docstring = re.search(rf'^def {function}\(.*?"""(.*?)(?:\n\n|""")', source, re.DOTALL | re.MULTILINE)
        return " ".join(docstring[1].split()) if docstring else ""


@dataclass(frozen=True)
class BackendPlugin:
    """The functions of a backend with real traffic, named as ``module:function`` and imported when called.

    Everything but the name is optional.

    Attributes:
        name: in configurations and on the command line.
        open_backend: ``(scenario, control_period_s=None, *, name=None)``: a backend that carries a scenario's loads,
            with the methods of `slicepilot.training.evaluation.rollouts.LiveRunBackend`; ``name``: of a running node.
        open_guarded: ``(scenario, guard, *, name=None)``: the same under a guard
            (`slicepilot.training.finetune.train.Guarded`).
        open_node: ``(name, control_period_s, scenario)``: a `slicepilot.controller.loop.node.Node`.
        open_live: ``(name, control_period_s=None, *, mode="shadow", seconds=None, run="default")``: a node under its
            own traffic, for callers that step it themselves; in shadow no knob moves, in live the guard and the
            supervisor protect the node.
        points: ``(name)``: where a node's packets are measured, a list of
            `slicepilot.controller.telemetry.points.SlicePoints`.
        missing: ``()``: what this machine lacks for it, a line each.
        checks: ``()``: its part of ``slicepilot doctor``, a list of `Check`.
        cluster_checks: ``(kubeconfig, node)``: its part of ``slicepilot doctor --kubernetes``.
        groups: groups of commands that it adds, with their help.
        commands: commands that it adds, by name, for instance ``"bench loop"``.
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
        """Whether it is a backend rather than commands only."""
        return any((self.open_backend, self.open_guarded, self.open_node, self.open_live))

    def call(self, which: str, *arguments: Any, **named: Any) -> Any:
        """Call one of the functions above; one of `_LISTS` that the plugin lacks gives an empty list.

        Raises:
            ConfigError: the plugin lacks another function; and whatever the function raises.
        """
        target: str | None = getattr(self, which)
        if target is None:
            if which in _LISTS:
                return []
            able = ", ".join(sorted(name for name, other in plugins().items() if getattr(other, which)))
            raise ConfigError(f"backend = {self.name!r}: has no {which}; backends with it: {able}")
        if which.startswith("open_"):
            outside.will_make(self.name)
        return load_target(target)(*arguments, **named)


def load_target(target: str) -> Any:
    """Import what ``module:attribute`` names."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


@cache
def plugins() -> dict[str, BackendPlugin]:
    """All plugins by name, of folders beside `slicepilot.configs` only: the import path may have the working folder."""
    # In a checkout the parts are links to folders; the namespace's folder holds the links.
    root = Path(__file__).parents[1]
    modules = (importlib.import_module(f"slicepilot.{file.parent.name}.plugin") for file in root.glob("*/plugin.py"))
    return {module.BACKEND.name: module.BACKEND for module in sorted(modules, key=lambda module: module.__name__)}


def plugin(name: str) -> BackendPlugin:
    """A plugin by name; raises ConfigError for an unknown name."""
    check_name(name, simulator=False)
    return plugins()[name]


def check_name(name: str, *, simulator: bool = True) -> str:
    """The same name; raises ConfigError if no backend has it."""
    names = [*([SIMULATOR] if simulator else []), *(plugin.name for plugin in plugins().values() if plugin.opens)]
    if name not in names:
        raise ConfigError(f"backend: unknown name {name!r}; {did_you_mean(name, names)}")
    return name
