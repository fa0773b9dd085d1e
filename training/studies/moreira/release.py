"""Tables of Moreira et al. (2026) out of their own release, as far as it goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from slicepilot.configs import ConfigError
from slicepilot.data.faults import Faults
from slicepilot.data.studies.kinds import Options, detect, files_below
from slicepilot.data.studies.moreira.tables import run_of
from slicepilot.training.studies.study import Effort, Figure, Findings

from .samples import CLASSES, QFIS, figures_of_table, table_of

CLASS_OF: dict[str, str] = dict(zip(("baseline", "load", "replay", "anomaly"), CLASSES, strict=True))
RESOURCES = {"cpu": "cpu_user_pct", "packets": "net_packets_n3_received_pps"}
KINDS = {"moreira-resources": RESOURCES, "moreira-latency": {"latency_us": "latency_ns"}}
ABSENT = (
    "the release has the UPF's resources and none of the latencies, at any of its commits: no printed table can be "
    "computed again from it; put the authors' output of latency.bt beside the resources of each run to do so"
)


def read_release(folder: Path, effort: Effort) -> Findings:
    """Read a folder with a folder a run, such as ``qf1_baseline``.

    Raises:
        ConfigError: no folder, nothing of the study in it, or runs that are missing beside latencies.
    """
    if not folder.is_dir():
        raise ConfigError(f"data = {str(folder)!r}: no folder; `slicepilot dataset fetch moreira` makes one")
    files = [
        (kind, path) for path in files_below([folder]) if (kind := detect(path)) is not None and kind.name in KINDS
    ]
    if not files:
        raise ConfigError(
            f"data = {str(folder)!r}: resources_stats_merged.csv missing; `slicepilot dataset fetch moreira` fetches it"
        )
    runs = dict[tuple[str, int], dict[str, Any]]()
    result = Findings()
    for done, (kind, path) in enumerate(files):
        effort.say(path.parent.name, done / len(files))
        faults, run = Faults(), run_of(path)
        stream = kind.read(path, faults, Options(), lambda share: None)
        own = runs.setdefault((CLASS_OF[run.condition], run.qfi), {})
        for batch in stream.batches:
            for name, column in KINDS[kind.name].items():
                if column in batch.schema.names:
                    own.setdefault(name, []).extend(batch.column(column).to_pylist())
    for (name, qfi), own in runs.items():
        for term in RESOURCES:
            active = [value for value in own.get(term, ()) if value is not None]
            if active:
                result.extra[f"release/{name}/QFI {qfi}/{term} median"] = Figure(float(np.median(active)))
    timed = {key: own for key, own in runs.items() if "latency_us" in own}
    if not timed:
        result.remarks.append(f"release: {len(files)} files; {ABSENT}")
        return result
    wanted = {(name, qfi) for name in CLASSES for qfi in QFIS}
    if missing := wanted - set(timed):
        name, qfi = min(missing)
        raise ConfigError(f"data = {str(folder)!r}: latencies of {name} at QFI {qfi} missing; expected all eight runs")
    result.values = figures_of_table(table_of(_row(*key, own) for key, own in timed.items()), effort.seed)
    result.remarks.append(f"release: {len(files)} files")
    return result


def _row(name: str, qfi: int, own: dict[str, Any]) -> dict[str, Any]:
    """A run's latencies, with the resources of the second that each falls into when spread evenly over the run."""
    count = len(own["latency_us"])
    row: dict[str, Any] = {"traffic_class": name, "qfi": qfi, "latency_us": [ns / 1e3 for ns in own["latency_us"]]}
    for term in RESOURCES:
        seconds = own.get(term) or [np.nan]
        row[term] = [seconds[min(int((i + 0.5) / count * len(seconds)), len(seconds) - 1)] for i in range(count)]
    return row
