"""An offline policy goes on learning on real UPFs, under the guard, and restores the knobs."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import yaml

from slicepilot.agents.learned.bundle import PolicyBundle
from slicepilot.data.episodes.files import read_episodes
from slicepilot.testbed.lifecycle.removal import running
from slicepilot.testbed.lifecycle.spec import TestbedSpec
from tests.command import slicepilot
from tests.testbed.controlled import SLICES, WEIGHT, fresh_testbed

NAME = "spft"


def train(folder: Path, *arguments: str) -> dict[str, object]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = slicepilot("train", *arguments, "--json", cwd=folder, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    figures: dict[str, object] = json.loads(done.stdout)
    return figures


@pytest.mark.slow
def test_two_rounds_on_a_testbed_that_is_up(tmp_path: Path) -> None:
    offline = {"algorithm": "td3-bc", "dataset": "testbed-contention", "updates": 20, "tracking": "none"}
    (tmp_path / "offline.yaml").write_text(yaml.safe_dump(offline))
    online = {"backend": "testbed", "testbed": NAME, "rounds": 2, "episodes": 1, "updates": 20, "seconds": 2}
    (tmp_path / "online.yaml").write_text(yaml.safe_dump(online | {"judged_runs": 2, "tracking": "none"}))
    train(tmp_path, "--offline", "-c", "offline.yaml", "--out", "offline")
    with fresh_testbed(TestbedSpec(name=NAME, burn_us=20)) as testbed:
        result = [(testbed.cgroup(name) / WEIGHT).read_text() for name in SLICES]
        figures = train(tmp_path, "--finetune", "offline", "-c", "online.yaml", "--out", "online")
        assert NAME in running()
        assert [(testbed.cgroup(name) / WEIGHT).read_text() for name in SLICES] == result
    assert figures["backend"] == "testbed"
    assert figures["kept"] in ("offline", "fine-tuned")
    episodes = read_episodes(tmp_path / "online" / "episodes")
    assert [len(episode) for episode in episodes] == [200, 200]
    for episode in episodes:
        assert episode.info["backend"] == "testbed"
        assert episode.telemetry is not None
        assert episode.telemetry[20:, 0].mean() > 1.0
        assert np.isfinite(episode.rewards).all()
        assert np.isfinite(episode.log_density).tolist() == [step % 10 == 0 for step in range(200)]
    assert PolicyBundle.load(tmp_path / "online" / "bundle").training.algorithm == "td3-bc"
