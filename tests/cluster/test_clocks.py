"""Agents whose clocks are wrong (``clock.c``): what is timed goes by the time that has passed."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from tests.node.runtimes import until

from .agents import RunningAgent, agent, condition, reported, slice_set
from .cluster import Cluster
from .upfs import NAMESPACE, PodUpfs

pytestmark = pytest.mark.slow
COUNT = 2
WITHIN_S, WATCHED_S, TAKEN_S = 30.0, 25.0, 60.0
HOUR_S = 3600


@pytest.fixture(scope="module", name="library")
def _library(cluster: Cluster) -> Path:
    built = cluster.machine.folder / "clock.so"
    source = Path(__file__).with_name("clock.c")
    subprocess.run(["clang", "-shared", "-fPIC", "-Wall", "-Werror", "-o", built, source], check=True)
    return built


def off_by(library: Path, seconds: int) -> list[str]:
    """Variables by which a process, and not those that it starts, has another time of day."""
    return [f"LD_PRELOAD={library}", f"CLOCK_OFF_S={seconds}"]


def waits(running: RunningAgent) -> bool:
    return any(line["event"] == "waiting" and "Lease" in line["why"] for line in running.lines())


def hours_off(running: RunningAgent) -> float:
    """By what it writes itself."""
    said_s = time.mktime(time.strptime(running.lines()[-1]["time"], "%Y-%m-%dT%H:%M:%SZ"))
    return (said_s - time.mktime(time.gmtime())) / 3600.0


def test_an_agent_that_is_an_hour_ahead_acts_and_its_lease_is_not_taken(
    cluster: Cluster, upfs: PodUpfs, access: Path, library: Path
) -> None:
    before = upfs.knobs()
    with agent(cluster, access, environment=off_by(library, HOUR_S)) as ahead:
        cluster.kubectl("apply", given=slice_set(count=COUNT))
        until(lambda: condition(reported(cluster), "Controlled") == ("True", "Live"), f"{reported(cluster)}", WITHIN_S)
        until(lambda: upfs.knobs() != before, "nothing was moved", WITHIN_S)
        assert hours_off(ahead) == pytest.approx(1.0, abs=0.1)
        moved = upfs.knobs()
        with agent(cluster, access, "other") as right:
            until(lambda: waits(right), "does not wait", WITHIN_S)
            time.sleep(WATCHED_S)
            assert not right.loops()
            assert len(ahead.loops()) == 1
            assert upfs.knobs() == moved
    cluster.kubectl("-n", NAMESPACE, "delete", "sls", "video")
    assert upfs.knobs() == before


def test_an_agent_that_is_an_hour_ahead_does_not_take_a_lease_that_is_held(
    cluster: Cluster, upfs: PodUpfs, access: Path, library: Path
) -> None:
    """To its clock nobody has renewed it for an hour."""
    before = upfs.knobs()
    with agent(cluster, access) as right:
        cluster.kubectl("apply", given=slice_set(count=COUNT))
        until(lambda: condition(reported(cluster), "Controlled") == ("True", "Live"), f"{reported(cluster)}", WITHIN_S)
        with agent(cluster, access, "other", environment=off_by(library, HOUR_S)) as ahead:
            until(lambda: waits(ahead), "does not wait", WITHIN_S)
            assert hours_off(ahead) == pytest.approx(1.0, abs=0.1)
            time.sleep(WATCHED_S)
            assert not ahead.loops()
            assert len(right.loops()) == 1
            right.stop()
            until(lambda: len(ahead.loops()) == 1, "does not take over", TAKEN_S)
    cluster.kubectl("-n", NAMESPACE, "delete", "sls", "video")
    until(lambda: upfs.knobs() == before, f"{before} became {upfs.knobs()}", WITHIN_S)


def test_an_agent_that_is_a_day_behind_says_what_it_does_not_believe_and_moves_nothing(
    cluster: Cluster, upfs: PodUpfs, access: Path, library: Path
) -> None:
    """The server's certificate is not valid yet, by its clock."""
    before = upfs.knobs()
    with agent(cluster, access, environment=off_by(library, -24 * HOUR_S)) as behind:
        cluster.kubectl("apply", given=slice_set(count=COUNT))
        until(
            lambda: any("certificate is not yet valid" in line["event"] for line in behind.lines()),
            f"{behind.lines()}",
            WITHIN_S,
        )
        time.sleep(5.0)
        assert not behind.loops()
        assert upfs.knobs() == before
        assert len(behind.lines()) < 10, "it goes on trying, and does not go on about it"
    cluster.kubectl("-n", NAMESPACE, "delete", "sls", "video")
