"""The tables of Andrade and Wickboldt (2025) out of their own exports."""

from __future__ import annotations

from pathlib import Path

from slicepilot.configs import ConfigError
from slicepilot.data.faults import Faults
from slicepilot.data.studies.andrade.figures import StudyTable
from slicepilot.data.studies.kinds import Options, detect, files_below
from slicepilot.training.studies.study import Effort, Figure, Findings

COLLECTIONS = {"andrade-receive": "throughput", "andrade-latency": "latency"}
STATISTICS = ("mean", "median", "std", "iqr")


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
                    found = f"{row['experiment']}/{row['group']}/{metric}/{statistic}"
                    result.values[found] = Figure(row[statistic])
        result.remarks.append(f"release: {path.name}, {faults.total} faults")
    return result
