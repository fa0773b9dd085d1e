"""Commands by name.

Nothing is imported here: a command's module is imported when the command is called. A backend adds its own
(`slicepilot.configs.backends.BackendPlugin`).
"""

from __future__ import annotations

from dataclasses import replace

from slicepilot.configs.backends import Command, plugins

GROUPS = {
    "control": "Control a running controller.",
    "bundle": "Make bundles of other libraries' policies, and files of bundles.",
    "dataset": "Work with published, recorded and your own datasets.",
    "bench": "Measure the cost of slicepilot's parts on this machine.",
}

COMMANDS = {
    "doctor": Command("slicepilot.cli.doctor:doctor"),
    "demo": Command("slicepilot.cli.demo:demo"),
    "list": Command("slicepilot.cli.names:list_names"),
    "simulate": Command("slicepilot.cli.evaluation.simulate:simulate"),
    "train": Command("slicepilot.cli.train.train:train"),
    "tune": Command("slicepilot.cli.train.tune:tune", makes=True),
    "evaluate": Command("slicepilot.cli.evaluation.evaluate:evaluate"),
    "reproduce": Command("slicepilot.cli.evaluation.reproduce:reproduce", makes=True),
    "report": Command("slicepilot.cli.evaluation.report:report"),
    "compare": Command("slicepilot.cli.evaluation.compare:compare"),
    "run": Command("slicepilot.cli.operation.run:run", makes=True, urgent=True),
    "top": Command("slicepilot.cli.operation.top:top"),
    "control status": Command("slicepilot.cli.operation.control:status"),
    "control mode": Command("slicepilot.cli.operation.control:mode"),
    "control pause": Command("slicepilot.cli.operation.control:pause"),
    "control resume": Command("slicepilot.cli.operation.control:resume"),
    "control safe": Command("slicepilot.cli.operation.control:safe"),
    "control reload": Command("slicepilot.cli.operation.control:reload"),
    "explain": Command("slicepilot.cli.operation.explain:explain"),
    "promote": Command("slicepilot.cli.operation.promote:promote"),
    "bundle import": Command("slicepilot.cli.bundle.import_policy:import_policy"),
    "bundle export": Command("slicepilot.cli.bundle.export_policy:export_policy"),
    "restore": Command("slicepilot.cli.operation.restore:restore", makes=True),
    "probe": Command("slicepilot.cli.operation.probe:probe", makes=True),
    "dataset list": Command("slicepilot.cli.dataset.releases:list_releases"),
    "dataset fetch": Command("slicepilot.cli.dataset.releases:fetch"),
    "dataset import": Command("slicepilot.cli.dataset.import_files:import_files"),
    "dataset map": Command("slicepilot.cli.dataset.map_files:map_files"),
    "dataset validate": Command("slicepilot.cli.dataset.validate:validate"),
    "dataset describe": Command("slicepilot.cli.dataset.describe:describe"),
    "dataset convert": Command("slicepilot.cli.dataset.convert:convert"),
    "dataset record": Command("slicepilot.cli.dataset.record:record"),
    "dataset analyse": Command("slicepilot.cli.dataset.analyse:analyse"),
    "dataset estimate": Command("slicepilot.cli.dataset.estimate:estimate"),
    "bench sim": Command("slicepilot.cli.bench_sim:sim"),
}


def commands() -> dict[str, Command]:
    """All commands by name, in groups as ``GROUP COMMAND``; those of backends come last."""
    every = dict(COMMANDS)
    for plugin in plugins().values():
        every |= {name: replace(entry, makes=True) for name, entry in plugin.commands.items()}
    return every


def groups() -> dict[str, str]:
    """Help of all groups of commands."""
    every = dict(GROUPS)
    for plugin in plugins().values():
        every |= plugin.groups
    return every
