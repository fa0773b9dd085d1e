"""Tuning of the PI controller: what it writes, that it repeats, that it gets better."""

import sys
from pathlib import Path

import numpy as np
import pytest

from slicepilot.agents.heuristics.pi import GAINS, Pi, TunedPi
from slicepilot.configs import load
from slicepilot.env.reward import RewardWeights
from slicepilot.env.simulator.mixture import MixtureEpisodes
from slicepilot.training.tuning import tune_pi
from slicepilot.training.tuning.arguments import run
from slicepilot.training.tuning.tune_pi import RANGES, START, mean_return, tune


@pytest.fixture(scope="module")
def episodes() -> MixtureEpisodes:
    return MixtureEpisodes.from_yaml("default")


@pytest.mark.slow
def test_a_few_generations_are_better_on_deployments_not_met_and_repeat(episodes: MixtureEpisodes) -> None:
    weights = RewardWeights.from_yaml()
    first, again = (tune(episodes, weights, 8, 32, 5) for _ in range(2))
    assert first == again
    before, after = (mean_return(Pi(gains), episodes, 128, 900, weights) for gains in (START, first))
    assert after > before
    for name in GAINS:
        low, high = RANGES[name]
        assert low * 0.999 <= getattr(first, name) <= high * 1.001


def test_shipped_gains_are_better_than_the_start(episodes: MixtureEpisodes) -> None:
    weights = RewardWeights.from_yaml()
    tuned = load("heuristics", "pi", TunedPi).gains
    shipped, start = (mean_return(Pi(gains), episodes, 128, 901, weights) for gains in (tuned, START))
    assert shipped > start + 5


def test_command_writes_gains_with_their_provenance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "pi.yaml"
    monkeypatch.setattr(sys, "argv", ["tune_pi", "--generations", "1", "--lanes", "4", "--seed", "3", "-o", str(out)])
    tune_pi.main()
    written = load("heuristics", out, TunedPi)
    assert written.provenance["seed"] == 3
    assert written.provenance["mixture"] == "default"
    assert np.isfinite([getattr(written.gains, name) for name in GAINS]).all()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--lanes", "0"), "lanes: 0; expected 1 or more"),
        (("--mixture", "nowhere"), "mixtures: unknown name 'nowhere'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    options: tuple[str, str], named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tune_pi", *options])
    with pytest.raises(SystemExit) as stop:
        run(tune_pi.main)
    assert stop.value.code == 2
    assert named in capsys.readouterr().err.splitlines()[-1]
