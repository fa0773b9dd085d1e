"""Finding, reading and validating YAML: each failure is one line."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import ConfigDict, Field

from slicepilot.configs import ConfigError, load, locate, read_yaml, validate
from slicepilot.configs.reading import Roots
from slicepilot.controller.telemetry.prometheus.config import Queries
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.scenario import Scenario
from slicepilot.env.slices import SliceSet
from slicepilot.node.config.spec import NodeSpec
from slicepilot.training.finetune.config import FinetuneConfig
from slicepilot.training.offline.config import OfflineConfig
from slicepilot.training.online.config import TrainingConfig
from slicepilot.training.sweeps.config import SweepConfig


@dataclass(frozen=True)
class Thing:
    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)
    rate_mbps: Annotated[float, Field(gt=0)]
    parts: tuple[int, ...] = ()
    name: str = ""


@dataclass(frozen=True)
class Things:
    things: tuple[Thing, ...]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "andrade-rammp",
            "scenarios: unknown name 'andrade-rammp'; did you mean andrade-ramp.*? expected one of .*andrade-ramp",
        ),
        ("zzz", "scenarios: unknown name 'zzz'; expected one of .*andrade-ramp"),
        ("", "scenarios: unknown name ''; expected one of "),
        ("not-there.yaml", "file 'not-there.yaml' does not exist"),
        ("some/where", "file 'some/where' does not exist"),
        ("../andrade-ramp", "file '../andrade-ramp' does not exist"),
    ],
)
def test_a_missing_file_is_named(name: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as error:
        locate("scenarios", name)
    assert re.match(message.replace("?", r"\?"), str(error.value)), str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_lacks_its_suffix_is_suggested_but_not_to_clients(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "port.yaml").write_text("rate_mbps: 3\n")
    with pytest.raises(ConfigError, match=r"unknown name 'port'; did you mean port\.yaml\?$"):
        locate("scenarios", "port")
    with pytest.raises(ConfigError, match="expected one of "):
        load("scenarios", "port", Thing, roots=Roots((tmp_path,)))


def test_a_file_of_the_users_wins_by_its_suffix(tmp_path: Path) -> None:
    file = tmp_path / "andrade-ramp.yaml"
    file.write_text("rate_mbps: 3\nparts: [1, 2]\n")
    assert load("scenarios", file, Thing) == Thing(3.0, (1, 2))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [1, 2\nb: 3\n", "not valid YAML at line 2, column "),
        (b"a: \x00", "not valid YAML"),
        (b"\xff\xfe\xfa", "is UTF-16; expected YAML in UTF-8"),
        (b"a: !!python/object/apply:os.getcwd []", "not valid YAML at line 1, column "),
        (b"a: 2001-99-99", "not valid YAML"),
        (b"[" * 5000, "YAML nested more than 32 deep"),
    ],
)
def test_what_cannot_be_parsed(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        read_yaml(file)
    assert str(error.value).startswith(f"file {str(file)!r}: {message}")
    assert "\n" not in str(error.value)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(ConfigError, match="expected a regular file, not a link, pipe or device"):
        read_yaml(tmp_path / "pipe.yaml")
    with pytest.raises(ConfigError, match="does not exist"):
        locate("scenarios", tmp_path / f"{'x' * 300}.yaml")
    with pytest.raises(ConfigError, match="Is a directory"):
        read_yaml(tmp_path)
    if os.geteuid() != 0:  # root may read anything
        (tmp_path / "secret.yaml").touch(0o000)
        with pytest.raises(ConfigError, match="Permission denied"):
            read_yaml(tmp_path / "secret.yaml")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"rate_mbps": "fast"}, "x: rate_mbps = 'fast': expected a number"),
        ({"rate_mbps": float("nan")}, "x: rate_mbps = nan: "),
        ({"rate_mbps": 1, "colour": 2}, "x: colour = 2: unknown field; expected one of rate_mbps, parts, name"),
        ({"rate_mbps": 1, "parts": [1, "two"]}, "x: parts.1 = 'two': expected an integer"),
        ({}, "x: rate_mbps: Field required"),
        ({"rate_mbps": -1}, "x: rate_mbps = -1: expected a number greater than 0"),
        ({"rate_mpbs": 1}, "x: rate_mpbs = 1: unknown field; did you mean rate_mbps? expected one of "),
        ({"colour": 1}, "x: rate_mbps: Field required"),
        ({"rate_mbps": 1, "name": 7}, "x: name = 7: expected a string: write it in quotes"),
        ({"rate_mbps": 1, "parts": None}, "x: parts = None: expected a list"),
        (None, "x: empty; expected the fields rate_mbps, parts, name"),
        ([1, 2], "x: document = list: expected the fields rate_mbps, parts, name"),
        ("text", "x: document = 'text': expected the fields rate_mbps, parts, name"),
    ],
)
def test_the_first_violation_is_named(raw: object, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        validate(Thing, raw, "x")
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("names", "where"),
    [
        (("a", "video"), "things.video.rate_mbps = -1"),
        (("a", "a"), "things.1.rate_mbps = -1"),
        (("a", "with \x1b[2J"), "things.1.rate_mbps = -1"),
        (("a", 7), "things.1.rate_mbps = -1"),
    ],
)
def test_entries_of_a_list_are_called_by_their_names(names: tuple[object, object], where: str) -> None:
    raw = {"things": [{"rate_mbps": 1, "name": names[0]}, {"rate_mbps": -1, "name": names[1]}]}
    with pytest.raises(ConfigError, match=f"^x: {re.escape(where)}: expected a number greater than 0"):
        validate(Things, raw, "x")


def test_a_client_that_may_not_read_a_file_is_told_no_names_of_it() -> None:
    raw = {"things": [{"rate_mbps": -1, "name": "secret"}]}
    with pytest.raises(ConfigError, match=r"^x: things\.0\.rate_mbps: expected"):
        validate(Things, raw, "x", quote=False)
    with pytest.raises(ConfigError, match=r"^x: things\.0\.\.\.\.: unknown field; did you mean rate_mbps\?"):
        validate(Things, {"things": [{"rate_mpbs": 1}]}, "x", quote=False)


@pytest.mark.parametrize(
    ("reader", "field"),
    [
        (TrainingConfig, "algorithm"),
        (OfflineConfig, "algorithm"),
        (FinetuneConfig, "backend"),
        (SweepConfig, "axes"),
        (SliceSet, "slices"),
        (Scenario, "name"),
        (Queries, "description"),
        (RewardWeights, "sla"),
        (NodeSpec, "name"),
    ],
)
def test_a_typo_of_a_required_field_names_the_near_miss_in_every_kind_of_file(
    reader: Any, field: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"{field}e: 1\n")
    with pytest.raises(ConfigError, match=f"{field}e = 1: unknown field; did you mean {field}[?]"):
        reader.from_yaml(str(path))
    path.write_text("# nothing yet\n")
    with pytest.raises(ConfigError, match=r"^mine\.yaml: empty; expected the fields "):
        reader.from_yaml(str(path))
