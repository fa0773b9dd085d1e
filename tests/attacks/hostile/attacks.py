"""Attacks of a slice by its UEs, its UPF and its load, which must not affect the other slices."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from slicepilot.controller.system.processes import start_ticks
from tests.node.traffic import ending

from .packets import flooding, spoofed
from .rig import HOSTILE, NOWHERE, NOWHERE_UPF, SINK, UPLINK_MBPS, Rig

FLOOD_PER_S = 10_000  # packets; a UPF of the rig can do 7,500 with a CPU of its own
SMALL_BYTES = 100
SENDERS = 60_000
SPIN_THREADS = 4
CHURNERS, LEAST_CHURN = 2, 10  # processes; devices made in a window, at least
BURN_NS = 2_000_000
BURST_S, REST_S = 0.6, 0.4
STOP_S = 0.5
OWN_MBPS = 1.75 * UPLINK_MBPS
ROOT = Path(__file__).parents[3]
Play = Callable[[Rig, bool], AbstractContextManager[object]]
"""What is done, given whether it is the attack or the run that it is compared with."""


@contextlib.contextmanager
def _nothing(rig: Rig, real: bool) -> Iterator[None]:
    del rig, real
    yield


@dataclass(frozen=True)
class Attack:
    """One of them.

    Attributes:
        name: in tables.
        during: goes on while the others are measured; without the attack it does as much on the RAN's side.
        before: is made ready before, in either case.
    """

    name: str
    during: Play = _nothing
    before: Play = _nothing


def _small(rig: Rig, real: bool) -> AbstractContextManager[None]:
    return rig.also_sending(_small_flow(rig, real))


def _spoofed(rig: Rig, real: bool) -> AbstractContextManager[None]:
    return rig.also_sending(_small_flow(rig, real, ue="10.61.1.2"))


def _wrong_tunnel(rig: Rig, real: bool) -> AbstractContextManager[None]:
    return rig.also_sending(_small_flow(rig, real, teid=0xDEAD))


def _small_flow(rig: Rig, real: bool, **more: object) -> dict[str, object]:
    mbps = 8e-6 * SMALL_BYTES * FLOOD_PER_S
    return rig.flow(HOSTILE, 100, mbps, real, packet_bytes=SMALL_BYTES, **more)


def _many_senders(rig: Rig, real: bool) -> AbstractContextManager[object]:
    packets = [spoofed(number, HOSTILE, SINK.partition(":")[0]) for number in range(SENDERS)]
    source, target = (f"10.210.{HOSTILE}.1", f"10.210.{HOSTILE}.2") if real else (NOWHERE, NOWHERE_UPF)
    return flooding(rig.ran, source, target, packets, FLOOD_PER_S)


def _overload(rig: Rig, real: bool) -> AbstractContextManager[None]:
    return rig.also_sending(rig.flow(HOSTILE, 100, UPLINK_MBPS, real))


def _bursts(rig: Rig, real: bool) -> AbstractContextManager[None]:
    on_off = {"kind": "onoff", "on_s": BURST_S, "off_s": REST_S, "phase_s": 0.0}
    return rig.also_sending(rig.flow(HOSTILE, 100, UPLINK_MBPS, real, **on_off))


@contextlib.contextmanager
def _spins(rig: Rig, real: bool) -> Iterator[None]:
    """Threads in the UPF's group that do nothing but take the CPU."""
    group = rig.foreign.group(HOSTILE) / "cgroup.procs"
    with contextlib.ExitStack() as undo:
        for _ in range(SPIN_THREADS if real else 0):
            spin = ["sh", "-c", f"echo 0 >{group} && while :; do :; done"]
            undo.enter_context(ending(subprocess.Popen(spin)))
        yield


@contextlib.contextmanager
def _burns(rig: Rig, real: bool) -> Iterator[None]:
    """Another UPF program, which burns twenty times as much CPU time on each packet."""
    _restart(rig, **({"BURN_NS": str(BURN_NS)} if real else {}))
    rig.until_carried(1.0)
    try:
        yield
    finally:
        if real:
            _restart(rig)


