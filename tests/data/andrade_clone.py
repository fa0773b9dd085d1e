"""A clone of Andrade and Wickboldt's repository with the faults that their release is known to have; figures made up.

`make_clone` writes README.md, LICENSE, scripts and ``.git`` beside a mongodump of the three collections, in which

- ``cpu`` and ``receive`` have more runs than ``latency`` (13 and 7, instead of ten);
- one run has a 42nd sample, at 1230 s;
- some round trips of slices with traffic are 0, because no ping was answered, and slices without traffic have zeros
  too;
- where the others have 250 mCPU, nobody answers their pings any longer in the second half of a run.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bson

ACTIVE = {2: 2, 4: 4}  # slices with traffic; five in all other experiments
STARVED = 8  # its others have 250 mCPU
RUNS = {"cpu": 13, "receive": 13, "latency": 7}
LONG_RUN = 1  # its cycle has a sample at 1230 s
ZERO_AT_S = 600  # of slice2 in every run of `latency`
OVERLOADED_FROM_S = 630


def documents(collection: str, experiments: Sequence[int]) -> list[dict[str, Any]]:
    """All documents of a collection, in the units of the release: CPUs, seconds, bit/s."""
    result = []
    for experiment in experiments:
        for cycle in range(1, RUNS[collection] + 1):
            times = range(0, 1231 if cycle == LONG_RUN else 1201, 30)
            for number in range(1, 6):
                for workload in _workloads(collection, number):
                    for time_s in times:
                        value = _value(collection, experiment, number, cycle, time_s)
                        if value is None:
                            continue
                        result.append(
                            {
                                "ts": time_s,
                                "exp": experiment,
                                "cicle": cycle,
                                "value": value,
                                "workload": workload,
                                "priority": workload if number == 1 else "others",
                            }
                        )
    return result


def make_clone(folder: Path, experiments: Sequence[int] = (2, 5, STARVED)) -> Path:
    """Write the clone; returns its folder."""
    dump = folder / "backup" / "metrics"
    for path in (dump, folder / "etl", folder / ".git"):
        path.mkdir(parents=True)
    for collection in RUNS:
        data = b"".join(map(bson.encode, documents(collection, experiments)))
        (dump / f"{collection}.bson.gz").write_bytes(gzip.compress(data, 1))
        (dump / f"{collection}.metadata.json.gz").write_bytes(gzip.compress(b'{"indexes": []}'))
    averages = bson.encode({"_id": {"workload": "open5gs-upf-1", "exp": 1}, "avg": 0.5, "exp": 1})
    (dump / "cpu_priority_avg.bson.gz").write_bytes(gzip.compress(averages))
    # It quotes what a probe prints, as a repository's README may.
    (folder / "README.md").write_text("# Slices\n\n    UE IP: 10.1.0.44 | Decapsulation Overhead: 14350 ns\n")
    (folder / "LICENSE").write_text("BSD 2-Clause License\n")
    (folder / "etl" / "latency.bt").write_text('printf("UE IP: %s | Decapsulation Overhead: %llu ns\\n");\n')
    (folder / "etl" / "cpu.py").write_text('FIELDS = ["exp", "value"]\n')
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    return folder


def _workloads(collection: str, number: int) -> list[str]:
    if collection == "latency":
        return [f"open5gs-my5gran0{number}"]
    servers = [f"open5gs-iperf0{number}"] if collection == "receive" else []
    return [f"open5gs-upf-{number}", *servers]


def _value(collection: str, experiment: int, number: int, cycle: int, time_s: int) -> float | None:
    """A figure of a slice whose load grows with time; None where there is no document."""
    traffic = number <= ACTIVE.get(experiment, 5)
    starved = experiment == STARVED and number > 1
    load = 1.0 + time_s / 600 + 0.01 * cycle
    if collection == "cpu":
        return min(0.25 if starved else 0.9, 0.2 * load) if traffic else 0.0
    if collection == "receive":
        return (40e6 if starved else 60e6) * min(load, 1.5) if traffic else 600.0
    if not traffic or (number == 2 and time_s == ZERO_AT_S):
        return 0.0
    return None if starved and time_s >= OVERLOADED_FROM_S else 0.1 * load * number
