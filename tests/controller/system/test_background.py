"""A process in the background: behind all others, and alive where it may not lower its OOM score."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
