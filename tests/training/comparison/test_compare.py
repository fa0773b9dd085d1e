"""Runs, bundles and evaluations side by side, from their folders alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from slicepilot.agents.learned.bundle import PolicyBundle
from slicepilot.agents.learned.files import BundleFiles
from slicepilot.cli.app import app
from slicepilot.cli.schemas.evaluation import Compared
from slicepilot.configs import ConfigError
from slicepilot.configs.documents import check
from slicepilot.training.comparison.sources import read_all
from slicepilot.training.evaluation.comparison import AgentResult, ScenarioResult
from slicepilot.training.evaluation.results import Evaluation, Provenance, save
from slicepilot.training.runs.labels import RunLabels
from slicepilot.training.runs.record import METRICS_FILE, RUN_FILE, RunRecord

HOSTILE = "<script>alert(1)</script>"


def run(folder: Path, seed: int, rewards: list[float], **config: Any) -> Path:
    """A run that was not tracked, with curves."""
    labels = RunLabels.of(f"run of {HOSTILE}", [f"team={HOSTILE}"], {"bundle": "generalist"})
    record = RunRecord(folder, "mine", {"seed": seed, "ppo": config}, "scenario multi-promise", labels, False)
    for step, reward in enumerate(rewards):
        record._written_s = 0.0  # points that come sooner than each second would be thinned out
        record.metrics({"reward": reward}, step)
    record.summary({"estimate/reward": 2.0 + seed, "unknown": None}, estimate_verdict="better")
    record.finish()
    return folder


def agent(name: str, role: Any, broken_s: float) -> AgentResult:
    keys = ("sla_violation_s", "best_effort_loss_pct", "cpu_wasted_core_s", "return")
    scores = {key: np.full(2, broken_s) for key in keys}
    return AgentResult(name, role, scores, np.zeros(3, np.float32), None, 0.1)


@pytest.fixture(name="folders")
def _folders(tmp_path: Path) -> list[Path]:
    """Two runs, one of them with a policy, a bundle, and an evaluation that has judged that policy beside a rule."""
    first, second = run(tmp_path / "first", 0, [0.1, 0.2, 0.3], epochs=2), run(tmp_path / "second", 1, [0.3, 0.1])
    PolicyBundle.load("generalist").save(first / "bundle")
    digest = BundleFiles.read(first / "bundle").digest
    result = ScenarioResult(
        *("clinic", "", ("a", "b"), 0, (1.0, 1.0), (1.0, 1.0), (1.0, 1.0), "testbed", 60.0, 1.0, 2, 0, None, 200, 0.95),
        backend="simulator",
        agents=(agent("policy", "learned", 3.0), agent("queue-greedy", "adaptive", 7.0)),
        subjects=("policy",),
    )
    provenance = Provenance("2026-01-01", "slicepilot evaluate", "here", {"slicepilot": "0"})
    known = {"policy": {"digest": digest, "run_id": None, "training": {}}}
    save(Evaluation((result,), provenance, {}, known), tmp_path / "judged")
    return [first, second, tmp_path / "judged"]


def test_what_was_trained_and_what_was_judged_come_together(folders: list[Path], tmp_path: Path) -> None:
    report = tmp_path / "compare.html"
    arguments = ["compare", *map(str, folders), "generalist", "--report", str(report), "--json"]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    check(done.stdout, Compared)
    document = json.loads(done.stdout)
    rows = {item["name"]: item for item in document["compared"]}
    assert list(rows) == ["first", "second", "generalist", "queue-greedy"], "the policy is the first run's"
    assert rows["first"]["figures"]["reward"] == 0.3
    assert rows["first"]["figures"]["estimate/reward"] == 2.0
    assert rows["first"]["figures"]["clinic/sla_violation_s"] == 3.0
    assert rows["queue-greedy"]["figures"]["clinic/sla_violation_s"] == 7.0
    assert len(rows["first"]["digest"]) == len(rows["generalist"]["digest"]) == 64
    assert rows["first"]["facts"]["from"] == "bundle generalist"
    differing = document["differing"]
    assert differing["seed"] == {"first": "0", "second": "1", "generalist": "1"}
    assert differing["ppo.epochs"]["second"] is None

    page = report.read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    for text in ("Parameters that differ", "ppo.epochs", "Scenario clinic", "queue-greedy", "reward by steps"):
        assert text in page
    shown = CliRunner().invoke(app, ["compare", *map(str, folders)], catch_exceptions=False)
    assert "scenario clinic" in shown.stdout
    assert "queue-greedy" in shown.stdout


def test_a_run_that_was_killed_is_read_as_far_as_it_came(folders: list[Path]) -> None:
    """Its last line is unfinished, and a resumed run has repeated steps."""
    with (folders[0] / METRICS_FILE).open("a") as file:
        file.write('{"step": 1, "reward": 0.9}\n{"step": 5, "rew')
    [first, _] = read_all([(folder.name, folder) for folder in folders[:2]])
    assert first.curves["reward"] == ([0.0, 1.0, 2.0], [0.1, 0.9, 0.3])


def test_what_is_no_run_is_refused_in_a_line(folders: list[Path], tmp_path: Path) -> None:
    cases = {
        "none of run.json, SHA256SUMS, results.json": [folders[0], tmp_path],
        "expected 2 to 200": [folders[0]],
    }
    for message, given in cases.items():
        with pytest.raises(ConfigError, match=message):
            read_all([(folder.name, folder) for folder in given])
    for text in ("[]", "{", '{"name": 1}', "[" * 100_000):
        (folders[0] / RUN_FILE).write_text(text)
        with pytest.raises(ConfigError, match=r"not valid JSON|expected an object|is damaged"):
            read_all([(folder.name, folder) for folder in folders])
