"""Episodes recorded on real UPFs: by the recorder itself, and by a controller that is run with --record."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from slicepilot.agents.heuristics.registry import make
from slicepilot.data.episodes.files import read_episodes
from slicepilot.env.encoding import KnobDecoder
from slicepilot.env.reward import RewardWeights
from slicepilot.testbed.backend.backend import TestbedBackend
from slicepilot.testbed.lifecycle.removal import running, take_down
from slicepilot.testbed.lifecycle.spec import TestbedSpec
from slicepilot.testbed.lifecycle.testbed import Testbed
from slicepilot.training.recording.minari_files import read_minari
from slicepilot.training.recording.recording import record_live
from tests.command import slicepilot
from tests.testbed.controlled import light

NAME = "sprec"
WEIGHTS = RewardWeights.from_yaml("delay-first")


@pytest.mark.slow
def test_agents_are_recorded_in_turns_and_in_time() -> None:
    backend = TestbedBackend(Testbed.up(TestbedSpec(name=NAME, burn_us=20)), light(), owned=True)
    try:
        names = ("random", "exploring-no-control", "experiment-8-scaled")
        cast = [make(name, backend.slices) for name in names]
        order: list[tuple[int, str]] = []
        info = {"scenario": light().name, "backend": "testbed"}
        episodes = record_live(cast, backend, 2, 0, WEIGHTS, info, lambda turn, who: order.append((turn, who)))
    finally:
        backend.close()
        take_down(NAME)
    assert NAME not in running()
    assert order == [(turn, name) for turn in (0, 1) for name in names]
    assert [len(episode) for episode in episodes] == [200] * 6
    assert [episode.info["seed"] for episode in episodes] == [0] * 3 + [1] * 3
    decoder = KnobDecoder(backend.slices)
    for episode in episodes:
        assert episode.telemetry is not None
        offered = episode.telemetry[5:, 0].mean(axis=0)
        np.testing.assert_allclose(offered, 8.0, rtol=0.2)
        assert (episode.observations >= -1).all()
        assert (episode.observations <= 1).all()
        assert np.isfinite(episode.rewards).all()
        assert (episode.decisions["missed_ticks"] > 0).mean() < 0.05
        # Limits may wait for their turn to be written; a nice is what was wanted.
        _, wanted = decoder.decode(episode.wanted)
        np.testing.assert_allclose(episode.actions[..., 1], wanted[1].T, atol=1e-6)
    random = episodes.episodes[0]
    assert np.isfinite(random.log_density).tolist() == [step % 10 == 0 for step in range(200)]


@pytest.fixture
def state() -> Iterator[Path]:
    """A folder that another user, who writes decision records, can reach; pytest's own are its owner's alone."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_a_controller_leaves_its_run_as_episodes(tmp_path: Path, state: Path) -> None:
    config, scenario = tmp_path / "run.yaml", tmp_path / "light.yaml"
    roots = {"run_root": str(tmp_path / "run"), "state_root": str(state)}
    config.write_text(yaml.safe_dump({"mode": "live", "guard": "default", **roots}))
    loads = {f"slice{i}": [{"kind": "cbr", "rate_mbps": 4, "packet_bytes": 1000}] for i in range(1, 6)}
    played = {"name": "light", "description": "a test", "slices": "testbed-five", "hardware": "testbed"}
    scenario.write_text(yaml.safe_dump(played | {"duration_s": 3, "control_period_s": 0.01, "loads": loads}))
    out = tmp_path / "episodes"
    done = slicepilot(
        *("run", "--config", str(config), "--name", NAME, "--scenario", str(scenario)),
        *("--agent", "exploring-no-control", "--record", str(out), "--json"),
    )
    assert NAME not in running()
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    reported = document["episodes"]
    [parquet], [minari] = (list(map(Path, reported[kind])) for kind in ("parquet", "minari"))
    episodes, again = read_episodes(parquet), read_minari(minari)
    assert set(out.iterdir()) == {parquet, minari}
    assert episodes.num_steps == again.num_steps == reported["steps"]
    lost = sum(document["loop"][name] for name in ("missed_ticks", "late_ticks"))
    assert episodes.num_steps >= document["loop"]["ticks"] - 2 - 10 * lost
    for episode in episodes:
        assert (episode.behaviour, episode.info["mode"]) == ("exploring-no-control", "live")
        known = np.isfinite(episode.log_density)
        np.testing.assert_array_equal(known, ~episode.decisions["held"])
        assert episode.wanted.max() > 1.0  # the draws around "no limit", of which the densities are
        assert episode.telemetry is not None
        np.testing.assert_allclose(episode.telemetry[20:, 0].mean(axis=0), 4.0, rtol=0.3)
    assert np.concatenate([episode.decisions["held"] for episode in episodes]).mean() == pytest.approx(0.9, abs=0.05)
