"""A testbed comes up, carries packets, and leaves nothing behind, whatever happens to it."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicepilot.configs import ConfigError
from slicepilot.env.simulator.scenario import Load, Scenario, TraceFile
from slicepilot.testbed.backend.traffic import LoadRun, plan_of
from slicepilot.testbed.lifecycle.layout import STATE_FOLDER, netns_path
from slicepilot.testbed.lifecycle.removal import running, take_down
from slicepilot.testbed.lifecycle.spec import TestbedSpec
from slicepilot.testbed.lifecycle.testbed import Testbed, missing
from tests.command import slicepilot

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"this machine lacks {'; '.join(missing())}")
NAME = "spt"


@pytest.fixture
def spec() -> Iterator[TestbedSpec]:
    yield TestbedSpec(name=NAME, burn_us=0, ues=1)
    take_down(NAME)
    assert leftovers(NAME) == []


def leftovers(name: str) -> list[str]:
    """Namespaces, cgroups and processes of a testbed that are still there."""
    result = [path.name for path in Path("/run/netns").glob(f"{name}-*")]
    result += [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/slicepilot-{name}")]
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = process.read_bytes()
        except OSError:
            continue
        if b"build/bin/" in line and f"{name}-".encode() in line:
            result.append(line.decode())
    return result


def scenario_of(**loads: tuple[Load, ...]) -> Scenario:
    return Scenario("test", "a test", "testbed-five", "testbed", 2.0, 0.1, loads)


@pytest.mark.realtime
def test_comes_up_within_three_seconds_and_goes_down_without_a_trace(spec: TestbedSpec) -> None:
    started = time.monotonic()
    testbed = Testbed.up(spec)
    assert time.monotonic() - started < 3.0
    assert [status.alive for status in testbed.status()] == [True] * 5
    pids = [status.pid for status in testbed.status()]
    testbed.down()
    assert leftovers(NAME) == []
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not take_down(NAME)  # twice does nothing


def test_every_slice_carries_its_load_in_order(spec: TestbedSpec) -> None:
    testbed = Testbed.up(spec)
    loads = {name: (Load("cbr", rate_mbps=2.0, packet_bytes=700),) for name in testbed.slices.names}
    run = LoadRun(testbed, scenario_of(**loads), seed=1)
    run.start()
    time.sleep(1.0)
    reports = run.stop()
    received = {flow["flow"]: flow for flow in reports["sink"]["flows"]}
    for flow in reports["load"]["flows"]:
        assert flow["offered_mbps"] == pytest.approx(2.0, rel=0.05)
        mine = received[flow["flow"]]
        assert mine["packets"] + mine["lost"] >= 0.9 * flow["packets"]
        assert mine["lost"] <= 0.01 * flow["packets"]
        assert mine["reordered"] == 0


def test_every_slice_plays_its_own_part_of_a_trace(spec: TestbedSpec, tmp_path: Path) -> None:
    """Rates of CSV: each slice carries as much as its rows say, and the plan is the same for the same seed."""
    rates = {f"slice{i}": [2.0 * i, 0.0, 4.0, 1.0] for i in range(1, 6)}
    rows = [f"{0.25 * n},{name},{own[n]}" for n in range(4) for name, own in rates.items()]
    (tmp_path / "rates.csv").write_text("\n".join(["time,slice,mbps", *rows]))
    loads = {
        name: (Load("trace", packet_bytes=500, trace=TraceFile(str(tmp_path / "rates.csv"), name, scale=0.5)),)
        for name in rates
    }
    testbed = Testbed.up(spec)
    assert plan_of(scenario_of(**loads), testbed, 3) == plan_of(scenario_of(**loads), testbed, 3)
    run = LoadRun(testbed, scenario_of(**loads), seed=1)
    run.start()
    time.sleep(1.3)
    reports = run.stop()
    for name, sent in zip(rates, reports["load"]["flows"], strict=True):
        octets = 0.5 * 0.25 * sum(rates[name]) * 1e6 / 8
        assert abs(sent["bytes"] - octets) <= 500 * (1 + sent["skipped_packets"])
    assert sum(flow["packets"] for flow in reports["sink"]["flows"]) > 0.9 * sum(
        flow["packets"] for flow in reports["load"]["flows"]
    )


def test_two_at_once_do_not_meet(spec: TestbedSpec) -> None:
    first, second = Testbed.up(spec), Testbed.up(spec.override(name="spu"))
    try:
        assert {NAME, "spu"} <= set(running())
    finally:
        second.down()
    assert all(status.alive for status in first.status())
    assert leftovers("spu") == []


def test_a_second_one_of_the_same_name_is_refused(spec: TestbedSpec) -> None:
    testbed = Testbed.up(spec)
    with pytest.raises(ConfigError, match="is up"):
        Testbed.up(spec)
    assert all(status.alive for status in testbed.status())


def test_what_is_not_ours_is_left_alone(spec: TestbedSpec) -> None:
    foreign = f"{NAME}-upf-slice3"
    subprocess.run(["ip", "netns", "add", foreign], check=True)
    try:
        with pytest.raises(ConfigError, match="not this testbed's"):
            Testbed.up(spec)
        assert netns_path(foreign).exists()
        assert leftovers(NAME) == [foreign]
    finally:
        subprocess.run(["ip", "netns", "del", foreign], check=True)


def test_down_cleans_up_after_a_crash(spec: TestbedSpec) -> None:
    """Killed in the middle of coming up: nothing had the chance to clean up."""
    program = (
        "import os\n"
        "from slicepilot.testbed.lifecycle.testbed import Testbed\n"
        "from slicepilot.testbed.lifecycle.spec import TestbedSpec\n"
        "Testbed._set_up_sessions = lambda self, smf: os.kill(os.getpid(), 9)\n"
        f"Testbed.up(TestbedSpec(name={NAME!r}, burn_us=0))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert leftovers(NAME) != []
    assert take_down(NAME)


def test_what_a_killed_owner_left_is_in_nobodys_way(spec: TestbedSpec) -> None:
    program = (
        "import os\n"
        "from slicepilot.testbed.lifecycle.testbed import Testbed\n"
        "from slicepilot.testbed.lifecycle.spec import TestbedSpec\n"
        f"Testbed.up(TestbedSpec(name={NAME!r}, burn_us=0), owned=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert leftovers(NAME) != []
    testbed = Testbed.up(spec)
    assert all(status.alive for status in testbed.status())


@pytest.mark.parametrize("delay_s", [0.05, 0.3, 0.6, 0.9])
def test_ctrl_c_at_any_moment_leaves_nothing(spec: TestbedSpec, delay_s: float) -> None:
    program = (
        "from slicepilot.testbed.lifecycle.testbed import Testbed\n"
        "from slicepilot.testbed.lifecycle.spec import TestbedSpec\n"
        "print('begin', flush=True)\n"
        "from slicepilot.testbed.lifecycle.removal import take_down\n"
        "try:\n"
        f"    Testbed.up(TestbedSpec(name={NAME!r}, burn_us=0))\n"
        "finally:\n"
        f"    take_down({NAME!r})\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay_s)
        process.send_signal(signal.SIGINT)
        process.wait(20)
    assert leftovers(NAME) == []
    assert NAME not in running()


def test_a_upf_that_restarts_gets_its_sessions_again(spec: TestbedSpec) -> None:
    testbed = Testbed.up(spec)
    testbed.restart_upf("slice2")
    loads = {"slice2": (Load("cbr", rate_mbps=1.0, packet_bytes=700),)}
    deadline, received = time.monotonic() + 30, 0
    while received == 0 and time.monotonic() < deadline:
        run = LoadRun(testbed, scenario_of(**loads), seed=1)
        run.start()
        time.sleep(0.5)
        received = sum(flow["packets"] for flow in run.stop()["sink"].get("flows", []))
    assert received > 0


def test_commands_speak_json_and_refuse_what_is_not_there() -> None:
    refused = slicepilot("testbed", "down", "--name", "nobody")
    assert refused.returncode == 2
    assert "'nobody' is not up" in refused.stderr
    assert slicepilot("testbed", "up", "--burn-us", "-1", "--name", NAME).returncode == 2
    made = json.loads(slicepilot("testbed", "up", "--burn-us", "0", "--name", NAME, "--json").stdout)
    try:
        assert len(made["slices"]) == 5
        assert (STATE_FOLDER / NAME / "spec.json").exists()
    finally:
        assert slicepilot("testbed", "down", "--name", NAME).returncode == 0
    assert leftovers(NAME) == []
