"""Cilium's entry after its controller was killed: the original rate comes back, by a confined process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slicepilot.controller.system.confinement import without_seccomp
from tests.controller.watchdog.test_supervisor import IMPORTS, Script, restored, wait_for

from .machine import ENDPOINT, ORIGINAL, Agent, Pod, untyped_map, value_of

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: BPF maps, network namespaces"),
    pytest.mark.skipif(bool(without_seccomp()), reason=without_seccomp() or "none"),
]
CONTROLLER = """
from slicepilot.controller.actuators.cilium.choice import CiliumPaths
state, netns, pin, folder = map(Path, sys.argv[1:])
target = SliceTargets("a", None, "eth0", netns, cilium=CiliumPaths(pin, folder))
state.mkdir(exist_ok=True)
recovered = recover(state)
ring = TickRing(state.with_name(f"{state.name}-ticks"), 1, 16)
keeper = JournalKeeper(state, [target])
supervisor = SupervisorHandle(keeper, ring.path, [])
def renew(target):
    keeper.renew(target)
    supervisor.follow()
node = NodeActuator([target], remember=keeper.remember, renew=renew, pacing=keeper.pacing)
knobs = Knobs.none(1)
knobs.values[2] = 10
telemetry, nothing = Telemetry.empty(1), np.zeros(1, np.uint32)
receipt = node.apply(knobs)
print(json.dumps({"error": receipt.error, "recovered": recovered, **supervisor.facts}), flush=True)
pid = supervisor.facts["pid"]
while True:
    ring.write(Tick(monotonic_ns=time.monotonic_ns()), telemetry, knobs, knobs, knobs, nothing)
    node.deviations()
    node.refresh()
    receipt = node.apply(knobs)
    if supervisor.facts["pid"] != pid and receipt.error is None:
        pid = supervisor.facts["pid"]
        print(json.dumps(supervisor.facts), flush=True)
    time.sleep(0.02)
"""
# What a process that was taken over there could try: its rules, and a map that is open.
CALLS = """
import ctypes, errno, json, os, struct, sys
from pathlib import Path
from slicepilot.controller.actuators.cilium.layout import key_of
from slicepilot.controller.actuators.cilium.throttle import ThrottleMap
from slicepilot.controller.system.bpf.pinned import type_data
from slicepilot.controller.system.confinement import NUMBERS, confine_supervisor
maps, pin = sys.argv[1] == "maps", Path(sys.argv[2])
throttle = ThrottleMap(pin)
confine_supervisor(maps)
number = NUMBERS[os.uname().machine]["bpf"]
libc = ctypes.CDLL(None, use_errno=True)
answers = {}
for command in range(40):
    if command not in (1, 2):
        libc.syscall(number, command, ctypes.create_string_buffer(128), 128)
        answers[command] = ctypes.get_errno()
def attempt(action):
    try:
        return action()
    except Exception as error:
        return str(error)
answers["lookup"] = attempt(lambda: throttle.entry(1234).bytes_per_s)
answers["replace"] = attempt(lambda: throttle.replace(1234, throttle.value(1234)))
answers["open"] = attempt(lambda: ThrottleMap(pin) and "opened")
print(json.dumps(answers))
"""


def started(agent: Agent, pod: Pod, state: Path) -> Script:
    arguments = map(str, (state, pod.netns, agent.paths.pin, agent.paths.state))
    return Script(sys.executable, "-c", IMPORTS + CONTROLLER, *arguments)


def until(agent: Agent, value: bytes) -> float:
    """How long it took for the entry to be this."""
    return wait_for(lambda: agent.read(ENDPOINT) == value)


def test_a_killed_controllers_rate_comes_back(paced: Agent, pod: Pod, tmp_path: Path) -> None:
    controller = started(paced, pod, tmp_path / "run")
    assert controller.facts["confined"] == "seccomp"
    assert paced.read(ENDPOINT) == value_of(1_250_000, 77, prio=9)
    controller.close()
    took_s = until(paced, ORIGINAL)
    assert took_s < 1
    report = restored(tmp_path / "run")
    assert report["restored"] == ["a: Cilium's endpoint 1234: 10 Mbit/s -> 50 Mbit/s"]
    assert report["failed"] == []


@pytest.mark.parametrize("what", ["entry", "pod"])
def test_what_is_gone_is_reported_and_no_failure(paced: Agent, pod: Pod, tmp_path: Path, what: str) -> None:
    controller = started(paced, pod, tmp_path / "run")
    os.kill(controller.supervisor, 19)  # the supervisor sleeps until both are as another controller would see them
    paced.delete(ENDPOINT)
    if what == "pod":
        pod.close()
        paced.write(ENDPOINT, value_of(9_000_000))  # of another pod, whose endpoint has the number now
    controller.close()
    os.kill(controller.supervisor, 18)
    report = restored(tmp_path / "run")
    assert report["restored"] == report["failed"] == []
    [gone] = report["gone"]
    assert gone.startswith("a: ")
    if what == "entry":
        assert "its entry is gone" in gone
    else:  # a controller that was quick has seen its link go first, and looked again at what is left
        assert "its pod is gone" in gone or gone.startswith("a: eth0 in ")
    if what == "pod":
        assert paced.read(ENDPOINT) == value_of(9_000_000)


def test_a_map_that_is_made_anew_meanwhile_is_followed(paced: Agent, pod: Pod, tmp_path: Path) -> None:
    """Cilium's agent makes its map anew where its size has changed; the supervisor could open none any more."""
    controller = started(paced, pod, tmp_path / "run")
    first = controller.supervisor
    descriptor = untyped_map()
    paced.pin(descriptor)
    paced.write(ENDPOINT, ORIGINAL)
    assert controller.next_line()["pid"] != first
    until(paced, value_of(1_250_000, 77, prio=9))
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    controller.close()
    until(paced, ORIGINAL)
    restored(tmp_path / "run")
    os.close(descriptor)


@pytest.mark.parametrize("maps", [True, False])
def test_a_supervisor_may_do_no_more_with_bpf_than_it_has_to(paced: Agent, maps: bool) -> None:
    command = [sys.executable, "-c", CALLS, "maps" if maps else "none", str(paced.paths.pin)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    answers = json.loads(done.stdout)
    commands = {name: code for name, code in answers.items() if name.isdecimal()}
    assert len(commands) == 38
    assert set(commands.values()) == {1}, "EPERM, before the kernel looks at the arguments"
    assert "EPERM" in answers["open"]
    if maps:
        assert (answers["lookup"], answers["replace"]) == (6_250_000, True)
    else:
        assert "EPERM" in answers["lookup"]
