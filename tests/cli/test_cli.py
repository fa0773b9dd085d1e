"""The command line from outside: exit codes, one line per error, JSON exactly as documented."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from slicepilot.cli import main
from slicepilot.cli.evaluation.simulate import parse_numbers
from slicepilot.cli.reference import load_commands
from slicepilot.cli.registry import commands
from slicepilot.cli.shared.output import announce_compilation, progress_lines
from slicepilot.configs import ConfigError
from slicepilot.env import ENV_ID
from slicepilot.env.environments import slice_env
from slicepilot.env.simulator.kernels import advance
from tests.command import slicepilot

BAD_INPUT = {
    "scenario": (("simulate", "--scenario", "andrade-rampp"), "scenarios: unknown name 'andrade-rampp'; did you mean"),
    "file": (("simulate", "--scenario", "not/there.yaml"), "file 'not/there.yaml' does not exist"),
    "agent": (("simulate", "--agent", "orakel"), "agent: unknown name 'orakel'; did you mean oracle?"),
    "study": (("simulate", "--study", "andrad"), "study: unknown name 'andrad'; expected andrade"),
    "experiment": (
        ("simulate", "--study", "andrade", "--experiments", "1,27"),
        "experiments: unknown number 27; expected 1 to 26",
    ),
    "hardware": (
        ("simulate", "--study", "andrade", "--hardware", "andrad"),
        "hardware: unknown name 'andrad'; did you mean andrade? expected one of ",
    ),
    "negative seed": (("simulate", "--seed", "-1"), "--seed = -1: "),
    "option": (("simulate", "--sead", "1"), "No such option: --sead"),
    "command": (("simulat",), "No such command 'simulat'. Did you mean 'simulate'? expected one of doctor, "),
    "recorded agent": (("dataset", "record", "--agents", "randm", "--out", "x.parquet"), "did you mean random"),
    "no recorded agent": (("dataset", "record", "--out", "x.parquet"), "agents: none given"),
    "no share": (("dataset", "record", "--agents", "random:0", "--out", "x.parquet"), "agents = 'random:0'"),
    "agent twice": (
        ("dataset", "record", "--agents", "random:2,captain,random:5", "--out", "x.parquet"),
        "'random' is named twice",
    ),
    "recording's file": (("dataset", "record", "--agents", "random", "--out", "x.csv"), "expected NAME-vN"),
    "backend": (
        ("dataset", "record", "--agents", "random", "--backend", "kubernetes", "--out", "x.parquet"),
        "expected one of simulator, node",
    ),
    "name without a testbed": (
        ("dataset", "record", "--agents", "random", "--name", "sp", "--out", "x.parquet"),
        "needs a --backend of real UPFs",
    ),
    "recorded scenario": (
        ("dataset", "record", "--agents", "random", "--scenario", "nowhere", "--out", "x.parquet"),
        "scenarios: unknown name 'nowhere'",
    ),
    "look ahead": (
        ("dataset", "record", "--agents", "clairvoyant", "--backend", "testbed", "--out", "x.parquet"),
        "needs --backend simulator",
    ),
    "demo": (("demo", "--out", f"{__file__}/x"), "test_cli.py/x': Not a directory; expected a writable folder"),
    "demo over a file": (("demo", "--out", __file__), "test_cli.py': File exists; expected a writable folder"),
    "export": (
        ("bundle", "export", "models:/slicepilot", "--onnx", "x.onnx"),
        "bundle = 'models:/slicepilot': expected models:/NAME@ALIAS",
    ),
    "offline without a configuration": (("train", "--offline"), "config = None"),
    "offline configuration": (("train", "--offline", "-c", "iq"), "offline: unknown name 'iq'; did you mean iql"),
    "offline scenario": (
        ("train", "--offline", "-c", "iql", "--scenario", "andrade-ramp"),
        "scenario = 'andrade-ramp': accepted without",
    ),
    "dataset online": (
        ("train", "-c", "ppo-smoke", "--dataset", "x.parquet"),
        "dataset = 'x.parquet': accepted with --offline",
    ),
    "dataset": (("train", "--offline", "-c", "iql", "--dataset", "no.parquet"), "path = 'no.parquet': does not exist"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_one_line_and_exit_code_2(
    case: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, message = BAD_INPUT[case]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["slicepilot", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    printed = capsys.readouterr()
    assert stop.value.code == 2
    assert printed.out == ""
    assert printed.err.startswith("slicepilot: error: ")
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_an_error_with_names_that_others_have_chosen_is_plain_text(tmp_path: Path) -> None:
    for name in ("a\x1b]0;owned\x07", "b\u202e"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "control.sock").touch()
    result = slicepilot("control", "pause", "--run-root", str(tmp_path))
    assert result.returncode == 2
    assert result.stderr == "slicepilot: error: name: not given; expected one of a?]0;owned?, b?\n"
    (tmp_path / "c\x1b[2J").touch()
    result = slicepilot("probe", "--netns", str(tmp_path / "c\x1b[2J"))
    assert result.returncode == 1
    assert f"{tmp_path}/c?[2J: " in result.stderr
    assert result.stderr.removesuffix("\n").isprintable()


def test_the_first_simulation_says_that_it_compiles(
    capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(advance._cache._cache_file, "_index_path", str(tmp_path / "empty"))
    announce_compilation()
    assert capsys.readouterr().err.startswith("compiling the simulator")


def test_the_first_environment_says_that_it_compiles_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slice_env._announce_compilation.cache_clear()
    monkeypatch.setattr(advance._cache._cache_file, "_index_path", str(tmp_path / "empty"))
    for _ in range(2):
        gym.make(ENV_ID, scenario="bursty-neighbours").close()
    lines = [record.getMessage() for record in caplog.records if record.name == "slicepilot"]
    assert lines == ["compiling the simulator, once: up to a minute"]


def test_progress_without_a_terminal_is_a_line_now_and_then(capsys: Any) -> None:
    often, seldom, never = progress_lines(every_s=0.0), progress_lines(every_s=60.0), progress_lines(False, 0.0)
    for show in (often, seldom, never):
        show("evaluating small: no-control", 0.25)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "evaluating small: no-control, 25%\n")


def test_scenarios_are_listed_with_their_slices_and_times(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["slicepilot", "list", "scenarios"])
    with pytest.raises(SystemExit, match="0"):
        main()
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("multi-promise ")]
    assert "6 slices, 300 s, period 100 ms: " in line


@pytest.mark.parametrize("name", ["", *commands()])
def test_help_fits_80_columns(name: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["slicepilot", *name.split(), "--help"])
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stop:
        main()
    shown = capsys.readouterr().out
    assert stop.value.code == 0
    assert max(map(len, shown.splitlines())) <= 80
    assert not name or commands()[name].help in " ".join(shown.split())


def test_names_that_commands_take_are_listed_and_completed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = {}
    for what in ("scenarios", "agents", "configs", "datasets"):
        monkeypatch.setattr(sys, "argv", ["slicepilot", "list", what, "--json"])
        with pytest.raises(SystemExit, match="0"):
            main()
        listed[what] = [entry["name"] for entry in json.loads(capsys.readouterr().out)]
    assert "multi-promise" in listed["scenarios"]
    assert {"queue-greedy", "generalist"} <= set(listed["agents"])
    assert "training/node" in listed["configs"]
    assert {"andrade", "mishra", "moreira"} <= set(listed["datasets"])

    monkeypatch.setenv("_SLICEPILOT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "slicepilot evaluate --sce")
    monkeypatch.setenv("COMP_CWORD", "2")
    monkeypatch.setattr(sys, "argv", ["slicepilot"])
    with pytest.raises(SystemExit):
        main()
    assert "--scenario" in capsys.readouterr().out.split()


def test_help_is_whole_sentences() -> None:
    for name, command in load_commands():
        for text in [command.help, *(param.help for param in command.params)]:
            assert text[0].isupper() or text.startswith("kubeconfig"), (name, text)
            assert text.endswith(".") or "Example: " in text, (name, text)
            # In square brackets Rich would take a default for markup, and show nothing.
            assert "[default" not in text, (name, text)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("1", [1]), ("1,5,20-22", [1, 5, 20, 21, 22]), (" 3 , 1-3 ", [3, 1, 2]), ("7-7", [7])],
)
def test_experiments_are_numbers_and_ranges(text: str, numbers: list[int]) -> None:
    assert parse_numbers(text) == numbers


@pytest.mark.parametrize("text", ["", "1,", "-1", "3-1", "1-2-3", "1.5", "²", "1-99999999", "nan"])
def test_other_experiments_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^experiments = .*: expected "):
        parse_numbers(text)
