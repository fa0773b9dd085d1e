"""Which commands there are: names, where they are found, and their help in one line.

Nothing is imported here: ``slicepilot --help`` shows this table, and a command's module is imported when it is called.
A backend adds its own (`slicepilot.configs.backends.BackendPlugin`).
"""

from __future__ import annotations

from dataclasses import replace

from slicepilot.configs.backends import Command, plugins

GROUPS = {
    "control": "Give orders to a running controller.",
    "dataset": "Released and recorded datasets: fetch, read, check, convert, judge.",
    "bench": "What things cost on this machine.",
}

COMMANDS = {
    "doctor": Command(
        "slicepilot.cli.doctor:doctor",
        "Say what this machine can run: simulation and training, and the parts a live user plane will need.",
    ),
    "demo": Command(
        "slicepilot.cli.demo:demo",
        "Check the simulator against the published study, train an agent, judge it against every alternative, report.",
    ),
    "simulate": Command(
        "slicepilot.cli.evaluation.simulate:simulate",
        "Replay published experiments in the simulator, or play a scenario.",
    ),
    "train": Command(
        "slicepilot.cli.train.train:train",
        "Train a policy in the simulator, or from recorded episodes, and save it as a bundle.",
    ),
    "tune": Command(
        "slicepilot.cli.train.tune:tune",
        "Train many policies side by side on Ray: seeds, algorithms, weights of the reward; say which is best.",
        makes=True,
    ),
    "evaluate": Command(
        "slicepilot.cli.evaluation.evaluate:evaluate",
        "Play agents on the same seeds of the same scenarios and compare them.",
    ),
    "report": Command(
        "slicepilot.cli.evaluation.report:report",
        "Render the results of an evaluation as one self-contained HTML file, without playing anything again.",
    ),
    "run": Command(
        "slicepilot.cli.operation.run:run",
        "Let an agent watch, and if asked move, the knobs of real UPFs; what it found comes back at the end.",
        makes=True,
    ),
    "top": Command(
        "slicepilot.cli.operation.top:top",
        "Watch a running controller: slices, delays, rates, knobs, guard and budget. Reads only; q quits.",
    ),
    "control status": Command("slicepilot.cli.operation.control:status", "Show mode, guard and what the slices get."),
    "control mode": Command(
        "slicepilot.cli.operation.control:mode",
        "Change what becomes of decisions; from shadow it takes the knobs over, to shadow it gives them back.",
    ),
    "control pause": Command("slicepilot.cli.operation.control:pause", "Hold the knobs as they are until resumed."),
    "control resume": Command(
        "slicepilot.cli.operation.control:resume",
        "End a pause, an ordered safe setting, and what the guard has latched.",
    ),
    "control safe": Command(
        "slicepilot.cli.operation.control:safe",
        "Go to the declared safe setting and stay there until resumed.",
    ),
    "control reload": Command(
        "slicepilot.cli.operation.control:reload",
        "Take up another policy, guard configuration, or both, between two ticks.",
    ),
    "explain": Command(
        "slicepilot.cli.operation.explain:explain",
        "Say what happened at a tick: seen, wanted, let through and why, applied, and how long each stage took.",
    ),
    "promote": Command(
        "slicepilot.cli.operation.promote:promote",
        "Hold a bundle's shadow recording against criteria; a yes is written into the bundle. Exit code 1: not "
        "promoted.",
    ),
    "restore": Command(
        "slicepilot.cli.operation.restore:restore",
        "Put back the knobs found by a controller that has died together with its supervisor.",
        makes=True,
    ),
    "probe": Command(
        "slicepilot.cli.operation.probe:probe",
        "Measure each packet of running UPFs from N3 to N6, by slice and flow, without touching the UPFs.",
        makes=True,
    ),
    "dataset list": Command(
        "slicepilot.cli.dataset.releases:list_releases",
        "Show which datasets published studies have released, where, and under which licence.",
    ),
    "dataset fetch": Command(
        "slicepilot.cli.dataset.releases:fetch",
        "Download a release. A transfer that was cut off goes on where it stopped. Exit code 1: not all could be "
        "fetched.",
    ),
    "dataset import": Command(
        "slicepilot.cli.dataset.import_files:import_files",
        "Read files of a release into tidy Parquet tables, one a file; Andrade's collections into episodes as well.",
    ),
    "dataset describe": Command(
        "slicepilot.cli.dataset.describe:describe",
        "Show rows, columns with units and spans, rows of each group, and faults; of episodes who acted and earned "
        "what.",
    ),
    "dataset validate": Command(
        "slicepilot.cli.dataset.validate:validate",
        "Read files to their ends and say what is wrong, with lines. Exit code 1: something is; 2: a file is unusable.",
    ),
    "dataset convert": Command("slicepilot.cli.dataset.convert:convert", "Turn one format into another."),
    "dataset record": Command(
        "slicepilot.cli.dataset.record:record",
        "Record episodes: what agents saw, wanted, did and earned, with how likely each choice was where that is "
        "known.",
    ),
    "dataset analyse": Command(
        "slicepilot.cli.dataset.analyse:analyse",
        "Compare delays of groups with a baseline's: quantiles, tests, effect sizes, quantile regression, plots.",
    ),
    "dataset estimate": Command(
        "slicepilot.cli.dataset.estimate:estimate",
        "Say what policies would have earned a control period, how surely, and where the data cannot say.",
    ),
    "bench sim": Command(
        "slicepilot.cli.bench.simulator:sim",
        "Environment steps per second of the simulator, with decoding, encoding and reward.",
    ),
    "bench readers": Command(
        "slicepilot.cli.bench.readers:readers",
        "Time and peak memory of summarising a forwarding file, against pandas.read_csv and groupby.",
    ),
}


def commands() -> dict[str, Command]:
    """All commands by name, groups' as ``GROUP COMMAND``; those of backends come last."""
    found = dict(COMMANDS)
    for plugin in plugins().values():
        found |= {name: replace(entry, makes=True) for name, entry in plugin.commands.items()}
    return found


def groups() -> dict[str, str]:
    """All groups of commands with their help."""
    found = dict(GROUPS)
    for plugin in plugins().values():
        found |= plugin.groups
    return found
