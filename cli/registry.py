"""Commands by name, with one sentence of help.

Nothing is imported here: ``slicepilot --help`` shows this table, and a command's module is imported when it is called.
A backend adds its own (`slicepilot.configs.backends.BackendPlugin`).
"""

from __future__ import annotations

from dataclasses import replace

from slicepilot.configs.backends import Command, plugins

GROUPS = {
    "control": "Control a running controller.",
    "dataset": "Work with published and recorded datasets.",
    "bench": "Measure the cost of slicepilot's parts on this machine.",
}

COMMANDS = {
    "doctor": Command(
        "slicepilot.cli.doctor:doctor",
        "Check what this machine can run: simulation, training, and a live user plane.",
    ),
    "demo": Command(
        "slicepilot.cli.demo:demo",
        "Compare the simulator with the published study, train a policy, evaluate it and write a report.",
    ),
    "simulate": Command(
        "slicepilot.cli.evaluation.simulate:simulate",
        "Simulate published experiments or a scenario.",
    ),
    "train": Command(
        "slicepilot.cli.train.train:train",
        "Train a policy in the simulator or from recorded episodes, and save it as a bundle.",
    ),
    "tune": Command(
        "slicepilot.cli.train.tune:tune",
        "Train many policies in parallel on Ray (seeds, algorithms, reward weights) and report the best.",
        makes=True,
    ),
    "evaluate": Command(
        "slicepilot.cli.evaluation.evaluate:evaluate",
        "Run agents on the same seeds of the same scenarios and compare them.",
    ),
    "report": Command(
        "slicepilot.cli.evaluation.report:report",
        "Render the results of an evaluation as one self-contained HTML file.",
    ),
    "run": Command(
        "slicepilot.cli.operation.run:run",
        "Watch real UPFs with an agent and, if asked to, move their knobs; restore the original settings at the end.",
        makes=True,
    ),
    "top": Command(
        "slicepilot.cli.operation.top:top",
        "Show a running controller: slices, delays, rates, knobs, guard and budget. Read-only; q quits.",
    ),
    "control status": Command(
        "slicepilot.cli.operation.control:status", "Show the mode, the guard and the figures of the slices."
    ),
    "control mode": Command(
        "slicepilot.cli.operation.control:mode",
        "Change the mode: leaving shadow takes over the knobs, entering it restores them.",
    ),
    "control pause": Command(
        "slicepilot.cli.operation.control:pause", "Hold the knobs at their current values until resumed."
    ),
    "control resume": Command(
        "slicepilot.cli.operation.control:resume",
        "End a pause, an ordered safe setting, and latched states of the guard.",
    ),
    "control safe": Command(
        "slicepilot.cli.operation.control:safe",
        "Apply the declared safe setting until resumed.",
    ),
    "control reload": Command(
        "slicepilot.cli.operation.control:reload",
        "Load another policy, guard configuration, or both, between two ticks.",
    ),
    "explain": Command(
        "slicepilot.cli.operation.explain:explain",
        "Explain a tick: what was measured, wanted, allowed and applied, why, and how long each stage took.",
    ),
    "promote": Command(
        "slicepilot.cli.operation.promote:promote",
        "Compare what a controller has counted of a bundle in shadow with criteria, and record a promotion in the "
        "bundle. Exit code 1: not promoted.",
    ),
    "restore": Command(
        "slicepilot.cli.operation.restore:restore",
        "Restore the original knobs after a controller and its supervisor have died.",
        makes=True,
    ),
    "probe": Command(
        "slicepilot.cli.operation.probe:probe",
        "Measure each packet of running UPFs from N3 to N6, by slice and flow, without changing the UPFs.",
        makes=True,
    ),
    "dataset list": Command(
        "slicepilot.cli.dataset.releases:list_releases",
        "List the datasets of published studies with their location and licence.",
    ),
    "dataset fetch": Command(
        "slicepilot.cli.dataset.releases:fetch",
        "Download a release. Files that are there are kept. Exit code 1: a file could not be downloaded.",
    ),
    "dataset import": Command(
        "slicepilot.cli.dataset.import_files:import_files",
        "Convert files of a release to tidy Parquet tables, and Andrade's collections also to episodes.",
    ),
    "dataset validate": Command(
        "slicepilot.cli.dataset.validate:validate",
        "Read files completely and list their faults by line. Exit code 1: faults; 2: a file is unusable.",
    ),
    "dataset convert": Command(
        "slicepilot.cli.dataset.convert:convert", "Convert a table or episodes to another format."
    ),
    "dataset record": Command(
        "slicepilot.cli.dataset.record:record",
        "Record episodes: observations, actions, rewards, and action probabilities where they are known.",
    ),
    "dataset analyse": Command(
        "slicepilot.cli.dataset.analyse:analyse",
        "Compare delays of groups with a baseline: quantiles, tests, effect sizes, quantile regression, plots.",
    ),
    "dataset estimate": Command(
        "slicepilot.cli.dataset.estimate:estimate",
        "Estimate the reward per control period of policies from recorded data, with intervals and coverage.",
    ),
    "bench sim": Command(
        "slicepilot.cli.bench_sim:sim",
        "Measure environment steps per second of the simulator, with decoding, encoding and reward.",
    ),
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
