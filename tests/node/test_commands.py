"""Environment, probe, top, bench, recording and identification on UPFs that slicepilot has not started."""

from __future__ import annotations

import contextlib
import copy
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import yaml
from gymnasium.utils.env_checker import check_env

from slicepilot.configs import load
from slicepilot.data.episodes.files import read_episodes
from slicepilot.env import LIVE_ENV_ID
from slicepilot.env.environments.slice_env import SliceEnv
from slicepilot.env.simulator.hardware import HardwareFile

from .foreign import COUNT, Foreign
from .runtimes import until
from .test_foreign import knobs, slicepilot
from .test_foreign import picture as whole_picture

MANUAL = Path(__file__).parents[2] / "docs" / "node.md"
LOWEST = -np.ones((COUNT, 3), np.float32)


@pytest.fixture(name="run")
def _run(tmp_path: Path) -> Path:
    """A run configuration with folders of its own, and a guard that lets knobs move from tick to tick."""
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({"run_root": str(tmp_path / "run"), "state_root": str(tmp_path / "state")}))
    return path


def picture(foreign: Foreign) -> dict[str, str]:
    """But for links of others who run tests on this machine."""
    return whole_picture(foreign) | {"links": ""}


@contextlib.contextmanager
def environment(node: Path, run: Path, mode: str = "live", seconds: float = 2.0) -> Iterator[SliceEnv]:
    env = SliceEnv(node=str(node), mode=mode, episode_s=seconds, run=str(run), control_period_s=0.02)
    try:
        yield env
    finally:
        env.close()


