"""Studies reproduced: rows, findings, what is kept, and the command."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from slicepilot.configs import ConfigError
from slicepilot.data.reference import calibration_rows, verification_rows
from slicepilot.training.studies.andrade.findings import NICE_PAIRS
from slicepilot.training.studies.andrade.release import _halves
from slicepilot.training.studies.report import render
from slicepilot.training.studies.reproduce import Reproduction, as_figures, study_of
from slicepilot.training.studies.study import Figure, Findings, Row, Store, compare
from tests.command import slicepilot


def test_all_printed_figures_have_a_row() -> None:
    printed = study_of("andrade").printed()
    rows = (*calibration_rows(), *verification_rows())
    assert {r.experiment for r in rows} == set(range(1, 27)) - {9, 10}
    assert len(printed) == sum(4 - math.isnan(row.iqr) for row in rows)
    assert printed["25/slice1/throughput/mean"] == 145.83


def test_all_findings_hold_in_print() -> None:
    """A criterion that the study's own figures do not meet is none of its findings."""
    verdicts = Reproduction(study_of("andrade")).verdicts()
    assert len(verdicts) == 10
    assert all(verdict["published"] for verdict in verdicts)


def test_a_figure_agrees_within_the_tolerance_or_the_interval() -> None:
    row = Row("a", "a", "ms", 100.0, 0.1)
    assert compare(row, Figure(109.0)) == (pytest.approx(9.0), "agrees")
    assert compare(row, Figure(115.0))[1] == "differs"
    assert compare(row, Figure(115.0, 95.0, 135.0))[1] == "agrees"
    assert compare(row, None) == (None, "not compared")
    assert compare(Row("a", "a", "ms", None, 0.1), Figure(1.0)) == (None, "not compared")


def test_a_difference_has_its_cause_and_a_finding_its_figures() -> None:
    study = study_of("andrade")
    printed = study.printed()
    worse = dict(printed) | {"15/slice1/throughput/mean": 100.0}
    result = Reproduction(study, sources={"simulated": Findings(values=as_figures(worse))})
    [differs] = [row for row in result.rows() if row["verdict"] == "differs"]
    assert (differs["row"], round(differs["difference_pct"])) == ("15/slice1/throughput/mean", -32)
    assert "nice" in differs["cause"]
    failed = {verdict["claim"] for verdict in result.verdicts() if verdict["simulated"] is False}
    assert failed == {
        "Nice beside CPU limits helps the priority slice.",
        "Settings 15 and 25 are the best compromise.",
    }
    assert "Nice beside CPU limits" in render(result)["report.html"]
    throughput, latency, unshaped = result.ranks()
    assert throughput["rows"] == 24
    assert latency == {"order": latency["order"], "source": "simulated", "rows": 23, "spearman": 1.0}
    assert unshaped["rows"] == 17
    assert 0.7 < throughput["spearman"] < 0.99, "a setting that was eighth is nearly the last"
    assert result.csv().splitlines()[0].startswith("row,text,unit,published,simulated,measured,release")


def test_what_nice_does_over_all_pairs_and_what_the_order_of_noisy_runs_says() -> None:
    def ratio(with_nice: float) -> dict[str, Figure]:
        rng = np.random.default_rng(0)
        return {
            f"{number}/slice1/throughput/mean": Figure(value * rng.uniform(0.98, 1.02))
            for pair in NICE_PAIRS
            for number, value in zip(pair, (with_nice, 100.0), strict=True)
        }

    [finding] = [each for each in study_of("andrade").findings if each.claim.startswith("Over all settings")]
    for level, holds in ((100.0, True), (110.0, False), (90.0, False)):
        assert finding.holds(ratio(level))[0] is holds
    rng = np.random.default_rng(1)
    clear = {n: [np.full(10, 100.0 * n) + rng.normal(size=10) for _ in range(10)] for n in range(1, 12)}
    noisy = {n: [rng.normal(100, 10, 10) for _ in range(10)] for n in range(1, 12)}
    assert "rank correlation 1.00" in next(_halves("x", clear, np.mean, 0))
    assert float(next(_halves("x", noisy, np.mean, 0)).partition("correlation ")[2].partition(" ")[0]) < 0.6
    assert not list(_halves("x", {1: noisy[1]}, np.mean, 0))


def test_what_is_kept_is_not_done_again(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    assert Store(file, resume=False).get("a", lambda: {"x": 1}) == {"x": 1}
    assert Store(file, resume=True).get("a", lambda: pytest.fail("done again")) == {"x": 1}
    assert Store(file, resume=False).get("a", lambda: {"x": 2}) == {"x": 2}
    with file.open("a") as cut:
        cut.write('{"key": "b", "val')
    assert Store(file, resume=True).get("b", lambda: 3) == 3, "the cell of a line that was cut is done again"
    again = Store(file, resume=True)
    assert (again.get("a", pytest.fail), again.get("b", pytest.fail)) == ({"x": 2}, 3)
    file.write_text("{\n")
    with pytest.raises(ConfigError, match="cannot be resumed"):
        Store(file, resume=True)


def test_a_study_comes_back_with_one_command(tmp_path: Path) -> None:
    out = tmp_path / "andrade"
    done = slicepilot("reproduce", "andrade", "--quick", "--agents", "queue-greedy", "--json", "--out", str(out))
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    rows = {row["row"]: row for row in document["rows"]}
    assert rows["5/slice1/throughput/mean"]["verdict"] == "agrees"
    assert rows["queue-greedy/slice1/throughput/mean"]["simulated"] > rows["5/slice1/throughput/mean"]["simulated"]
    assert sum(row["verdict"] == "agrees" for row in rows.values()) > 150
    assert {path.name for path in out.iterdir()} >= {"report.html", "rows.csv", "study.json"}
    pictures = sorted(out.glob("*.svg"))
    assert [path.stem for path in pictures] == ["boxes", "gains", "ramp-latency", "ramp-throughput"]
    for path in pictures:
        assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    again = slicepilot(
        "reproduce", "andrade", "--quick", "--agents", "queue-greedy", "--json", "--out", str(out), "--resume"
    )
    assert json.loads(again.stdout) == document
    shown = slicepilot("reproduce", "andrade", "--quick", "--out", str(out), "--resume").stdout
    assert "nine other experiments" in " ".join(shown.split())
    assert "[dim]" not in shown


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("mishraa",), "study"),
        (("andrade", "--in", "cloud"), "in = 'cloud'"),
        (("andrade", "--data", "nowhere"), "data = 'nowhere'"),
        (("andrade", "--resume"), "--out"),
        (("andrade", "--agents", "nobody", "--in", "simulator", "--in", "testbed"), "agent: unknown name 'nobody'"),
        (("moreira", "--in", "simulator", "--data", "nowhere"), "data = 'nowhere': no folder"),
        (("andrade", "--out", "/proc/nothing"), "out = '/proc/nothing': No such file"),
        (("andrade", "--out", __file__), "File exists; expected a writable folder"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], expected: str) -> None:
    """Before the study is played, which takes minutes."""
    done = slicepilot("reproduce", *arguments, "--json", timeout=60)
    assert done.returncode == 2
    assert expected in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
