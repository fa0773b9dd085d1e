"""``slicepilot dataset analyse`` on delays of every kind, through the command line."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from slicepilot.agents.heuristics.registry import make
from slicepilot.cli.dataset.analyse import analyse
from slicepilot.configs import ConfigError
from slicepilot.controller.record.ring import record_dtype
from slicepilot.controller.record.segments import SegmentWriter
from slicepilot.data.episodes.files import write_episodes
from slicepilot.data.reference import published_table
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.env.telemetry import SLICE_FIELDS
from slicepilot.training.recording.recording import record_simulated
from tests.command import slicepilot

SECONDS, EACH = 30, 8


Analysed = Callable[..., dict[str, Any]]

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(analyse)


@pytest.fixture
def analysed(capsys: pytest.CaptureFixture[str]) -> Analysed:
    """What the command finds, as JSON."""

    def item(*arguments: object) -> dict[str, Any]:
        app([*map(str, arguments), "--json"], standalone_mode=False)
        return json.loads(capsys.readouterr().out)

    return item


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, on a terminal of 80 columns."""
    return slicepilot("dataset", *arguments, env=os.environ | {"COLUMNS": "80"})


def imported(path: Path, folder: Path, *options: str) -> Path:
    """The folder, with tables of a release."""
    result = run("import", path, "--out", folder, *options)
    assert result.returncode == 0, result.stderr
    return folder


def write_run(folder: Path, figures: Iterable[tuple[float, float]], latencies: Iterable[tuple[int, float]]) -> None:
    """A run of Moreira et al.: CPU use and packets of each second, and the latencies of UEs."""
    folder.mkdir()
    rows = [f"2025-07-25 22:20:{s:02d},{cpu:.3f},{count},{4000 + s}" for s, (cpu, count) in enumerate(figures)]
    header = "time,cpu_limit_used,net_packets_n3_received,net_n3_received"
    (folder / "resources_stats_merged.csv").write_text("\n".join([header, *rows, ""]))
    lines = [f"UE IP: 10.1.0.{ue} | Decapsulation Overhead: {latency:.0f} ns" for ue, latency in latencies]
    (folder / "latency.txt").write_text("\n".join(["Attaching 2 probes...", *lines, ""]))


