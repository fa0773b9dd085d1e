"""Tries a policy out in a separate process before the controller runs it; see `trial_process`."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from typing import Any, NamedTuple

from slicepilot.agents.learned.bundle import PolicyBundle
from slicepilot.agents.learned.files import MODEL_FILE
from slicepilot.configs import ConfigError
from slicepilot.configs.text import on_a_line
from slicepilot.controller.system.own_programs import ROOT, python
from slicepilot.controller.system.realtime import let_others_go_first

MOST_S = 25.0
"""Time limit from start to answer, for a busy machine; less than a client waits."""
MOST_ANSWER_BYTES = 4096
SHOWN = 300


class Trial(NamedTuple):
    """What a policy has to do.

    Attributes:
        num_slices: of the node; default: the bundle's.
        period_s: control period, the limit of a decision's CPU time.
        off_cpu: the loop's CPU, which the trial does not use.
    """

    num_slices: int | None = None
    period_s: float = 1.0
    off_cpu: int | None = None


def try_out(bundle: PolicyBundle, trial: Trial | None = None) -> None:
    """Try a bundle's model out, by default on its own slices; the process is killed at the end.

    Raises:
        ConfigError: the model is refused, fails, or takes too much time or memory; it has not run here.
        OSError: the process cannot be started.
    """
    num_slices, period_s, off_cpu = trial or Trial()
    columns, actions = bundle.widths
    shape = 1, num_slices or len(bundle.slices), columns
    head = {"shape": shape, "actions": actions}
    where = f"{bundle}: {MODEL_FILE}"
    with contextlib.ExitStack() as undo:
        # A pipe would block if the process did not read.
        given = os.memfd_create("policy", os.MFD_CLOEXEC)
        undo.callback(os.close, given)
        with open(given, "wb", closefd=False) as file:
            file.write(json.dumps(head).encode() + b"\n" + bundle.model)
        os.lseek(given, 0, os.SEEK_SET)
        process = subprocess.Popen(
            python(f"{__package__}.trial_process"),
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        undo.callback(_end, process)
        let_others_go_first(process.pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended, or runs as another user by now
            if off_cpu is not None and (others := os.sched_getaffinity(0) - {off_cpu}):
                os.sched_setaffinity(process.pid, others)
        answer = _answer(process, where)
    if "refused" in answer:
        raise ConfigError(f"{where}: {on_a_line(str(answer['refused']), SHOWN)}")
    decision_s = answer.get("decision_s")
    if not isinstance(decision_s, float) or not decision_s <= period_s:
        raise ConfigError(
            f"{where}: takes {on_a_line(str(decision_s), SHOWN)} s of CPU time to decide; "
            f"expected at most a control period ({period_s:g} s)"
        )


def _answer(process: subprocess.Popen[bytes], where: str) -> dict[str, Any]:
    """The line that it writes; raises ConfigError if it is not valid, or not in time."""
    assert process.stdout is not None
    until_s, line = time.monotonic() + MOST_S, b""
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    while not line.endswith(b"\n") and len(line) <= MOST_ANSWER_BYTES:
        if not poll.poll(max(1e3 * (until_s - time.monotonic()), 0)):
            raise ConfigError(f"{where}: not tried out within {MOST_S:g} s")
        part = os.read(process.stdout.fileno(), MOST_ANSWER_BYTES)
        if not part:
            break
        line += part
    with contextlib.suppress(ValueError, RecursionError):
        answer = json.loads(line)
        if isinstance(answer, dict):
            return answer
    raise ConfigError(f"{where}: {_ending(process)}")


def _ending(process: subprocess.Popen[bytes]) -> str:
    """Why there is no answer."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        status = process.wait(1.0)
        if status == -signal.SIGKILL:  # past RLIMIT_CPU; or the OOM killer
            return "takes more CPU time, or memory, than a policy may"
        if status < 0:
            return f"its trial ended by {signal.Signals(-status).name}"
    return "its trial failed"


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
