"""With one slice hostile the others carry what they carry without the attack, the node stays at level NORMAL and the
controller in time. SLICEPILOT_THOROUGH=1 tries all attacks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicepilot.controller.contracts.modes import Level
from slicepilot.testbed.lifecycle.testbed import missing
from tests.effort import THOROUGH

from .hostile.attacks import ATTACKS, Attack
from .hostile.rig import COUNT, MBPS, Rig, Window

pytestmark = [
    pytest.mark.realtime,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces, cgroups, BPF"),
    pytest.mark.skipif(bool(missing()), reason=f"this machine lacks {'; '.join(missing())}"),
]

SECONDS = 2.0
SEVERAL_TASKS_S = 4.0  # what is done beside the loop is done about once a second
OFFERED_MBPS = (COUNT - 1) * MBPS
LEAST_CARRIED, MOST_LONGER_MS, MOST_LATE_PCT = 0.9, 15.0, 5.0
# So many turns have to be as stated, of so many at most: an attack that works does so each time, and other load of this
# machine does not.
GOOD_TURNS, MOST_TURNS = 2, 5
QUICK = {"small packets", "wrong TEID", "UPF spins", "UPF stops", "own packets"}


@pytest.fixture(scope="module", name="rig")
def _rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with Rig(tmp_path_factory.mktemp("hostile"), "queue-greedy") as rig:
        yield rig


def test_no_thread_of_the_controller_waits_for_a_cpu_with_the_interpreter_in_hand(rig: Rig) -> None:
    """A hostile UPF keeps ordinary threads from the CPU for hundreds of milliseconds: none of them may ever run."""
    tasks = Path(f"/proc/{rig.controller.process.pid}/task")
    before = _switches(tasks)
    time.sleep(SEVERAL_TASKS_S)
    ran = {thread for thread, count in _switches(tasks).items() if count != before.get(thread)}
    # Apart from the first: the thread that counts evidence, and those that look after shapers and measuring points.
    assert len(ran) > 3
    assert {os.sched_getscheduler(thread) & ~os.SCHED_RESET_ON_FORK for thread in ran} == {os.SCHED_FIFO}


def _switches(tasks: Path) -> dict[int, int]:
    """How often each thread has left a CPU."""
    result = {}
    for task in tasks.iterdir():
        status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
        result[int(task.name)] = int(status["voluntary_ctxt_switches"]) + int(status["nonvoluntary_ctxt_switches"])
    return result


def measure(rig: Rig, attack: Attack, attack_first: bool) -> tuple[Window, Window]:
    """With the attack, and without: then the same packets are sent to where no UPF is."""
    windows = {}
    for real in (True, False) if attack_first else (False, True):
        rig.calm()
        with attack.before(rig, real):
            windows[real] = rig.window(SECONDS, attack.during(rig, real))
    return windows[True], windows[False]


def happened(name: str, attacked: Window) -> bool:
    """Whether the hostile slice itself shows what it has done."""
    if name == "own packets":
        return attacked.hostile_safe_pct > 50.0
    if name in {"UPF stops", "UPF restarts", "UPF burns", "UPF spins", "small packets", "overload"}:
        return attacked.hostile_mbps < 0.95 * MBPS
    return True


def faults(attacked: Window, without: Window) -> list[str]:
    """What is not as stated."""
    stated = {
        "nothing to lose": without.carried_mbps > LEAST_CARRIED * OFFERED_MBPS,
        "carried": attacked.carried_mbps > LEAST_CARRIED * without.carried_mbps,
        "p99": attacked.p99_ms < without.p99_ms + MOST_LONGER_MS,
        "late": attacked.late_pct < without.late_pct + MOST_LATE_PCT,
        "others safe": attacked.others_safe_pct == 0.0,
        "level": attacked.level is Level.NORMAL,
    }
    return [name for name, so in stated.items() if not so]


@pytest.mark.parametrize(
    "attack", [pytest.param(item, id=item.name) for item in ATTACKS if THOROUGH or item.name in QUICK]
)
def test_the_others_notice_nothing(rig: Rig, attack: Attack) -> None:
    good, reported = 0, []
    for turn in range(MOST_TURNS):
        attacked, without = measure(rig, attack, bool(turn % 2))
        assert happened(attack.name, attacked), attacked
        wrong = faults(attacked, without)
        reported.append((wrong, attacked, without))
        good += not wrong
        if good == GOOD_TURNS:
            return
    pytest.fail("\n".join(map(str, reported)))