@pytest.fixture(scope="module")
def moreira(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of two runs for each QFI, the load's latencies 300 ns shorter."""
    rng = np.random.default_rng(0)
    root = tmp_path_factory.mktemp("moreira")
    for qfi in (1, 9):
        for condition, shift in (("baseline", 0), ("load", -300)):
            folder, cpu = root / f"qf{qfi}_{condition}", rng.uniform(5, 60, SECONDS)
            delays = np.rint(1600 + shift + rng.normal(0, 60, SECONDS * EACH) + 4 * np.repeat(cpu, EACH))
            packets = range(1000, 1000 + 10 * SECONDS, 10)
            write_run(folder, zip(cpu, packets, strict=True), [(qfi, delay) for delay in delays])
            with (folder / "latency.txt").open("a") as file:
                file.write("garbage\n")
    return imported(root, tmp_path_factory.mktemp("tables"))


def test_release_of_moreira(moreira: Path, tmp_path: Path, analysed: Analysed) -> None:
    out = tmp_path / "out"
    results = analysed(moreira, "--out", out, "--resamples", 1000)
    assert (results["value"], results["by"], results["baseline"]) == ("latency_ns", "condition", "baseline")
    assert results["rows"] == 4 * SECONDS * EACH
    [load] = results["comparisons"]
    assert load["magnitude"] == "large"
    assert load["delta_median_ns_low"] < -300 + 60
    assert load["delta_median_ns_high"] > -300 - 60
    terms = results["regression"]["terms"]
    assert {name: own["column"] for name, own in terms.items()} == {
        "cpu": "cpu_limit_used_pct",
        "packets": "net_packets_n3_received_pps",
        "qfi9": "qfi",
        "load": "condition",
    }
    median = results["regression"]["fits"][0]["coefficients"]
    assert median["cpu"]["slope"] == pytest.approx(4, abs=0.7)  # it was put there: latencies follow their seconds
    assert median["load"]["beta"] == pytest.approx(-300, abs=40)
    assert any("1 faults, 1 rows left out by `dataset import`" in note for note in results["notes"])
    # All that is printed lies in the folder too, and nothing half-written.
    assert {path.name for path in out.iterdir()} == {Path(path).name for path in results["files"]}
    saved = json.loads((out / "statistics.json").read_text())
    assert saved == {key: value for key, value in results.items() if key != "files"}
    with (out / "group_tests.csv").open() as file:
        assert [row["comparison"] for row in csv.DictReader(file)] == ["load"]
    assert {path.stem for path in out.glob("*.svg")} == {"ecdf", "violin", "lowess"}


def test_tables_are_those_of_the_study(tmp_path: Path, analysed: Analysed) -> None:
    """As many latencies as there, of both QFIs and four UEs, with the resources of their runs."""
    rng, classes = np.random.default_rng(1), ("Anomaly", "Baseline", "Constant-Rate", "Multimedia")
    for qfi in (1, 9):
        figures = zip(rng.uniform(5, 60, SECONDS), rng.integers(3000, size=SECONDS), strict=True)
        delays = 10_000 + rng.gamma(2.0, 2000.0, (SECONDS, len(classes))) - 4000.0 * np.asarray([0, 0, 1, 0.3])
        write_run(tmp_path / f"qf{qfi}_load", figures, [pair for second in delays for pair in enumerate(second)])
    ues = [part for ue, name in enumerate(classes) for part in ("--ue", f"10.1.0.{ue}={name}")]
    tables = imported(tmp_path, tmp_path / "tables", *ues)
    for by in ("traffic_class", "qfi"):
        analysed(tables, "--by", by, "--out", tmp_path / by, "--resamples", 1000)
    for by, name in (
        ("traffic_class", "traffic_class_latency_ns"),
        ("qfi", "qfi_latency_ns"),
        ("traffic_class", "group_tests"),
        ("traffic_class", "quantile_regression_ns"),
    ):
        theirs = published_table(f"moreira_{name}")
        with (tmp_path / by / f"{name}.csv").open() as file:
            own = list(csv.DictReader(file))
        columns = list(theirs[0])
        assert [column for column in own[0] if column in columns] == columns
        labels = [[row[columns[0]] for row in rows] for rows in (own, theirs)]
        if columns[0] == "quantile":
            assert [*map(float, labels[0])] == [*map(float, labels[1])]
        else:
            assert labels[0] == labels[1]
        if "n" in columns:
            assert [row["n"] for row in own] == [row["n"] for row in theirs]


def test_files_as_groups(moreira: Path, tmp_path: Path, analysed: Analysed) -> None:
    files = analysed(moreira, "--by", "file", "--out", tmp_path / "out", "--resamples", 100)
    assert [group["file"] for group in files["groups"]] == [
        f"moreira-latency-qfi{qfi}-{condition}" for qfi in (1, 9) for condition in ("baseline", "load")
    ]
    assert files["baseline"] == "moreira-latency-qfi1-baseline"


def test_forwarding_delays_of_mishra(tmp_path: Path, analysed: Analysed) -> None:
    rng = np.random.default_rng(1)
    count = 4000
    names, received = rng.choice(["embb", "urllc"], count), 10**12 + rng.integers(1, 2 * 10**6, count).cumsum()
    delays = np.rint(1000 * rng.lognormal(3, 0.5, count) * np.where(names == "embb", 1.4, 1.0)).astype(int)
    rows = sorted(
        (r + d, f"{n},{d / 1000},{100 + d % 1000},{r},{r + d},ogstun")
        for n, r, d in zip(names, received.tolist(), delays.tolist(), strict=True)
    )
    lines = ["slice,delay_us,pkt_len,ts_rx_ns,ts_tx_ns,netif_rx", *(line for _, line in rows), ""]
    path = tmp_path / "o1_forwarding_exp_light.csv"
    path.write_text("\n".join(lines))
    results = analysed(
        imported(path, tmp_path / "tables"), "--baseline", "urllc", "--out", tmp_path / "out", "--resamples", 500
    )
    [embb] = results["comparisons"]
    expected = np.median(delays[names == "embb"]) - np.median(delays[names == "urllc"])
    assert embb["delta_median_us"] == pytest.approx(expected / 1000, abs=1e-9)
    assert embb["magnitude"] in {"small", "medium"}
    assert {own["column"] for own in results["regression"]["terms"].values()} == {
        "packets_per_s",
        "packet_bytes",
        "slice",
    }


def test_episodes_by_behaviour(tmp_path: Path, analysed: Analysed) -> None:
    scenario = dataclasses.replace(Scenario.from_yaml("testbed-contention"), duration_s=0.6, control_period_s=0.01)
    agents = [make(name, scenario.slice_set(), scenario.hardware_spec()) for name in ("no-control", "static-weights-9")]
    write_episodes(record_simulated(agents, scenario, 1, 0, RewardWeights.from_yaml("default")), tmp_path / "e.parquet")
    results = analysed(tmp_path / "e.parquet", "--by", "behaviour", "--out", tmp_path / "out", "--resamples", 200)
    assert results["value"] == "delay_p99_us"
    assert {group["behaviour"] for group in results["groups"]} == {"no-control", "static-weights-9"}
    assert results["baseline"] == "no-control"


def test_records_by_slice_and_by_mode(tmp_path: Path, analysed: Analysed) -> None:
    rng, count = np.random.default_rng(2), 400
    names = ["first", "second"]
    records = np.zeros(count, record_dtype(len(names)))
    records["sequence"] = np.arange(1, count + 1)
    records["time_ns"] = 1_770_000_000_000_000_000 + np.arange(count) * 5_000_000
    records["mode"] = np.arange(count) >= 100
    records["valid"][:, :2] = 1
    records["slices"][:, SLICE_FIELDS.index("carried_mbps")] = rng.uniform(10, 20, (count, 2))
    delays = rng.uniform(100, 200, (count, 2)).astype(np.float32)
    records["slices"][:, SLICE_FIELDS.index("delay_p99_us")] = delays
    records["slices"][7, SLICE_FIELDS.index("carried_mbps"), 0] = 0
    folder = tmp_path / "records"
    writer = SegmentWriter(folder, 1 << 24)
    described = {
        "run_id": "run-1",
        "agent": "no-control",
        "bundle": None,
        "period_s": 0.005,
        "budget_s": 0.005,
        "pid": 1,
    }
    writer.add(records, described | {"slice_set": {"slices": [{"name": name} for name in names]}}, 2)
    writer.close()
    results = analysed(folder, "--out", tmp_path / "out", "--resamples", 200)
    assert {group["slice"]: group["n"] for group in results["groups"]} == {"first": count - 1, "second": count}
    assert results["groups"][1]["median"] == pytest.approx(float(np.median(delays[:, 1])))
    (folder / "run-1-1780000000000000000.parquet").write_bytes(b"PAR1 but not whole")
    modes = analysed(folder, "--by", "mode", "--baseline", "shadow", "--out", tmp_path / "out", "--resamples", 200)
    assert {group["mode"]: group["n"] for group in modes["groups"]} == {"shadow": 199, "live": 600}
    assert any(note.startswith("run-1-1780000000000000000.parquet: ") for note in modes["notes"])


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (["nowhere"], "path = 'nowhere': does not exist"),
        (["{moreira}/moreira-resources-qfi1-load.parquet"], "no delays in it"),
        (["{here}"], "no table; expected a table of `dataset import`"),
        (
            ["{moreira}", "--value", "wait_us"],
            "expected tables of `dataset import` with a column wait_us",
        ),
        (["{moreira}", "--by", "colour"], "by = 'colour': expected qfi, condition"),
        (["{moreira}", "--by", "traffic_class"], "no row has a delay and a traffic_class"),
        (["{moreira}", "--baseline", "idle"], "baseline = 'idle': expected baseline, load"),
        (["{moreira}", "--on", "speed"], "on = 'speed': expected qfi"),
        (["{moreira}", "--resamples", "100", "--out", "/proc/nothing"], "out = '/proc/nothing'"),
    ],
)
def test_bad_input_is_reported(arguments: list[str], reported: str, moreira: Path) -> None:
    with pytest.raises(ConfigError) as error:
        app([argument.format(moreira=moreira, here=__file__) for argument in arguments], standalone_mode=False)
    assert reported in str(error.value)
    assert "\n" not in str(error.value)