def _restart(rig: Rig, **environment: str) -> None:
    rig.foreign.stop_upf(HOSTILE)
    rig.foreign.start_upf(HOSTILE, **environment)


@contextlib.contextmanager
def _again_and_again(step: Callable[[], None], every_s: float, real: bool) -> Iterator[None]:
    """Do something now, and then after every so many seconds, by a thread."""
    ended = threading.Event()

    def act() -> None:
        while not ended.is_set():
            step()
            ended.wait(every_s)

    thread = threading.Thread(target=act)
    if real:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if real:
            thread.join()


@contextlib.contextmanager
def _stops(rig: Rig, real: bool) -> Iterator[None]:
    """SIGSTOP for half of each second."""
    pid = rig.foreign.pid(HOSTILE)

    def step() -> None:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(STOP_S)
        os.kill(pid, signal.SIGCONT)

    with _again_and_again(step, STOP_S, real):
        yield


@contextlib.contextmanager
def _restarts(rig: Rig, real: bool) -> Iterator[None]:
    with _again_and_again(lambda: _restart(rig), 1.0, real):
        yield
    assert start_ticks(rig.foreign.pid(HOSTILE)) is not None


@contextlib.contextmanager
def _own_packets(rig: Rig, real: bool) -> Iterator[None]:
    """More than the uplink can carry, of its UE's address, past the shaper; by a process in the UPF's group."""
    links = subprocess.run(
        ["ip", "-n", rig.outside, "-json", "link", "show", "br0"], check=True, capture_output=True, text=True
    )
    [bridge] = json.loads(links.stdout)
    where = ["n6", f"10.61.{HOSTILE}.2", SINK.partition(":")[0], bridge["address"], f"{OWN_MBPS:g}"]
    program = [sys.executable, "-m", "tests.attacks.hostile.own_packets", *where]
    join = ["sh", "-c", 'echo 0 >"$0" && exec "$@"', str(rig.foreign.group(HOSTILE) / "cgroup.procs")]
    command = [*join, "ip", "netns", "exec", rig.foreign.netns[HOSTILE - 1], *program]
    with contextlib.ExitStack() as undo:
        if real:
            undo.enter_context(ending(subprocess.Popen(command, cwd=ROOT)))
            rig.until_carried(OWN_MBPS / 1.2)
        yield


@contextlib.contextmanager
def _devices(rig: Rig, real: bool) -> Iterator[None]:
    """Makes and removes network devices without end: the kernel has one lock for those of all namespaces."""
    churn = "while :; do ip link add churn type veth peer name nruhc; ip link delete churn; done"
    join = ["sh", "-c", 'echo 0 >"$0" && exec "$@"', str(rig.foreign.group(HOSTILE) / "cgroup.procs")]
    before = _next_index(rig)
    with contextlib.ExitStack() as undo:
        for _ in range(CHURNERS if real else 0):
            command = [*join, "ip", "netns", "exec", rig.foreign.netns[HOSTILE - 1], "sh", "-c", churn]
            undo.enter_context(ending(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)))
        yield
    assert not real or _next_index(rig) > before + LEAST_CHURN, "no devices were made"


def _next_index(rig: Rig) -> int:
    """What the next device of the hostile namespace is numbered, which says how many there have been."""
    ip = ["ip", "-n", rig.foreign.netns[HOSTILE - 1], "-json"]
    subprocess.run([*ip[:3], "link", "add", "probe", "type", "veth", "peer", "name", "eborp"], check=True)
    shown = subprocess.run([*ip, "link", "show", "probe"], check=True, capture_output=True)
    subprocess.run([*ip[:3], "link", "delete", "probe"], check=True)
    return int(json.loads(shown.stdout)[0]["ifindex"])


ATTACKS = (
    Attack("small packets", _small),
    Attack("spoofed source", _spoofed),
    Attack("wrong TEID", _wrong_tunnel),
    Attack("many senders", _many_senders),
    Attack("overload", _overload),
    Attack("bursts", _bursts),
    Attack("UPF spins", _spins),
    Attack("UPF burns", before=_burns),
    Attack("UPF stops", _stops),
    Attack("UPF restarts", _restarts),
    Attack("device churn", _devices),
    Attack("own packets", before=_own_packets),
)
