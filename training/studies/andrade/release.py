"""The tables of Andrade and Wickboldt (2025) out of their own exports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from slicepilot.configs import ConfigError
from slicepilot.data.faults import Faults
from slicepilot.data.studies.andrade.figures import StudyTable
from slicepilot.data.studies.kinds import Options, detect, files_below
from slicepilot.training.studies.study import Effort, Figure, Findings, spearman

from .samples import EXPERIMENTS, STATISTICS, Array

COLLECTIONS = {"andrade-receive": "throughput", "andrade-latency": "latency"}
SPLITS, LEAST_RANKED = 200, 5


def read_release(folder: Path, effort: Effort) -> Findings:
    """Read a folder with the study's exports.

    Raises:
        ConfigError: no folder, or a collection is missing in it.
    """
    if not folder.is_dir():
        raise ConfigError(f"data = {str(folder)!r}: no folder; `slicepilot dataset fetch andrade` makes one")
    files = {kind.name: (kind, path) for path in files_below([folder]) if (kind := detect(path)) is not None}
    if missing := [name for name in COLLECTIONS if name not in files]:
        needed = ", ".join(f"{name.removeprefix('andrade-')}.bson.gz" for name in missing)
        raise ConfigError(f"data = {str(folder)!r}: {needed} missing; `slicepilot dataset fetch andrade` fetches it")
    result = Findings()
    for part, (name, metric) in enumerate(COLLECTIONS.items()):
        kind, path = files[name]
        faults, done = Faults(), part / len(COLLECTIONS)
        stream = kind.read(path, faults, Options(), lambda share: effort.say(path.name, done + share / 2))  # noqa: B023
        table = StudyTable(stream.schema, path)
        for batch in stream.batches:
            table.add(batch)
        for row in table.published():
            for statistic in STATISTICS:
                if row[statistic] is not None:
                    key = f"{row['experiment']}/{row['group']}/{metric}/{statistic}"
                    result.values[key] = Figure(row[statistic])
        result.remarks += [f"release: {path.name}, {faults.total} faults", *SPREADS[metric](table, effort.seed)]
    return result


def _of_throughput(table: StudyTable, seed: int) -> Iterator[str]:
    """How far settings differ beside how far their runs do, of slice 1's mean throughput."""
    means = {n: np.asarray([run.mean() for run in table.runs(n, "slice1")]) for n in EXPERIMENTS}
    parts = []
    for number, other, what in ((15, 7, "nice"), (25, 18, "nice"), (18, 7, "a bandwidth manager without a rate")):
        if min(len(means[number]), len(means[other])) > 1:
            # Of a ratio of means: Student's t of the logarithms, Welch's degrees of freedom.
            test: Any = stats.ttest_ind(np.log(means[number]), np.log(means[other]), equal_var=False)
            low, high = np.exp(test.confidence_interval(0.95))
            ratio = means[number].mean() / means[other].mean()
            parts.append(f"{number} over {other} ({what}) {ratio:.3f} ({low:.3f} to {high:.3f})")
    if parts:
        yield "release, slice 1's mean throughput, 95% intervals over runs: " + ", ".join(parts)
    yield from _halves("slice1's mean throughput", {n: table.runs(n, "slice1") for n in EXPERIMENTS}, np.mean, seed)


def _of_latency(table: StudyTable, seed: int) -> Iterator[str]:
    yield from _halves("the others' median latency", {n: table.runs(n, "others") for n in EXPERIMENTS}, np.median, seed)


SPREADS = {"throughput": _of_throughput, "latency": _of_latency}


def _halves(order: str, runs: Mapping[int, Sequence[Array]], statistic: Any, seed: int) -> Iterator[str]:
    """How well the study's own runs agree on the order of its settings: a random half of the runs with the others."""
    rng, known = np.random.default_rng(seed), [own for own in runs.values() if len(own) > 1]
    if len(known) < LEAST_RANKED:
        return
    ranks = []
    for _ in range(SPLITS):
        halves: list[list[float]] = [[], []]
        for own in known:
            drawn = rng.permutation(len(own))
            for half, chosen in zip(halves, np.array_split(drawn, 2), strict=True):
                half.append(float(statistic(np.concatenate([own[i] for i in chosen]))))
        ranks.append(spearman(np.asarray(halves, np.float64).T))
    low, middle, high = np.quantile(ranks, [0.05, 0.5, 0.95])
    yield (
        f"release, order of {order}: one half of the runs with the other half, {SPLITS} draws, rank correlation "
        f"{middle:.2f} (5 to 95%: {low:.2f} to {high:.2f})"
    )
