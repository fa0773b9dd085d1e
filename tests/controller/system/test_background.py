"""What runs beside the loop: threads just behind it, processes behind all others."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slicepilot.controller.system.background import BackgroundCaller
from slicepilot.controller.system.realtime import ThreadBesideTheLoop, on_time

IN_BACKGROUND = """
import os, sys
from pathlib import Path
adjusted = Path("/proc/self/oom_score_adj")
adjusted.write_text(sys.argv[1])
from slicepilot.controller.system import privileges
from slicepilot.controller.system.realtime import stay_in_the_background
if sys.argv[2] == "drop":
    privileges.drop_all("nobody")
stay_in_the_background(off_cpu=0)
print(adjusted.read_text().strip(), os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0) == os.SCHED_BATCH)
"""


@pytest.mark.parametrize(("given", "then", "expected"), [("0", "keep", "500"), ("900", "drop", "900")])
def test_a_score_that_may_not_be_lowered_stays(given: str, then: str, expected: str) -> None:
    """As in a Burstable pod, of which a runtime with CAP_SYS_RESOURCE has set the floor."""
    if then == "drop" and os.geteuid() != 0:
        pytest.skip("needs root: another user may not lower the score")
    done = subprocess.run(
        [sys.executable, "-c", IN_BACKGROUND, given, then], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == [expected, "10", "True"]
    assert Path("/proc/self/oom_score_adj").read_text().strip() != "900"


class Noting(ThreadBesideTheLoop):
    def run(self) -> None:
        self.first = os.sched_getscheduler(0)
        super().run()


class NotingCaller(BackgroundCaller):
    def _begin(self) -> None:
        self.first = os.sched_getscheduler(0)
        super()._begin()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a real-time loop")
def test_a_thread_that_the_loop_starts_is_never_an_ordinary_one() -> None:
    """It begins with the interpreter in hand: behind UPFs of nice -20 the loop would wait for it 0.1 s and more."""
    with on_time() as chosen:
        if chosen.name != "SCHED_FIFO":
            pytest.skip(str(chosen))
        thread, caller = Noting(lambda: None, "beside"), NotingCaller("calls", 1.0)
        thread.start()
        caller.call_and_wait(lambda: None)
        again = os.sched_getscheduler(0)
    thread.join()
    caller.close()
    assert (thread.first, caller.first) == (os.SCHED_FIFO, os.SCHED_FIFO)
    assert again == os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, "processes that are started stay ordinary"