def test_the_manuals_environment_moves_knobs_and_puts_them_back(
    foreign: Foreign, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [snippet] = re.findall(r"^```python\n(.*?)^```", MANUAL.read_text(), re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(node.parent)
    foreign.load(seconds=6, mbps=4)
    before = picture(foreign)
    values: dict[str, object] = {}
    try:
        exec(compile(snippet, MANUAL, "exec"), values)
    finally:
        for root in ("/run/slicepilot", "/var/lib/slicepilot"):
            shutil.rmtree(Path(root) / f"{foreign.prefix}-stepped", ignore_errors=True)
    foreign.stop_loads()
    assert picture(foreign) == before
    observation = values["observation"]
    assert isinstance(observation, np.ndarray)
    assert (np.abs(observation) <= 1).all()
    assert values["truncated"]


@pytest.mark.parametrize("mode", ["shadow", "live"])
def test_gymnasiums_checker_finds_nothing(foreign: Foreign, node: Path, run: Path, mode: str) -> None:
    """In live it cannot open a second beside the first: a slice has one controller."""
    foreign.load(seconds=8, mbps=4)
    before, live = knobs(foreign), mode == "live"
    env = gymnasium.make(LIVE_ENV_ID, node=str(node), mode=mode, episode_s=0.5, run=str(run)).unwrapped
    try:
        check_env(env, skip_render_check=live, skip_close_check=live)
    finally:
        env.close()
        env.close()
    foreign.stop_loads()
    assert knobs(foreign) == before


def test_a_step_moves_what_acts_and_nothing_else(foreign: Foreign, tmp_path: Path, run: Path) -> None:
    document = foreign.document()
    del document["slices"][0]["devices"]  # no far end of N6: a shaper would not be seen
    document["slices"][1]["leave"] = ["nice"]
    node = tmp_path / "node.yaml"
    node.write_text(yaml.safe_dump(document))
    before = knobs(foreign)
    document["slices"] = document["slices"][1:]  # measured at one kind of point
    node.write_text(yaml.safe_dump(document))
    with environment(node, run) as env:
        env.reset()
        with pytest.raises(TypeError, match=r"^NodeBackend: cannot be copied or pickled: "):
            copy.deepcopy(env)
        assert env.moves.tolist() == [[True, False, True], *[[True] * 3] * 3]
        for _ in range(50):
            env.step(LOWEST[1:])
        moved = {name for name, value in knobs(foreign).items() if value != before[name]}
        assert {name[0] for name in moved} == {"2", "3", "4", "5"}
        assert not moved & {"2/cpu.shares", "2/cpu.weight"}
        assert env.loop.knobs.nice[0, 0] == 0.0
    assert knobs(foreign) == before


def test_a_run_starts_from_the_state_of_the_node(foreign: Foreign, node: Path, run: Path) -> None:
    """Also where that is a limit, which an agent then sees."""
    group = foreign.group(1)
    quota, limit, none = (
        ("cpu.max", "50000 100000", "max 100000")
        if (group / "cpu.max").exists()
        else ("cpu.cfs_quota_us", "50000", "-1")
    )
    (group / quota).write_text(limit)
    try:
        before = knobs(foreign)
        with environment(node, run) as env:
            env.reset()
            assert env.loop.knobs.cpu_limit_mcpu[:, 0].tolist() == [500.0, *[np.inf] * 4]
            for _ in range(30):
                env.step(LOWEST)
            assert knobs(foreign) != before
            env.reset()
            until(lambda: env.loop.knobs.cpu_limit_mcpu[0, 0] == 500.0, "not as at first")
        assert knobs(foreign) == before
    finally:
        (group / quota).write_text(none)


def test_who_takes_no_step_loses_control_until_the_next(foreign: Foreign, node: Path, run: Path) -> None:
    before = knobs(foreign)

    def as_found() -> bool:
        now = knobs(foreign)
        # A shaper that paces nothing, and the period of no quota, stay while knobs are leased.
        return all(now[name] == before[name] for name in before if "cpu." in name and "period" not in name)

    with environment(node, run) as env:
        env.reset()
        for _ in range(30):
            env.step(LOWEST)
        assert not as_found()
        until(as_found, "knobs stayed though nobody took a step")
        for _ in range(30):
            env.step(LOWEST)
        assert not as_found()
    assert knobs(foreign) == before


def test_knobs_come_back_after_sigkill(foreign: Foreign, node: Path, run: Path) -> None:
    before = knobs(foreign)
    program = (
        "import numpy, sys\nfrom slicepilot.env.environments.slice_env import SliceEnv\n"
        "env = SliceEnv(node=sys.argv[1], mode='live', run=sys.argv[2])\nenv.reset()\n"
        "while True: env.step(-numpy.ones(env.action_space.shape, numpy.float32))\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(node), str(run)], stderr=subprocess.DEVNULL) as process:
        until(lambda: knobs(foreign) != before, "nothing was moved", 30.0)
        time.sleep(0.3)
        process.send_signal(signal.SIGKILL)
    until(lambda: knobs(foreign) == before, "not restored", 2.0)


def test_probe_measures_a_node(foreign: Foreign, node: Path) -> None:
    foreign.load(seconds=15, mbps=4)
    time.sleep(0.5)
    before = picture(foreign)
    document = json.loads(slicepilot("probe", "--node", str(node), "--duration", "2", "--json").stdout)
    foreign.stop_loads()
    assert picture(foreign) == before
    assert [item["slice"] for item in document["slices"]] == [f"slice{i}" for i in range(1, COUNT + 1)]
    for item in document["slices"]:
        assert item["n6"]["mbps"] == pytest.approx(4.0, rel=0.3)
        assert item["n6"]["match_ratio"] > 0.99
        assert item["cpu_mcpu"] > 0
    error = slicepilot("probe", "--node", str(node), "--n3", "n3", code=2).stderr
    assert "accepted alone" in error


def test_recording_in_shadow_keeps_what_operators_do(foreign: Foreign, node: Path, tmp_path: Path) -> None:
    foreign.load(seconds=10, mbps=4)
    before, out = picture(foreign), tmp_path / "log.parquet"
    slicepilot("dataset", "record", "--node", str(node), "--seconds", "1", "--episodes", "2", "--out", str(out))
    foreign.stop_loads()
    assert picture(foreign) == before
    episodes = read_episodes(out)
    assert episodes.behaviours == ("as-found",)
    assert [len(episode) for episode in episodes] == [100, 100]
    for episode in episodes:
        assert episode.telemetry is not None
        assert episode.telemetry[5:, 0].mean(axis=0) == pytest.approx([4.0] * COUNT, rel=0.3)
        assert episode.info["backend"] == "node"
    error = slicepilot("dataset", "record", "--node", str(node), "--agents", "random", "--out", str(out), code=2).stderr
    assert "need --mode live" in error


def test_recording_live_explores_around_the_state(foreign: Foreign, node: Path, run: Path, tmp_path: Path) -> None:
    foreign.load(seconds=12, mbps=4)
    before, out = knobs(foreign), tmp_path / "log.parquet"
    command = ["dataset", "record", "--node", str(node), "--mode", "live", "--run", str(run)]
    slicepilot(*command, "--agents", "exploring-as-found", "--seconds", "2", "--episodes", "2", "--out", str(out))
    foreign.stop_loads()
    assert knobs(foreign) == before
    episodes = read_episodes(out)
    assert episodes.behaviours == ("exploring-as-found",)
    for episode in episodes:
        assert np.isfinite(episode.log_density).any()
        assert np.ptp(episode.actions[..., 1], axis=0).max() > 0.0  # nice was moved


def cost_us(foreign: Foreign, node: Path, out: Path, burn_ns: int, *options: str) -> float:
    """What identification finds with so much work on each packet."""
    for number in range(1, COUNT + 1):
        foreign.stop_upf(number)
        foreign.start_upf(number, BURN_NS=str(burn_ns))
    foreign.load(seconds=30, mbps=6)
    time.sleep(0.5)
    command = ["node", "identify", str(node), "--out", str(out), "--segments", "3", *options, "--json"]
    document = json.loads(slicepilot(*command).stdout)
    foreign.stop_loads()
    return float(document["upf_cost_us"])


def test_identification_finds_the_work_on_a_packet(foreign: Foreign, node: Path, run: Path, tmp_path: Path) -> None:
    """80 us more of it are 80 us more, within a fifth on a busy machine: the rest does not depend on it."""
    out = tmp_path / "hardware.yaml"
    before = knobs(foreign)
    little = cost_us(foreign, node, out, 20_000)
    much = cost_us(foreign, node, out, 100_000, "--mode", "live", "--run", str(run))
    assert much - little == pytest.approx(80.0, rel=0.2)
    assert knobs(foreign) == before
    result = load("hardware", str(out), HardwareFile)
    assert result.hardware.upf_cost_us == much
    assert result.hardware.cfs_period_ms == 10.0
    assert {"round_trip_ms", "smt_yield", "access_mbps"} <= set(result.assumed)
    assert not {"upf_cost_us", "logical_cpus", "egress_mode"} & set(result.assumed)
    assert result.assumed_from == "testbed"
    assert result.fit["throughput_median_pct"] < 5.0
