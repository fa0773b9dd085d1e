"""What a controller in shadow costs: writes to knobs, CPU time, the UPFs' throughput and delay beside it and without.

Writes are counted by the kernel (`WriteWatch`), throughput and delay by the load's own sink, CPU time by /proc: nothing
here comes from the controller.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from slicepilot.env.simulator.scenario import Scenario
from slicepilot.testbed.backend.backend import targets_of
from slicepilot.testbed.backend.traffic import LoadRun, flows_of
from slicepilot.testbed.lifecycle.testbed import Testbed

from .faults import publisher_pid
from .resources import Resources
from .rig import Rig
from .write_watch import Write, WriteWatch

PARTS = ("none", "shadow")
SETTLE_S = 5.0  # the publisher spends two seconds of CPU time on its imports


@dataclass
class ShadowBench:
    """All turns; per part and turn one figure.

    Attributes:
        carried_packets: of the priority slice and of the others, each a list by turn.
        delay_p99_us: of the priority slice's packets, at the sink.
        cpu_share: of one core, by turn: the loop's process and the publisher.
        writes: to knobs while in shadow; live_writes: in some seconds of acting, for comparison.
        shadow_s: seconds in shadow under load.
    """

    carried_packets: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: {part: {"priority": [], "others": []} for part in PARTS}
    )
    delay_p99_us: dict[str, list[float]] = field(default_factory=lambda: {part: [] for part in PARTS})
    cpu_share: dict[str, list[float]] = field(default_factory=lambda: {"loop": [], "publisher": []})
    writes: Counter[Write] = field(default_factory=Counter)
    live_writes: Counter[Write] = field(default_factory=Counter)
    shadow_s: float = 0.0


def bench_shadow(
    testbed: Testbed,
    scenario: Scenario,
    folder: Path,
    policy: dict[str, Any],
    turn_s: float,
    turns: int,
    advance: Callable[[str], None],
) -> ShadowBench:
    """Play a load again and again, without a controller and beside one in shadow, in turns and with the same seeds.

    Args:
        testbed: a running one.
        scenario: of the load, without its events.
        folder: for the controller's files.
        policy: ``{"bundle": PATH}`` or ``{"agent": NAME}``, and other fields of `RunConfig`.
        turn_s: length of a part.
        turns: of both parts.
        advance: told what comes next.
    """
    result = ShadowBench()
    with Rig(testbed, folder) as rig:
        for turn in range(turns):
            # Who comes first takes turns too: the machine's other work may have a trend.
            for part in PARTS if turn % 2 == 0 else PARTS[::-1]:
                advance(f"turn {turn + 1}: {part}")
                if part == "shadow":
                    _beside(rig, scenario, turn, turn_s, policy, result)
                else:
                    _play(testbed, scenario, turn, turn_s, part, result)
        advance("live, for comparison")
        with WriteWatch(targets_of(testbed)) as watch:
            rig.start("live", "--force", **policy)
            rig.stop()
        result.live_writes += watch.writes
    return result


def _beside(
    rig: Rig, scenario: Scenario, turn: int, turn_s: float, policy: dict[str, Any], result: ShadowBench
) -> None:
    with WriteWatch(targets_of(rig.testbed)) as watch:
        controller = rig.start("shadow", **policy)
        pids = {"loop": controller.pid, "publisher": publisher_pid(rig)}
        time.sleep(SETTLE_S)
        before, began_s = {name: Resources.of(pid).cpu_s for name, pid in pids.items()}, time.monotonic()
        _play(rig.testbed, scenario, turn, turn_s, "shadow", result)
        took_s = time.monotonic() - began_s
        for name, pid in pids.items():
            result.cpu_share[name].append((Resources.of(pid).cpu_s - before[name]) / took_s)
        rig.stop()
    result.shadow_s += took_s
    result.writes += watch.writes


def _play(testbed: Testbed, scenario: Scenario, turn: int, turn_s: float, part: str, result: ShadowBench) -> None:
    """One part; what its sink received."""
    load = LoadRun(testbed, scenario, turn)
    try:
        load.start()
        time.sleep(turn_s)
    finally:
        reports = load.stop()
    priority = testbed.slices.names[testbed.slices.priority_index]
    received = dict.fromkeys(("priority", "others"), 0.0)
    delays_us: list[float] = []
    for flow in flows_of(reports):
        mine = flow["flow"].startswith(f"{priority}/")
        received["priority" if mine else "others"] += flow["received_packets"]
        if mine:
            delays_us.append(flow["delay_p99_us"])
    for who, packets in received.items():
        result.carried_packets[part][who].append(packets)
    result.delay_p99_us[part].append(float(np.mean(delays_us)))
