"""Commands end when they are asked to, whatever they are at, and put away what they have made."""

import signal
import subprocess
import sys
import textwrap

import pytest

FORKED = """
import os, signal, sys, time
from slicepilot.cli.shared.endings import put_away_when_ended

put_away_when_ended()
ready, told = os.pipe()
try:
    child = os.fork()
    if child == 0:
        os.write(told, b"!")
        time.sleep(60)
    os.read(ready, 1)
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
finally:
    print("put away", flush=True)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_child_that_is_ended_leaves_its_parents_things_alone() -> None:
    result = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (143, "put away\n")


IN_A_CALLBACK = """
import ctypes, os, sys, time
from slicepilot.cli.shared.endings import put_away_when_ended

put_away_when_ended()
ended = []

@ctypes.CFUNCTYPE(None)
def told():
    ended.append(None)
    os.kill(os.getpid(), int(sys.argv[1]))
    for _ in range(10):  # here the signal is handled
        pass

try:
    told()
    print("called", len(ended), flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    sys.exit(130)
finally:
    print("put away", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_a_callback_from_c_is_not_lost(number: signal.Signals) -> None:
    command = [sys.executable, "-c", IN_A_CALLBACK, str(int(number))]
    result = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (result.returncode, result.stdout) == (128 + number, "called 1\nput away\n")
    assert result.stderr == ""


FORKED_IN_A_CALLBACK = """
import ctypes, os, signal, time
from slicepilot.cli.shared.endings import put_away_when_ended

put_away_when_ended()

@ctypes.CFUNCTYPE(None)
def told():
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(10):  # here the signal is handled
        pass

child = os.fork()
if child == 0:
    try:
        told()
        time.sleep(20)
    except KeyboardInterrupt:
        os._exit(7)
    os._exit(0)
_, status = os.waitpid(child, 0)
print("child", os.waitstatus_to_exitcode(status), flush=True)
"""


def test_a_signal_lost_in_a_forked_child_is_sent_to_the_child() -> None:
    command = [sys.executable, "-c", FORKED_IN_A_CALLBACK]
    result = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "child 7\n", "")


def test_other_exceptions_that_nobody_can_see_are_still_told() -> None:
    program = """
        from slicepilot.cli.shared.endings import put_away_when_ended

        class Broken:
            def __del__(self):
                raise ValueError("broken")

        put_away_when_ended()
        Broken()
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert result.returncode == 0
    assert "ValueError: broken" in result.stderr
