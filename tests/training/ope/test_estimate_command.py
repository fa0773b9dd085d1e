"""``slicepilot dataset estimate`` as a user calls it."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from slicepilot.agents.heuristics.fixed import no_control
from slicepilot.cli.dataset.estimate import LONGEST, estimate, read_truth, short
from slicepilot.configs import ConfigError
from slicepilot.data.episodes.episodes import EpisodeSet
from slicepilot.data.episodes.files import write_episodes

Call = Callable[..., Any]
QUICK = ("--updates", "100", "--seed", "3")


@pytest.fixture(scope="module")
def data(log: EpisodeSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "log.parquet"
    write_episodes(EpisodeSet(log.episodes[:4], log.facts), path)
    return path


@pytest.fixture
def call(data: Path) -> Call:
    """``call(*arguments)``: the command on the log; raises what it raises."""
    app = typer.Typer()
    app.command()(estimate)

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(app, [str(data), *arguments], catch_exceptions=False)

    return run


def test_figures_verdicts_and_scores(call: Call, data: Path, tmp_path: Path) -> None:
    truth = tmp_path / "truth.json"
    truth.write_text(json.dumps({"static-weights-9-nice": 4.6, "neighbours": 1}))
    result = call("--agents", "static-weights-9-nice,experiment-8-scaled", "--truth", str(truth), *QUICK)
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert max(map(len, lines)) <= 80
    [row] = [line.split() for line in lines if line.split()[:1] == ["static-weights-9-nice"]]
    assert row[-1] == "4.60"
    assert any("the data cannot say" in line for line in lines)
    assert any("best of those who acted" in line for line in lines)
    assert any(line.startswith("- on pods as the slices declare them") for line in lines)
    [score] = [line.split() for line in lines if line.split()[:1] == ["model-based"]]
    assert score[1] == "1", "the truth of one of the two is known"


def test_of_one_episode_no_interval_is_known(log: EpisodeSet, tmp_path: Path) -> None:
    explored = log.of("random").episodes[:1]
    write_episodes(EpisodeSet(explored, log.facts), tmp_path / "one.parquet")
    app = typer.Typer()
    app.command()(estimate)
    arguments = [str(tmp_path / "one.parquet"), "--agents", "captain", *QUICK]
    told = CliRunner().invoke(app, arguments, catch_exceptions=False)
    [row] = [line.split() for line in told.output.splitlines() if line.split()[:1] == ["captain"]]
    assert row.count("±?") == 2
    assert max(map(len, told.output.splitlines())) <= 80
    document = json.loads(CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False).output)
    assert document["behaviours"]["random"]["ci95"] is None
    assert document["policies"][0]["estimates"]["model-based"]["ci95"] is None


def test_json_has_all_of_it(call: Call) -> None:
    result = call("--agents", "experiment-8-scaled", "--hardware", "none", "--json", *QUICK)
    document = json.loads(result.output)
    [policy] = document["policies"]
    assert set(policy["estimates"]) == {"fitted Q", "importance"}
    assert document["on_declared_pods"] == ["experiment-8-scaled"]
    assert set(document["behaviours"]) == {"no-control", "limited"}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "agents = none: accepted"),
        (("--agents", "reactive-slo"), "did you mean reactive-sla"),
        (("--agents", "random"), "draws at random; accepted"),
        (("--agents", "captain", "--hardware", "nowhere"), "hardware: unknown name 'nowhere'"),
        (("--agents", "captain", "--truth", "missing.json"), "truth = 'missing.json': does not exist"),
    ],
)
def test_bad_input_is_answered_in_a_line(call: Call, arguments: tuple[str, ...], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as raised:
        call(*arguments)
    assert "\n" not in str(raised.value)


def test_truth_of_other_policies_is_refused(call: Call, tmp_path: Path) -> None:
    truth = tmp_path / "truth.json"
    truth.write_text('{"somebody": 1.0}')
    with pytest.raises(ConfigError, match="has somebody; accepted: at least one of the policies"):
        call("--agents", "captain", "--truth", str(truth))


def test_truth_of_nobody_is_refused(call: Call, log: EpisodeSet, tmp_path: Path) -> None:
    first = log.episodes[0]
    write_episodes(EpisodeSet((first.part(0, 0),), log.facts), tmp_path / "empty.parquet")
    with pytest.raises(ConfigError, match="has nobody; accepted: at least one of the policies"):
        call("--agents", "captain", "--truth", str(tmp_path / "empty.parquet"))


def test_truth_from_episodes(log: EpisodeSet, record: Any, tmp_path: Path) -> None:
    path = tmp_path / "truth.parquet"
    run = record([no_control()], seconds=1.0)
    write_episodes(run, path)
    found = read_truth(path, log)
    assert found["no-control"].value == pytest.approx(sum(e.rewards.mean() for e in run) / len(run))
    late = np.arange(100) < 50  # what was measured after missed ticks does not count
    parts = [replace(e, decisions={**e.decisions, "missed_ticks": late.astype(np.uint16)}) for e in run]
    write_episodes(EpisodeSet(tuple(parts), run.facts), path)
    assert read_truth(path, log)["no-control"].value == pytest.approx(np.mean([e.rewards[50:].mean() for e in run]))
    write_episodes(EpisodeSet(run.episodes, {**run.facts, "period_s": 0.02}), path)
    with pytest.raises(ConfigError, match=r"period_s = 0\.02: accepted: 0\.01, as in the data"):
        read_truth(path, log)


@pytest.mark.parametrize("text", ["[1, 2]", "{}", '{"a": "b"}', '{"a": true}', '{"a": Infinity}', "no json"])
def test_truth_that_is_none(log: EpisodeSet, tmp_path: Path, text: str) -> None:
    path = tmp_path / "truth.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="accepted: an object"):
        read_truth(path, log)


def test_long_names_keep_their_ends() -> None:
    assert short("captain") == "captain"
    cut = short("iql runs/offline/testbed-seed1/bundle")
    assert len(cut) == LONGEST
    assert cut.startswith("…")
    assert cut.endswith("seed1/bundle")
