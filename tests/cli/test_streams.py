"""``-`` is standard output wherever a command writes text, and refused wherever it writes anything else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from slicepilot.configs import ConfigError
from slicepilot.controller.telemetry.report.export import _open
from tests.command import slicepilot

SAMPLE = Path(__file__).parents[1] / "data" / "samples" / "mishra" / "o1_forwarding_exp_light.csv"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_table_is_printed_as_csv(tmp_path: Path) -> None:
    assert slicepilot("dataset", "import", str(SAMPLE), "--out", "tables").returncode == 0
    [table] = (tmp_path / "tables").glob("*.parquet")
    assert slicepilot("dataset", "convert", str(table), "table.csv", "--json").returncode == 0
    done = slicepilot("dataset", "convert", str(table), "-")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (tmp_path / "table.csv").read_text()
    assert not (tmp_path / "-").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_draft_of_a_node_is_printed() -> None:
    done = slicepilot("node", "discover", "--name", "edge", "--out", "-")
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)["name"] == "edge"
    assert not Path("-").exists()


def test_a_report_is_printed(tmp_path: Path) -> None:
    run = ("--scenario", "testbed-contention", "--agents", "no-control", "--seeds", "1", "--no-mlflow")
    done = slicepilot("evaluate", *run, "--results", str(tmp_path / "results"), "--report", "-")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("<!DOCTYPE html>")
    assert done.stdout.rstrip().endswith("</html>")
    assert slicepilot("report", str(tmp_path / "results"), "-o", "-").stdout.startswith("<!DOCTYPE html>")
    assert not (tmp_path / "-").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("dataset", "import", str(SAMPLE), "--out", "-"),
            "out = '-': standard output takes text alone; expected a fol",
        ),
        (("train", "-c", "node", "--out", "-"), "out = '-': standard output takes text alone; expected a folder"),
        (("demo", "--out", "-"), "out = '-': standard output takes text alone; expected a folder"),
        (("probe", "--netns", "x", "--csv", "-", "--json"), "--csv = '-': not with --json"),
        (("probe", "--netns", "x", "--csv", "-", "--pfcp-csv", "-"), "both are -; expected at most one"),
        (("evaluate", "--report", "-", "--json"), "--report = '-': not with --json"),
    ],
    ids=lambda given: given[0] if isinstance(given, tuple) else "",
)
def test_what_is_no_text_is_refused(arguments: tuple[str, ...], words: str) -> None:
    done = slicepilot(*arguments)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert words in line
    assert not Path("-").exists()


def test_events_are_printed(capfd: pytest.CaptureFixture[str]) -> None:
    file = _open(Path("-"), "pfcp_type,latency_us", "--pfcp-csv")
    file.write("establishment,1.000\n")
    file.close()
    assert capfd.readouterr().out == "pfcp_type,latency_us\nestablishment,1.000\n"
    with pytest.raises(ConfigError, match=r"--csv = not/there\.csv: No such file"):
        _open(Path("not/there.csv"), "a", "--csv")
