"""Agents and policies in code that a user names, and those that packages declare."""

from __future__ import annotations

import copy
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slicepilot.agents.code import load_agent
from slicepilot.agents.heuristics import registry
from slicepilot.agents.heuristics.registry import available, make
from slicepilot.agents.learned.policy_names import PolicyName
from slicepilot.configs import ConfigError
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.training.evaluation.rollouts import simulate_rollout
from slicepilot.training.policies.load import load_policy
from tests.command import slicepilot

CODE = '''
from __future__ import annotations
from dataclasses import dataclass
import numpy as np

@dataclass
class Settings:
    limit: float = 0.5

class Held:
    name, request_mcpu = "held", None
    def reset(self, slices, context, seed): ...
    def decide(self, telemetry, knobs):
        return knobs

class Predicts:
    """As a policy of the environment."""
    def predict(self, observation):
        return np.full((len(observation), observation.shape[1] // 20, 3), Settings().limit, np.float32)

class Remembers:
    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        assert deterministic and (state is None) == bool(episode_start.all())
        count = np.zeros(len(observation)) if state is None else state
        return np.repeat(0.01 * count[:, None], observation.shape[1] // 20 * 3, axis=1), count + 1

class Needs:
    def __init__(self, argument): ...

def wrong():
    return 3

instance = Predicts()
'''


@pytest.fixture
def quick() -> Scenario:
    scenario = Scenario.from_yaml("andrade-ramp")
    return replace(scenario, control_period_s=30.0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return path


def test_agents_and_policies_of_a_file_are_judged(file: Path, quick: Scenario) -> None:
    held = simulate_rollout(load_policy(f"{file}:Held"), quick, 2, 1)
    assert (held.agent, held.churn.max()) == ("held", 0)
    for name in ("Predicts", "instance"):
        run = simulate_rollout(load_policy(f"{file}:{name}"), quick, 2, 1)
        assert run.agent == name
        assert np.isfinite(run.row("cpu_limit_mcpu")).all()
    agent = load_policy(f"{file}:Remembers")
    first, again = simulate_rollout(agent, quick, 2, 1), simulate_rollout(agent, quick, 2, 1)
    assert first.churn[1:].min() > 0, "its state is given back to it"
    np.testing.assert_array_equal(first.reward, again.reward)
    assert "slicepilot_policy_mine" not in sys.modules
    copy.deepcopy(agent)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Neds", "has no Neds: did you mean Needs"),
        ("Needs", r"calling Needs\(\) without arguments fails: TypeError"),
        ("wrong", "int; expected an agent"),
        ("Settings", r"Settings; expected an agent \(name, request_mcpu, reset, decide"),
    ],
)
def test_what_is_no_policy_says_what_is_expected(name: str, message: str, file: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        load_policy(f"{file}:{name}")


def test_code_that_cannot_be_imported_is_a_line(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(ConfigError, match="cannot be imported: SystemExit: 3"):
        load_policy(f"{tmp_path}/broken.py:Mine")
    with pytest.raises(ConfigError, match="no such file"):
        load_policy(f"{tmp_path}/none.py:Mine")
    with pytest.raises(ConfigError, match=r"no module 'mine'; expected .*\./mine.py:Class"):
        load_policy("mine:Mine")
    with pytest.raises(ConfigError, match=r"expected module:Class or FILE\.py:Class"):
        load_agent("module:no-name", "policy")


@pytest.mark.skipif(os.geteuid() != 0, reason="takes a file of somebody else's")
@pytest.mark.parametrize("how", ["file", "module", "folder"])
def test_nobody_elses_code_is_run(how: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = tmp_path / "ran"
    file.write_text(f"open({str(marker)!r}, 'w')\n{CODE}")
    monkeypatch.syspath_prepend(str(tmp_path))
    os.chown(tmp_path if how == "folder" else file, 12345, 12345)
    with pytest.raises(ConfigError, match=r"belongs to user 12345; .* copy it into a folder of yours"):
        load_policy("mine:Held" if how == "module" else f"{file}:Held")
    assert not marker.exists()
    os.chown(tmp_path, 0, 0)


def test_packages_declare_agents(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[slicepilot.agents]\ntheirs = mine:Held\nqueue-greedy = mine:Held\npredicts = mine:Predicts\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.installed.cache_clear()
    try:
        assert available()[-2:] == ["theirs", "predicts"]
        slices = Scenario.from_yaml("andrade-ramp").slice_set()
        assert make("theirs", slices).name == "theirs"
        assert make("predicts", slices).name == "predicts"
        assert type(make("queue-greedy", slices)).__name__ == "QueueGreedy", "the project's own names go first"
        with pytest.raises(ConfigError, match="did you mean theirs"):
            make("their", slices)
    finally:
        registry.installed.cache_clear()
        sys.modules.pop("mine", None)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("sb3:a/b.zip", ("sb3", "a/b.zip", None, "b")),
        ("sb3:a/b", ("sb3", "a/b", None, "b")),
        ("sb3:a/b.zip+c/v.pkl", ("sb3", "a/b.zip", "c/v.pkl", "b")),
        ("onnx:../x y.onnx", ("onnx", "../x y.onnx", None, "x_y")),
        ("pkg.mod:Class", ("code", ".", None, "Class")),
        ("./f.py:Class", ("code", ".", None, "Class")),
    ],
)
def test_names_of_policies(given: str, expected: tuple[str, str, str | None, str]) -> None:
    name = PolicyName.parse(given)
    statistics = None if name.statistics is None else str(name.statistics)
    assert (name.kind, str(name.path), statistics, name.name) == expected


def test_what_was_written_wrongly_says_what_to_write(tmp_path: Path) -> None:
    for given, message in {
        "a.zip": "write sb3:a.zip",
        "a.onnx": "write onnx:a.onnx",
        "a.py": "write a.py:Class",
        "queue-greedy": "agents by name are given by --agents",
        "models:/a@b": "expected sb3:FILE.zip",
        "sb3:": "expected sb3:FILE.zip",
        "sb3:a.zip+": "expected sb3:FILE.zip",
        str(tmp_path): f"a bundle is given by --bundle {tmp_path}",
    }.items():
        with pytest.raises(ConfigError, match=message.replace("+", r"\+")):
            PolicyName.parse(given)
    for command in (("evaluate", "--bundle", "a.zip"), ("run", "--bundle", "a.zip"), ("simulate", "--bundle", "a.zip")):
        done = slicepilot(*command)
        assert done.returncode == 2
        assert "expected --policy sb3:a.zip, or a bundle made of it: slicepilot bundle import sb3:a.zip" in done.stderr
    done = slicepilot("simulate", "--policy", "sb3:a.zip", "--agent", "captain")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "agent, policy: given together" in done.stderr
