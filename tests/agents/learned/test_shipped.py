"""A name alone is that of a shipped bundle, if any; whatever else is a folder."""

from pathlib import Path

import numpy as np
import pytest

from slicepilot.agents.learned.agent import LearnedAgent
from slicepilot.agents.learned.bundle import PolicyBundle
from slicepilot.agents.learned.shipped import GENERALIST, SHIPPED, folder_of, is_shipped
from slicepilot.env.knobs import Knobs
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend
from slicepilot.env.simulator.scenario import Scenario


def test_the_name_wins_over_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else anybody who may write there could put a policy of their own in a command's way."""
    (tmp_path / GENERALIST).mkdir()
    monkeypatch.chdir(tmp_path)
    assert folder_of(GENERALIST) == SHIPPED / GENERALIST
    assert is_shipped(GENERALIST)
    assert folder_of(tmp_path / GENERALIST) == tmp_path / GENERALIST
    assert not is_shipped(tmp_path / GENERALIST)


def test_the_shipped_policy_decides_for_any_slices() -> None:
    bundle = PolicyBundle.load(GENERALIST)
    assert bundle.coding == "guided"
    assert bundle.agreement is not None
    backend = SimulatorBackend(ScenarioRuns(Scenario.from_yaml("multi-promise")), 2)
    agent = LearnedAgent(bundle, transfer=True)
    telemetry = backend.reset(0)
    agent.reset(backend.slices, backend.context, 0)
    knobs = agent.decide(telemetry, Knobs.none(len(backend.slices), 2))
    assert np.isfinite(knobs.nice).all()
    assert knobs.values.shape == (3, len(backend.slices), 2)
