"""Loads of kind trace: the simulator offers what the file says, and files that say nothing sensible are refused."""

import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import yaml

from slicepilot.configs import ConfigError
from slicepilot.env.simulator.backend import ScenarioRuns, SimulatorBackend
from slicepilot.env.simulator.exogenous import Exogenous
from slicepilot.env.simulator.kernels import ARRIVE_MBIT
from slicepilot.env.simulator.scenario import Scenario

WIDTH_S = 0.02
NODE = {"access_mbps": 1e5, "n3_buffer_packets": 1e6}


def write_scenario(folder: Path, *loads: dict[str, object], period_s: float = WIDTH_S, **fields: object) -> str:
    document = {
        "name": "day", "description": "A trace.", "slices": "five-video", "hardware": "node.yaml", "duration_s": 20.0,
        "control_period_s": period_s, "loads": {"slice1": list(loads)},
    } | fields  # fmt: skip
    (folder / "node.yaml").write_text(yaml.safe_dump({"source": "a test", "hardware": NODE}))
    (folder / "day.yaml").write_text(yaml.safe_dump(document))
    return str(folder / "day.yaml")


def write_rates(file: Path, mbps: npt.NDArray[np.float64], name: str = "slice1", width_s: float = WIDTH_S) -> None:
    file.write_text(
        "time,slice,mbps\n" + "".join(f"{i * width_s:.3f},{name},{r}\n" for i, r in enumerate(mbps.tolist()))
    )


def trace(**fields: object) -> dict[str, object]:
    return {"kind": "trace", "trace": {"file": "rates.csv", **fields}}


def offered(scenario: str, periods: int, seed: int = 0, **runs: object) -> npt.NDArray[np.float64]:
    """Of the first slice, in each period."""
    backend = SimulatorBackend(ScenarioRuns(Scenario.from_yaml(scenario), **runs), 1)  # type: ignore[arg-type]
    first = backend.reset(seed).offered_mbps[0, 0]
    return np.array([first, *(backend.observe().offered_mbps[0, 0] for _ in range(periods - 1))], np.float64)


def rates_of(count: int, seed: int = 0) -> npt.NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    return np.round(rng.exponential(40.0, count) * (rng.random(count) > 0.2), 2)


def test_100000_bins_are_offered_as_they_are(tmp_path: Path) -> None:
    """What arrives in each of them; the whole simulator takes seconds for so many periods."""
    mbps, rng = rates_of(100_000), np.random.default_rng(0)
    write_rates(tmp_path / "rates.csv", mbps)
    run = ScenarioRuns(Scenario.from_yaml(write_scenario(tmp_path, trace(), duration_s=2000))).draw(1, rng)
    arrivals = Exogenous(run.traffic, run.events, run.hardware, run.period_s, rng, len(mbps))
    blocks = []
    while arrivals.step < len(mbps):
        blocks.append(arrivals.next_block().slices[:, ARRIVE_MBIT, 0, 0].copy())
    np.testing.assert_allclose(np.concatenate(blocks) / WIDTH_S, mbps, rtol=1e-4, atol=1e-4)


def test_once_or_again_scaled_faster_later_and_summed(tmp_path: Path) -> None:
    mbps = rates_of(50)
    write_rates(tmp_path / "rates.csv", mbps, "video")
    looped = offered(write_scenario(tmp_path, trace(slice="video", loop=True, scale=2.5)), 120)
    np.testing.assert_allclose(looped, 2.5 * np.tile(mbps, 3)[:120], rtol=1e-4, atol=1e-3)
    once = offered(write_scenario(tmp_path, trace(slice="video") | {"start_s": 0.2, "end_s": 0.8}), 100)
    np.testing.assert_allclose(once, np.r_[np.zeros(10), mbps[:30], np.zeros(60)], rtol=1e-4, atol=1e-4)
    fast = offered(write_scenario(tmp_path, trace(slice="video", speed=2.0)), 30)
    np.testing.assert_allclose(fast, np.r_[mbps.reshape(25, 2).mean(axis=1), np.zeros(5)], rtol=1e-4, atol=1e-3)
    both = offered(write_scenario(tmp_path, trace(slice="video"), {"kind": "cbr", "rate_mbps": 5}), 50)
    np.testing.assert_allclose(both, mbps + 5, rtol=1e-4)
    coarse = offered(write_scenario(tmp_path, trace(slice="video"), period_s=0.05), 20)
    np.testing.assert_allclose(coarse, np.repeat(mbps, 2).reshape(20, 5).mean(axis=1), rtol=1e-4, atol=1e-3)


