"""The study of Moreira et al. reproduced: what it printed, its tests on samples, its loads, its release."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slicepilot.configs import ConfigError
from slicepilot.training.statistics.comparison import magnitude
from slicepilot.training.studies.moreira.played import QUARTER, scenario
from slicepilot.training.studies.moreira.release import read_release
from slicepilot.training.studies.moreira.samples import CLASSES, QFIS, figures_of_table, table_of
from slicepilot.training.studies.reproduce import Reproduction, study_of
from slicepilot.training.studies.study import Effort, Figure, Findings
from tests.command import slicepilot

EFFORT = Effort(quick=True, agents=(), seed=0, say=lambda what, share: None)


def test_all_printed_tables_have_rows_and_all_decisions_hold_in_print() -> None:
    rows = {row.key: row for row in study_of("moreira").rows}
    assert rows["class/Constant-Rate/median"].published == 12.75
    assert rows["test/Multimedia/p_perm_p95"].published == 0.014
    assert rows["qfi/9/p99"].published == 33.09
    assert rows["regression/0.95/constant_rate_beta"].published == -10.31
    assert rows["regression/0.99/cpu_p"].published is None
    assert rows["regression/0.50/cpu_x_qfi9_beta"].published is None
    verdicts = Reproduction(study_of("moreira")).verdicts()
    assert len(verdicts) == 14
    assert all(verdict["published"] for verdict in verdicts)


def sample(shift: float = 0.0, count: int = 200, seed: int = 0) -> list[dict[str, Any]]:
    """Latencies of all eight runs: Constant-Rate's shifted, all shorter by 2 us where the CPU is used twice as much."""
    rng = np.random.default_rng(seed)
    rows = []
    for name in CLASSES:
        for qfi in QFIS:
            cpu, packets = rng.uniform(10, 20, count), rng.uniform(100, 200, count)
            own = 20 + rng.normal(size=count) - 0.2 * cpu + (shift if name == "Constant-Rate" else 0.0)
            row = {"latency_us": own.tolist(), "cpu": cpu.tolist(), "packets": packets.tolist()}
            rows.append({"traffic_class": name, "qfi": qfi, **row})
    return rows


def test_figures_of_latencies_that_are_known() -> None:
    figures = figures_of_table(table_of(sample(shift=-3.0)), seed=1)
    assert figures["test/Constant-Rate/delta_median"].value == pytest.approx(-3.0, abs=0.3)
    interval = figures["test/Constant-Rate/delta_median"]
    assert interval.low is not None
    assert interval.high is not None
    assert interval.low < -3.0 < interval.high
    assert figures["test/Constant-Rate/p_perm_median"].value < 0.001
    assert magnitude(figures["test/Constant-Rate/cliffs_delta"].value) == "large"
    assert figures["test/Anomaly/mann_whitney_p"].value > 0.05
    deviation = 10 / np.sqrt(12)
    assert figures["regression/0.50/cpu_beta"].value == pytest.approx(-0.2 * deviation, abs=0.1)
    assert figures["regression/0.50/constant_rate_beta"].value == pytest.approx(-3.0, abs=0.3)
    assert figures["regression/0.50/qfi9_p"].value > 0.01
    assert figures["regression/0.50/cpu_x_qfi9_p"].value > 0.01
    verdicts = Reproduction(study_of("moreira"), {"simulated": Findings(values=figures)}).verdicts()
    simulated = {verdict["claim"]: verdict["simulated"] for verdict in verdicts}
    assert simulated["Beside Constant-Rate neighbours the median is shorter than Baseline's."]
    assert not simulated["Beside Multimedia neighbours the median is shorter than Baseline's."]
    assert simulated["Where the user plane uses more CPU, latencies are shorter."]


def test_neighbours_send_what_the_release_shows() -> None:
    flood, anomaly, quarter = (scenario(name, 1) for name in ("Constant-Rate", "Anomaly", QUARTER))
    rate_mbps = [own.loads["neighbour1"][0].rate_mbps for own in (flood, anomaly, quarter)]
    assert rate_mbps[0] == pytest.approx(48, abs=0.1)
    assert rate_mbps[1] / rate_mbps[0] == pytest.approx(287 / 267)
    assert rate_mbps[0] / rate_mbps[2] == pytest.approx(4)
    assert set(scenario("Baseline", 9).loads) == {"sensor"}
    assert [scenario("Baseline", qfi).slice_set().slices[0].qfi for qfi in QFIS] == [1, 9]


def written(folder: Path, runs: Mapping[str, list[int]], latencies: bool = True) -> Path:
    """A release of these runs, named as the study's folders are."""
    for name, values_ns in runs.items():
        own = folder / name / "final"
        own.mkdir(parents=True)
        rows = "".join(f"2025-07-25 22:20:{s:02d},{1.5 + s},{900.0 + s}\n" for s in range(10))
        (own / "resources_stats_merged.csv").write_text(f"time,cpu_user,net_packets_n3_received\n{rows}")
        if latencies:
            lines = (f"UE IP: 10.1.0.44 | Decapsulation Overhead: {value} ns\n" for value in values_ns)
            (folder / name / "latency.txt").write_text("".join(lines))
    return folder


RUNS = {
    f"{prefix}_{word}": [14_000 + (37 * k) % 1000 - 2000 * (word == "load") for k in range(40)]
    for prefix in ("qf1", "qf9")
    for word in ("baseline", "load", "replay", "anomally")
}


def test_the_tables_come_out_of_latencies_and_without_them_their_absence(tmp_path: Path) -> None:
    whole = read_release(written(tmp_path / "whole", RUNS), EFFORT)
    assert whole.values["class/Baseline/median"].value == pytest.approx(np.median(RUNS["qf1_baseline"]) / 1e3)
    assert whole.values["test/Constant-Rate/delta_median"].value == pytest.approx(-2.0, abs=0.01)
    assert whole.extra["release/Baseline/QFI 1/cpu median"] == Figure(6.0)
    public = read_release(written(tmp_path / "public", RUNS, latencies=False), EFFORT)
    assert not public.values
    assert "none of the latencies" in public.remarks[0]
    few = written(tmp_path / "few", {name: own for name, own in RUNS.items() if name != "qf9_replay"})
    with pytest.raises(ConfigError, match="latencies of Multimedia at QFI 9 missing"):
        read_release(few, EFFORT)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="missing"):
        read_release(tmp_path / "empty", EFFORT)


def test_the_study_comes_back_with_one_command(tmp_path: Path) -> None:
    done = slicepilot("reproduce", "moreira", "--quick", "--json", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    rows = {row["row"]: row for row in document["rows"]}
    waits = rows["class/Constant-Rate/median"]["simulated"]
    assert waits > 10 * rows["class/Baseline/median"]["simulated"], "a busy CPU is waited for"
    assert rows["queue-greedy/class/Constant-Rate/median"]["simulated"] < 0.5 * waits
    assert rows["test/Constant-Rate/cliffs_delta"]["cause"]
    report = (tmp_path / "report.html").read_text()
    assert report.count("<figure") == 4
