"""Commands end at a signal, whatever they are at, and remove what they have made."""

import contextlib
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slicepilot.cli.shared.endings import PATIENCE_S


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A program in an interpreter of its own."""
    command = [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


FORKED = """
import os, signal, sys, time
from slicepilot.cli.shared.endings import PATIENCE_S, end_in_c_code, unwind_on_signals

unwind_on_signals()
end_in_c_code()
ready, done = os.pipe()
try:
    child = os.fork()
    if child == 0:
        os.write(done, b"!")
        time.sleep(60)
    os.read(ready, 1)
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    time.sleep(2 * PATIENCE_S)  # the thread that listens would end this process by now
    print("goes on", flush=True)
finally:
    print("removed", flush=True)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_child_that_is_ended_leaves_its_parent_and_its_things_alone() -> None:
    result = run(FORKED)
    assert (result.returncode, result.stdout) == (143, "goes on\nremoved\n")


IN_A_CALLBACK = """
import ctypes, os, sys, time
from slicepilot.cli.shared.endings import unwind_on_signals

unwind_on_signals()
ended = []

@ctypes.CFUNCTYPE(None)
def callback():
    ended.append(None)
    os.kill(os.getpid(), int(sys.argv[1]))
    for _ in range(10):  # here the signal is handled
        pass

try:
    callback()
    print("called", len(ended), flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    sys.exit(130)
finally:
    print("removed", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_a_callback_from_c_is_not_lost(number: signal.Signals) -> None:
    result = run(IN_A_CALLBACK, int(number))
    assert (result.returncode, result.stdout) == (128 + number, "called 1\nremoved\n")
    assert result.stderr == ""


FORKED_IN_A_CALLBACK = """
import ctypes, os, signal, time
from slicepilot.cli.shared.endings import unwind_on_signals

unwind_on_signals()

@ctypes.CFUNCTYPE(None)
def callback():
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(10):  # here the signal is handled
        pass

child = os.fork()
if child == 0:
    try:
        callback()
        time.sleep(20)
    except KeyboardInterrupt:
        os._exit(7)
    os._exit(0)
_, status = os.waitpid(child, 0)
print("child", os.waitstatus_to_exitcode(status), flush=True)
"""


def test_a_signal_lost_in_a_forked_child_is_sent_to_the_child() -> None:
    result = run(FORKED_IN_A_CALLBACK)
    assert (result.returncode, result.stdout, result.stderr) == (0, "child 7\n", "")


WHILE_IT_IMPORTS = """
import contextlib, os, sys, time
print("imports", flush=True)
os.kill(os.getpid(), int(sys.argv[1]))
with contextlib.suppress(BaseException):  # as packages do while they look for an optional part
    time.sleep(20)
print("goes on", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_imports_that_catch_everything_end_at_once(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "greedy_package.py").write_text(WHILE_IT_IMPORTS)
    program = f"""
        import sys
        from slicepilot.cli.shared.endings import unwind_on_signals

        unwind_on_signals()
        sys.path.insert(0, {str(tmp_path)!r})
        import greedy_package
    """
    result = run(program, int(number))
    assert (result.returncode, result.stdout) == (128 + number, "imports\n")
    assert "Traceback" not in result.stderr


NEVER_COMES_BACK = """
import ctypes, sys
from slicepilot.cli.shared.endings import end_in_c_code, unwind_on_signals
from slicepilot.configs import outside

unwind_on_signals()
if sys.argv[1:] == ["made"]:
    outside.will_make("something")
end_in_c_code()
libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
print("ready", flush=True)
libc.pthread_mutex_lock(mutex)
libc.pthread_mutex_lock(mutex)  # waits for itself, whatever signals come
"""


@contextlib.contextmanager
def in_c_code(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose main thread waits for the mutex."""
    with subprocess.Popen([sys.executable, "-c", NEVER_COMES_BACK, *arguments], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            while "futex" not in Path(f"/proc/{process.pid}/wchan").read_text():
                time.sleep(0.01)
            time.sleep(0.1)  # past a wait for the interpreter's lock
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_c_code_that_does_not_come_back_is_ended(number: signal.Signals) -> None:
    with in_c_code() as process:
        began_s = time.monotonic()
        process.send_signal(number)
        assert process.wait(20.0) == 128 + number
        took_s = time.monotonic() - began_s
    assert PATIENCE_S <= took_s < PATIENCE_S + 2.0, "a busy machine may take its time"


def test_c_code_is_waited_for_where_something_is_to_be_put_away() -> None:
    with in_c_code("made") as process:
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2 * PATIENCE_S)


AFTER_THE_UNWINDING = """
import atexit, os, signal, sys, time
from slicepilot.cli.shared.endings import interrupted, unwind_on_signals

class Slow:  # as what PyTorch frees when the interpreter ends
    def __del__(self):
        time.sleep(20)

unwind_on_signals()
sys.slow = Slow()
atexit.register(print, "registered")
with interrupted():
    try:
        os.kill(os.getpid(), int(sys.argv[1]))
        time.sleep(20)
    finally:
        print("removed")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_registered_for_the_end_is_run_and_no_more(number: signal.Signals) -> None:
    began_s = time.monotonic()
    result = run(AFTER_THE_UNWINDING, int(number))
    assert (result.returncode, result.stdout) == (128 + number, "removed\nregistered\n")
    assert time.monotonic() - began_s < 10


def test_other_exceptions_that_nobody_can_see_are_still_reported() -> None:
    program = """
        from slicepilot.cli.shared.endings import unwind_on_signals

        class Broken:
            def __del__(self):
                raise ValueError("broken")

        unwind_on_signals()
        Broken()
    """
    result = run(program)
    assert result.returncode == 0
    assert "ValueError: broken" in result.stderr
