"""``slicepilot dataset`` from outside: what it prints, writes and refuses, and its exit codes."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from slicepilot.cli import main
from slicepilot.cli.dataset.paths import writing_to
from slicepilot.cli.dataset.tables import open_tables
from slicepilot.configs import ConfigError
from slicepilot.controller.record.segments import SegmentWriter
from slicepilot.data.episodes.files import read_episodes
from slicepilot.data.tables.tidy import read_description
from slicepilot.training.recording.reading import what_is
from tests.command import slicepilot
from tests.controller.record.conftest import description, ticks
from tests.data.andrade_clone import RUNS, make_clone

SAMPLES = Path(__file__).parents[2] / "data" / "samples"
TABLES = {
    "andrade-cpu": 205,
    "andrade-latency": 205,
    "andrade-receive": 410,
    "mishra-forwarding-light": 60,
    "mishra-pfcp-light": 20,
    "moreira-latency-qfi1-baseline": 15,
    "moreira-latency-qfi9-anomaly": 15,
    "moreira-resources-qfi1-baseline": 20,
    "moreira-resources-qfi9-anomaly": 20,
}


def run(*arguments: object, cwd: Path | None = None) -> CompletedProcess[str]:
    """A command of `slicepilot dataset`."""
    return slicepilot("dataset", *arguments, cwd=cwd, env=os.environ | {"COLUMNS": "80"})


def printed(*arguments: object) -> Any:
    """The document that a command prints, and nothing else."""
    result = run(*arguments, "--json")
    assert result.stderr == ""
    return json.loads(result.stdout)


def checked_by(path: Path) -> Any:
    """What `validate` says of a single file without faults."""
    [checked] = printed("validate", path)["checked"]
    return checked


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All samples, imported by the real command line."""
    folder = tmp_path_factory.mktemp("tables")
    result = slicepilot("dataset", "import", SAMPLES, "--out", folder, "--ue", "10.1.0.44=baseline", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    assert [Path(path).name for path in document["not_read"]] == ["README.md"]
    assert document["unusable"] == []
    assert {Path(table["path"]).stem: table["rows"] for table in document["tables"]} == TABLES
    return folder


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fetch", "mishra"), "release = 'mishra': offers only code (https://github.com/"),
        (("fetch", "mishr"), "release: unknown name 'mishr'; did you mean mishra?"),
        (("import", "not/there", "--out", "x"), "path = 'not/there': does not exist"),
        (("import", SAMPLES / "README.md", "--out", "x"), "of no known kind; expected --kind with one of andrade-cpu"),
        (("import", SAMPLES, "--out", "x", "--kind", "xml"), "kind = 'xml': expected andrade-cpu, andrade-latency"),
        (("import", SAMPLES, "--out", "x", "--unit", "mile"), "unit = 'mile': expected cpu: CPU"),
        (("import", SAMPLES, "--out", "x", "--ue", "10.1.0.44"), "ue = '10.1.0.44': expected ADDRESS=CLASS"),
        (("import", "d.csv", "--map", "m.yaml", "--out", "x", "--qfi", 0), "qfi = 0: for releases only"),
        (("record", "--agents", "random", "--out", "x.parquet", "--run", "default"), "run = 'default': needs --node"),
        (("import", SAMPLES, "--out", "/proc/nothing"), "out = '/proc/nothing': No such file or"),
        (("record", "--agents", "random", "--out", "/proc/nothing/x.parquet"), "out = '/proc/nothing': No such file"),
        (("validate", "not/there"), "path = 'not/there': does not exist"),
        (("convert", SAMPLES, "x.csv"), "a folder; expected a file"),
        (("convert", SAMPLES / "mishra" / "o1_pfcp_exp_light.csv", "x.txt"), "`dataset import` reads releases"),
        (("validate", SAMPLES / "README.md"), "of no known kind"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: tuple[object, ...], message: str, tmp_path: Path) -> None:
    result = run(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("slicepilot: error: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_fetch_that_fails_is_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for name in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")  # where nobody listens
    monkeypatch.setattr("slicepilot.data.studies.fetching.time.sleep", lambda seconds: None)
    monkeypatch.setattr(sys, "argv", ["slicepilot", "dataset", "fetch", "andrade", "--out", str(tmp_path / "andrade")])
    with pytest.raises(SystemExit, match="1"):
        main()
    error = capsys.readouterr().err
    assert error.count("slicepilot: error: https://") == 3
    assert "no answer" in error


def test_tables_say_where_they_come_from(tables: Path) -> None:
    for stem, rows in TABLES.items():
        description = read_description(tables / f"{stem}.parquet")
        assert description.rows == rows
        assert stem.startswith(description.kind)
        assert description.citation
        assert description.faults["total"] == 0
    classes = pq.read_table(tables / "moreira-latency-qfi1-baseline.parquet").column("traffic_class")
    assert set(classes.to_pylist()) == {"baseline"}


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of the study's repository, with the faults that its release is known to have."""
    return make_clone(tmp_path_factory.mktemp("clone"))


@pytest.fixture(scope="module")
def study(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an import makes of it."""
    folder = tmp_path_factory.mktemp("study")
    result = slicepilot("dataset", "import", clone, "--out", folder)
    assert result.returncode == 0, result.stderr
    for name in ("cpu", "latency", "receive"):
        assert f"{name}.bson.gz: differs from the known release" in result.stderr
    assert "unanswered: 21 round trips of 0" in result.stdout
    assert "not read, of no known kind: 8 files" in result.stdout
    return folder


def test_a_whole_clone_is_imported_over_its_readme(study: Path) -> None:
    episodes = read_episodes(study / "andrade-episodes.parquet")
    assert [len(episode) for episode in episodes] == ([41] + [40] * 6) * 3
    assert set(episodes.behaviours) == {"experiment-2", "experiment-5", "experiment-8"}
    faults = read_description(study / "andrade-latency.parquet").faults
    assert faults["left_out"] == faults["kinds"]["unanswered"]["count"] == 3 * RUNS["latency"]


def test_what_a_shell_names_of_a_clone_may_be_a_readme(clone: Path, tmp_path: Path) -> None:
    named = sorted(path for path in clone.iterdir() if not path.name.startswith("."))
    assert clone / "README.md" in named
    document = printed("import", *named, "--out", tmp_path / "out")
    assert document["unusable"] == []
    assert str(clone / "README.md") in document["not_read"]
    assert [table["as_known"] for table in document["tables"]] == [False] * 3
    other = tmp_path / "data.csv"
    other.write_text("a,b\n1,2\n")
    result = run("import", clone / "backup", other, "--out", tmp_path / "other")
    assert result.returncode == 2, "data of no known kind that are named are an error all the same"
    assert "of no known kind" in result.stderr


def test_validate_shows_what_is_missing_by_setting(study: Path) -> None:
    path = study / "andrade-episodes.parquet"
    missing = {row["behaviour"]: row for row in checked_by(path)["missing"]}
    starved = missing["experiment-8"]
    assert starved["episodes"] == RUNS["latency"]
    # Of 40 steps and one more: slice2 lacks 600 s besides what all others lack from 630 s on, 20 steps or 21.
    assert starved["unmeasured"] == RUNS["latency"] * (4 * 20 + 1) + 4
    assert starved["unmeasured_by_slice"]["slice1"] == 0
    assert starved["reward_at_worst"] < starved["reward"]
    assert missing["experiment-2"]["readings"] == 2 * missing["experiment-2"]["steps"]
    shown = run("validate", path).stdout
    assert "not measured, of the slices that had traffic" in shown
    [row] = [line.split() for line in shown.splitlines() if "experiment-8" in line and "%" in line]
    assert row[1:5] == ["7", "41%", "0%", "51%"]
    assert all(len(line) <= 80 or str(path) in line for line in shown.splitlines())  # paths are not cut


def test_validate_of_a_collection_has_the_studys_rows_and_its_cycles(study: Path) -> None:
    latency = checked_by(study / "andrade-latency.parquet")["study"]
    receive = checked_by(study / "andrade-receive.parquet")["study"]
    assert {row["cycles"] for row in latency} == {RUNS["latency"]}
    assert {row["cycles"] for row in receive} == {RUNS["receive"]}
    [starved] = [row for row in latency if row["experiment"] == 8 and row["group"] == "others"]
    assert (starved["n"], starved["missing"], starved["mean"]) == (0, 4 * 11 * RUNS["latency"], None)
    [whole] = [row for row in latency if row["experiment"] == 5 and row["group"] == "slice1"]
    assert (whole["n"], whole["missing"]) == (11 * RUNS["latency"] + 1, 0), "the row at 1230 s is of the last window"


def test_estimate_on_an_imports_folder_and_its_runs_with_holes(study: Path) -> None:
    result = run("estimate", study, "--agents", "no-control", "--json")
    assert result.stderr.startswith("left out, no episodes: 3 files (andrade-cpu.parquet, andrade-latency.parquet, ")
    document = json.loads(result.stdout)
    assert {row["behaviour"] for row in document["missing"]} == {"experiment-2", "experiment-5", "experiment-8"}
    [policy] = document["policies"]
    assert np.isfinite(policy["estimates"]["model-based"]["value"])
    assert document["behaviours"]["experiment-5"]["ci95"] is not None


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (("td3-bc", "--steps", "2"), "the data cannot say: "),
        (("choice",), "no setting is clearly better than no control"),  # of seven runs each
    ],
)
def test_what_the_data_do_not_support_has_no_bundle(
    study: Path, tmp_path: Path, config: tuple[str, ...], why: str
) -> None:
    arguments = ("--offline", "-c", *config, "--dataset", str(study), "--out", "run")
    environment = os.environ | {"MLFLOW_TRACKING_URI": ""}
    refused = slicepilot("train", *arguments, "--json", cwd=tmp_path, env=environment)
    assert refused.returncode == 1
    assert "andrade-cpu.parquet" in refused.stderr
    line = refused.stderr.splitlines()[-1]
    assert line.startswith(f"slicepilot: error: no bundle was written: {why}")
    assert line.endswith("(--force writes it all the same)")
    assert json.loads(refused.stdout)["bundle"] is None
    assert not (tmp_path / "run" / "bundle").exists()
    if config == ("choice",):
        assert slicepilot("train", *arguments, "--force", cwd=tmp_path, env=environment).returncode == 0
        assert (tmp_path / "run" / "bundle" / "policy.onnx").exists()


def test_two_files_of_one_name_do_not_overwrite_each_other(tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(SAMPLES / "mishra", tmp_path / "in" / name)
    document = printed("import", tmp_path / "in", "--out", tmp_path / "out")
    names = [Path(table["path"]).stem for table in document["tables"]]
    assert names == ["mishra-forwarding-light", "mishra-pfcp-light", "mishra-forwarding-light-2", "mishra-pfcp-light-2"]


def test_tables_of_an_earlier_import_are_not_replaced_by_those_of_another_file(tmp_path: Path) -> None:
    source, out = tmp_path / "o1_pfcp_exp_light.csv", tmp_path / "out"
    tables = []
    for latency in (100, 100, 200):
        source.write_text(f"pfcp_type,latency_us\nmodification,{latency}\n")
        [table] = printed("import", source, "--out", out)["tables"]
        tables.append(Path(table["path"]).stem)
    assert tables == ["mishra-pfcp-light", "mishra-pfcp-light", "mishra-pfcp-light-2"]
    assert pq.read_table(out / "mishra-pfcp-light.parquet").column("latency_us").to_pylist() == [100.0]


def test_episodes_of_an_earlier_import_are_not_replaced_by_those_of_other_files(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("latency.json.gz", "receive.csv.gz"):
        shutil.copy(SAMPLES / "andrade" / name, tmp_path / "in")
    for _ in range(2):
        assert printed("import", tmp_path / "in", "--out", tmp_path)["episodes"]["steps"] == 40
    before = (tmp_path / "andrade-episodes.parquet").read_bytes()
    path = tmp_path / "in" / "receive.csv.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + b"\n"))
    document = printed("import", tmp_path / "in", "--out", tmp_path)
    assert "give another --out" in document["episodes"]["problem"]
    assert (tmp_path / "andrade-episodes.parquet").read_bytes() == before


def test_validate_finds_nothing_in_what_is_good(tables: Path) -> None:
    for path in (SAMPLES, tables):
        checked = printed("validate", path)["checked"]
        assert len(checked) == len(TABLES) + (path == tables)
        assert all(item["faults"]["total"] == 0 for item in checked)


def test_validate_names_lines_and_is_exit_code_1(tmp_path: Path) -> None:
    path = tmp_path / "o1_pfcp_exp_light.csv"
    path.write_text("pfcp_type,latency_us\nmodification,100\n" + "modification,fast\n" * 30)
    result = run("validate", path)
    assert result.returncode == 1
    assert f"{path}: mishra-pfcp, 1 rows, 30 faults, 30 rows left out" in result.stdout
    assert "lines 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, ..." in " ".join(
        result.stdout.split()
    )


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A folder with a good file and a truncated file."""
    folder = tmp_path / "mixed"
    folder.mkdir()
    shutil.copy(SAMPLES / "mishra" / "o1_pfcp_exp_light.csv", folder)
    whole = gzip.compress((SAMPLES / "mishra" / "o1_pfcp_exp_light.csv").read_bytes())
    (folder / "o1_pfcp_exp_heavy.csv.gz").write_bytes(whole[: len(whole) // 2])
    return folder


def test_a_folder_with_an_unreadable_file_is_read_all_the_same(mixed: Path, tmp_path: Path) -> None:
    imported = run("import", mixed, "--out", tmp_path / "out", "--json")
    assert imported.returncode == 2
    assert [Path(table["path"]).stem for table in json.loads(imported.stdout)["tables"]] == ["mishra-pfcp-light"]
    validated = run("validate", mixed, "--json")
    document = json.loads(validated.stdout)
    assert validated.returncode == 2
    assert [Path(item["path"]).name for item in document["checked"]] == ["o1_pfcp_exp_light.csv"]
    (tmp_path / "out" / "other.parquet").write_bytes(b"PAR1 but not whole")
    analysed = open_tables([tmp_path / "out"], None)
    assert [source.name for source in analysed.delays] == ["mishra-pfcp-light"]
    assert [note.partition(":")[0] for note in analysed.notes] == ["other.parquet"]
    alone = json.loads(run("validate", mixed / "o1_pfcp_exp_heavy.csv.gz", "--json").stdout)
    assert (alone["checked"], alone["unusable"]) == ([], document["unusable"])
    for reported in (imported.stderr, validated.stderr, document["unusable"][0]):
        assert "o1_pfcp_exp_heavy.csv.gz: the compressed data end early; expected" in reported


def test_what_cannot_be_read_is_not_blamed_on_the_target(tmp_path: Path) -> None:
    out, other = tmp_path / "out", tmp_path / "gone"
    with pytest.raises(ConfigError, match=f"path = '{other}': No such file"), writing_to(out):
        other.read_bytes()
    with pytest.raises(ConfigError, match=f"out = '{out}': No such file"), writing_to(out):
        (out / "no" / "x").write_bytes(b"")


def test_validate_of_a_table_repeats_the_faults_of_its_import(tmp_path: Path) -> None:
    path = tmp_path / "o1_pfcp_exp_light.csv"
    path.write_text("pfcp_type,latency_us\nmodification,100\nmodification,fast\n")
    run("import", path, "--out", tmp_path / "out")
    result = run("validate", tmp_path / "out" / "mishra-pfcp-light.parquet", "--json")
    assert result.returncode == 1
    assert json.loads(result.stdout)["checked"][0]["faults"]["kinds"]["number"]["first"][0]["line"] == 3


@pytest.mark.parametrize("name", ["forwarding", "pfcp"])
def test_validate_shows_the_rows_of_the_studys_table(name: str, tables: Path) -> None:
    path = SAMPLES / "mishra" / f"o1_{name}_exp_light.csv"
    expected = checked_by(path)["study"]
    assert {row["load"] for row in expected} == {"light"}
    assert checked_by(tables / f"mishra-{name}-light.parquet")["study"] == expected
    result = run("validate", path)
    assert max(map(len, result.stdout.splitlines()[1:])) <= 80
    heads = [line.split() for line in result.stdout.splitlines()]
    assert list(expected[0]) in heads


def test_episodes_to_minari_and_back(tables: Path, tmp_path: Path) -> None:
    pytest.importorskip("minari")
    folder, back = tmp_path / "andrade-v0", tmp_path / "back.parquet"
    assert printed("convert", tables / "andrade-episodes.parquet", folder)["rows"] == 40
    assert what_is(folder) == "minari"
    assert checked_by(folder)["rows"] == 40
    assert run("convert", folder, back).returncode == 0
    [before], [after] = (read_episodes(path) for path in (tables / "andrade-episodes.parquet", back))
    assert np.array_equal(before.observations, after.observations)
    assert before.behaviour == after.behaviour
    assert dict(before.info) == dict(after.info)


def test_records_become_episodes_and_a_broken_file_of_them_is_left_out(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path / "records", 1 << 24)
    writer.add(ticks(400), description(), 2)
    writer.close()
    assert printed("convert", tmp_path / "records", tmp_path / "whole.parquet")["episodes"] == 1
    (tmp_path / "records" / "run-1-1780000000000000000.parquet").write_bytes(b"PAR1 but not whole")
    result = run("convert", tmp_path / "records", tmp_path / "rest.parquet")
    assert result.returncode == 0
    [line] = result.stderr.splitlines()
    assert line.startswith("left out: run-1-1780000000000000000.parquet: ")


def test_validate_of_episodes_shows_behaviours(tables: Path) -> None:
    [behaviour] = checked_by(tables / "andrade-episodes.parquet")["behaviours"]
    assert (behaviour["behaviour"], behaviour["episodes"], behaviour["steps"]) == ("experiment-21", 1, 40)
    assert "experiment-21" in run("validate", tables / "andrade-episodes.parquet").stdout