def test_the_packets_of_a_capture_are_offered_in_their_periods(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    times = np.sort(rng.integers(0, 20_000_000, 500))
    sizes = rng.choice([60, 700, 1400], 500)
    records = [
        struct.pack("<IIII", *divmod(time, 10**6), 28, size)
        + struct.pack(">BBHIBBH", 0x45, 0, size, 0, 64, 17, 0) + bytes([10, 60, 0, 2, 10, 103, 0, 2]) + bytes(8)
        for time, size in zip(times.tolist(), sizes.tolist(), strict=True)
    ]  # fmt: skip
    (tmp_path / "n3.pcap").write_bytes(struct.pack("<IHHIIII", 0xA1B2C3D4, 2, 4, 0, 0, 28, 101) + b"".join(records))
    seen = offered(write_scenario(tmp_path, trace(file="n3.pcap", source="10.60.0.0/16")), 1000)
    want = np.histogram((times - times[0]) * 1e-6, np.arange(1001) * WIDTH_S, weights=8e-6 * sizes)[0] / WIDTH_S
    np.testing.assert_allclose(seen, want, rtol=1e-4, atol=1e-4)


def test_all_lanes_and_seeds_meet_the_same_and_copies_go_on_alike(tmp_path: Path) -> None:
    write_rates(tmp_path / "rates.csv", rates_of(200))
    scenario = write_scenario(tmp_path, trace(loop=True))
    np.testing.assert_array_equal(offered(scenario, 300, seed=1), offered(scenario, 300, seed=2))
    backend = SimulatorBackend(ScenarioRuns(Scenario.from_yaml(scenario)), 70, copies=2)
    backend.reset(3)
    many = [backend.observe().offered_mbps[0].copy() for _ in range(50)]
    np.testing.assert_array_equal(np.array(many), np.tile(offered(scenario, 51)[1:, None], 70).astype(np.float32))


def test_paths_are_relative_to_the_scenario_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "below").mkdir()
    write_rates(tmp_path / "rates.csv", rates_of(10))
    scenario = write_scenario(tmp_path / "below", trace(file="../rates.csv"))
    monkeypatch.chdir("/")
    assert Scenario.from_yaml(scenario).loads["slice1"][0].mean_rate_mbps == pytest.approx(rates_of(10).mean())


@pytest.mark.parametrize(
    ("load", "error"),
    [
        (trace(file="gone.csv"), "gone.csv': No such file or directory"),
        (trace(file="."), "Is a directory; expected a file"),
        (trace(slice="Slice1"), "rates.csv': no rows of slice 'Slice1'; did you mean slice1?"),
        (trace(source="10.60.0.0/16"), "source and teid choose packets of a capture; this is CSV"),
        (trace(scale=-1), "loads.slice1.0.trace.scale = -1"),
        (trace(source="10.60.0.0/99"), "loads.slice1.0.trace.source = '10.60.0.0/99'"),
        (trace() | {"rate_mbps": 5}, "rate_mbps: not of kind 'trace'"),
        (trace() | {"profile": [[0, 1]]}, "profile: not of kind 'trace'"),
        ({"kind": "trace"}, "kind 'trace' and the field trace belong together"),
        ({"kind": "cbr", "trace": {"file": "rates.csv"}}, "kind 'trace' and the field trace belong together"),
    ],
)
def test_what_is_no_trace_is_said_in_a_line(load: dict[str, object], error: str, tmp_path: Path) -> None:
    write_rates(tmp_path / "rates.csv", rates_of(10))
    with pytest.raises(ConfigError) as raised:
        Scenario.from_yaml(write_scenario(tmp_path, load))
    assert error in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_command_ends_with_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "rates.csv").write_text("time,slice,mbps\n0,slice1,1\n1,slice1,1\n3,slice1,1\n4,slice1,-1\n")
    command = [sys.executable, "-m", "slicepilot.cli", "simulate", "--scenario", write_scenario(tmp_path, trace())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "rates.csv', line 5: Mbit/s = '-1'" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user's link")
def test_root_follows_no_link_of_another_user_and_reads_no_pipe_or_huge_file(tmp_path: Path) -> None:
    write_rates(tmp_path / "other.csv", rates_of(10))
    file = tmp_path / "rates.csv"
    file.symlink_to("other.csv")
    os.lchown(file, 65534, 65534)
    scenario = write_scenario(tmp_path, trace())
    with pytest.raises(ConfigError, match="root follows only links of root"):
        Scenario.from_yaml(scenario)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(ConfigError, match="expected a regular file"):
        Scenario.from_yaml(scenario)
    file.unlink()
    with file.open("wb") as sparse:
        sparse.truncate((256 << 20) + 1)
    with pytest.raises(ConfigError, match="more than 268435456 bytes, which is the limit"):
        Scenario.from_yaml(scenario)


def test_the_scenario_of_the_manual(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "environment.md").read_text().partition("## Your own day")[2]
    rows, scenario = page.split("```")[1], page.split("```yaml\n# day.yaml\n")[1].partition("```")[0]
    (tmp_path / "offered.csv").write_text(rows.strip())
    document = yaml.safe_load(scenario)
    del document["loads"]["slice3"]  # whose capture a manual cannot show
    (tmp_path / "day.yaml").write_text(yaml.safe_dump(document))
    loads = Scenario.from_yaml(str(tmp_path / "day.yaml")).loads
    assert loads["slice1"][0].mean_rate_mbps == pytest.approx((41.2 + 38.0) / 2)
    assert loads["slice2"][0].mean_rate_mbps == pytest.approx(20 * 0.75)
