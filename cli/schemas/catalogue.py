"""Which command prints which document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slicepilot.controller.contracts.answers import OrderAnswer, Status

from . import bench, cluster, datasets, episodes, evaluation, explaining, machine, operation, training, verified


@dataclass(frozen=True)
class Printed:
    """A document.

    Attributes:
        command: that prints it with ``--json``, without the program's name.
        schema: what it is held against.
        when: with which options, if the command has several documents.
        note: what else there is to know of it, exit codes for instance.
    """

    command: str
    schema: Any
    when: str = ""
    note: str = ""


PRINTED = (
    Printed(
        "doctor",
        list[machine.Check],
        note="Exit code 1 when something is missing that simulation or training needs.",
    ),
    Printed("simulate", list[evaluation.StudyExperiment], "`--study`"),
    Printed("simulate", evaluation.Played, "`--scenario`, and without either"),
    Printed("train", training.Trained, "training in the simulator"),
    Printed("train", training.TrainedOffline, "`--offline`"),
    Printed("train", training.FineTuned, "`--finetune`"),
    Printed("tune", training.Tuned),
    Printed("evaluate", evaluation.Evaluation, "one scenario"),
    Printed("evaluate", list[evaluation.Evaluation], "several scenarios"),
    Printed("evaluate", evaluation.Suite, "`--suite`"),
    Printed("run", operation.RunReport),
    Printed("top", Status, note="The publisher serves the same as `/status.json`."),
    Printed("explain", explaining.ExplainedTick, "one tick"),
    Printed("explain", list[explaining.ExplainedWindow], "`--window`"),
    Printed("promote", operation.Verdict, note="Exit code 1 where it is not promoted."),
    Printed("restore", list[operation.Restored], note="Exit code 1 where something failed."),
    Printed("probe", explaining.Probed, note="Printed when the measurement has ended."),
    Printed("control status", Status, note="Without `slices[].history`. The control socket answers the same."),
    *(Printed(f"control {order}", OrderAnswer) for order in ("mode", "pause", "resume", "safe", "reload")),
    Printed("node discover", list[machine.DiscoveredUpf]),
    Printed("node check", list[machine.CheckedSlice], note="Exit code 1 where a slice could not be measured."),
    Printed("k8s status", cluster.Overview, note="Exit code 1 where there is no agent, or one is not ready."),
    Printed("testbed up", machine.TestbedUp),
    Printed("testbed status", list[machine.TestbedStatus]),
    Printed("testbed verify", list[verified.VerifiedSlice], note="Exit code 1 where something is not enforced."),
    Printed("testbed load", machine.LoadPlayed),
    Printed("node identify", machine.IdentifiedNode),
    Printed("testbed identify", machine.Identified),
    Printed("dataset list", list[datasets.Release]),
    Printed("dataset fetch", datasets.Fetched, note="Exit code 1 where not all could be fetched."),
    Printed(
        "dataset import",
        datasets.Imported,
        note="Exit code 2 where a file cannot be used at all; the others are imported.",
    ),
    Printed("dataset import-prometheus", datasets.ImportedRange),
    Printed("dataset describe", datasets.DescribedTable, "a table, or a file of a release"),
    Printed("dataset describe", datasets.DescribedEpisodes, "episodes"),
    Printed(
        "dataset validate",
        datasets.Validated,
        note="Exit code 1 where something is wrong in a file, 2 where one cannot be used at all.",
    ),
    Printed("dataset convert", datasets.Converted),
    Printed("dataset record", episodes.Recorded),
    Printed("dataset analyse", episodes.Analysed, note="[Statistics](statistics.md) says how each figure is made."),
    Printed(
        "dataset estimate",
        episodes.Estimates,
        note="[Evaluation offline](evaluation-offline.md) says how far each estimator is to be trusted.",
    ),
    Printed("bench sim", bench.SimulatorSpeed),
    Printed("bench loop", bench.LoopBench),
    Printed("bench probe", bench.ProbeBench),
    Printed("bench upf", bench.UpfBench),
    Printed("bench reaction", bench.ReactionBench),
    Printed("bench readers", bench.ReadersBench, note="Exit code 1 where the two readers disagree."),
    Printed("bench scrape", bench.ScrapeBench),
    Printed("bench shadow", bench.ShadowBench),
    Printed("bench soak", bench.SoakBench, note="Exit code 1 for a failure or a crash."),
)
