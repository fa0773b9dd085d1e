"""Which policy a benchmark runs: the one that is named, the newest of this folder's runs, or the shipped one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slicepilot.agents.learned.agent import LearnedAgent
from slicepilot.agents.learned.bundle import PolicyBundle
from slicepilot.testbed.bench.bundle import SHIPPED, bundle_folder


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def made(folder: str, age_s: int) -> Path:
    path = Path(folder)
    path.mkdir(parents=True)
    os.utime(path, (1_700_000_000 - age_s, 1_700_000_000 - age_s))
    return path


def test_before_any_training_there_is_a_policy() -> None:
    assert bundle_folder(None) == SHIPPED
    LearnedAgent(PolicyBundle.load(SHIPPED), transfer=True)


def test_the_newest_of_runs_and_demos() -> None:
    older, demo = made("runs/ppo-seed0/bundle", 20), made("runs/demo/training/bundle", 10)
    assert bundle_folder(None) == demo
    newest = made("runs/mine/bundle", 0)
    assert bundle_folder(None) == newest
    assert bundle_folder(older) == older
