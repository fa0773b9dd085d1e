"""``slicepilot dataset estimate`` as a user calls it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from slicepilot.cli.dataset.estimate import estimate
from slicepilot.configs import ConfigError
from slicepilot.data.episodes.episodes import EpisodeSet
from slicepilot.data.episodes.files import write_episodes

Call = Callable[..., Any]


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


def test_figures_and_warnings(call: Call) -> None:
    result = call("--agents", "static-weights-9-nice,experiment-8-scaled")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert max(map(len, lines)) <= 80
    [row] = [line.split() for line in lines if line.split()[:1] == ["static-weights-9-nice"]]
    assert row[-1] in {"yes", "no"}
    assert any("the data cannot say" in line for line in lines)
    assert any("best policy in the data" in line for line in lines)
    assert any(line.startswith("- estimated on pods as the slices declare them") for line in lines)


def test_of_one_episode_no_interval_is_known(log: EpisodeSet, tmp_path: Path) -> None:
    explored = log.of("random").episodes[:1]
    write_episodes(EpisodeSet(explored, log.facts), tmp_path / "one.parquet")
    app = typer.Typer()
    app.command()(estimate)
    arguments = [str(tmp_path / "one.parquet"), "--agents", "captain"]
    reported = CliRunner().invoke(app, arguments, catch_exceptions=False)
    [row] = [line.split() for line in reported.output.splitlines() if line.split()[:1] == ["captain"]]
    assert row.count("±?") == 1
    assert max(map(len, reported.output.splitlines())) <= 80
    document = json.loads(CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False).output)
    assert document["behaviours"]["random"]["ci95"] is None
    assert document["policies"][0]["estimates"]["model-based"]["ci95"] is None


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "agents = none: expected"),
        (("--agents", "reactive-slo"), "did you mean reactive-sla"),
        (("--agents", "random"), "draws at random; expected"),
        (("--agents", "captain", "--hardware", "nowhere"), "hardware: unknown name 'nowhere'"),
    ],
)
def test_bad_input_is_answered_in_a_line(call: Call, arguments: tuple[str, ...], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as raised:
        call(*arguments)
    assert "\n" not in str(raised.value)
