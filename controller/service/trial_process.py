"""Tries a policy's model out: ``python -m slicepilot.controller.service.trial_process``, started by `trial`.

It is unknown what the model does, so this process runs as ``nobody``, without capabilities, can open no file, socket or
process, and has limits on CPU time and memory. It reads the model from standard input, runs it as the controller would,
and prints the result as a line of JSON.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from typing import Any

from slicepilot.controller.system import privileges
from slicepilot.controller.system.bpf.libc import PR_SET_NO_NEW_PRIVS, PR_SET_PDEATHSIG, prctl

MOST_CPU_S = 5
MOST_MEMORY_BYTES = 512 << 20
"""Limits, added to what start-up used."""
DECISIONS = 5


def main() -> int:
    """Returns the exit status."""
    parent = os.getppid()
    prctl(PR_SET_NO_NEW_PRIVS, 1)  # for the threads that onnxruntime starts when it is imported, too
    # Everything is imported while files may be opened.
    import numpy.random  # noqa: F401 (which NumPy imports at its first use)
    import onnxruntime  # noqa: F401 (for `_try_out`)

    from slicepilot.agents.runtime import session  # noqa: F401

    privileges.drop_all()
    _give_up_the_rest()
    if os.getppid() != parent:
        return 1
    head, model = sys.stdin.buffer.readline(), sys.stdin.buffer.read()
    try:
        answer = _try_out(model, **json.loads(head))
    except (ValueError, MemoryError) as error:
        answer = {"refused": f"{error}" or "more memory than there is for a policy"}
    print(json.dumps(answer), flush=True)
    return 0


def _give_up_the_rest() -> None:
    """Give up what a process without privileges can still do."""
    # Sent when the thread that started this ends; a change of user would have undone it.
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    cpu_s = int(time.process_time()) + 1 + MOST_CPU_S
    used_bytes = _pages() * resource.getpagesize()
    for limit, value in (
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_AS, used_bytes + MOST_MEMORY_BYTES),
        (resource.RLIMIT_NOFILE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))


def _pages() -> int:
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 (proc_pid_statm(5))
        return int(file.read().split()[0])


def _try_out(model: bytes, shape: list[int], actions: int) -> dict[str, Any]:
    """Use a model as the controller does.

    Returns:
        ``decision_s``, the CPU time of a decision, in seconds.

    Raises:
        OnnxError, ValueError: it is refused, or cannot be run.
    """
    import numpy as np

    from slicepilot.agents.runtime.allowed import OnnxError
    from slicepilot.agents.runtime.session import OUTPUT_NAME, open_session, ports_of

    lanes, slices, columns = shape
    session = open_session(model, columns, actions)
    ports = ports_of(session, columns, actions)
    expected = ports.taken(np.empty((lanes, slices, actions), np.float32)).shape
    rng = np.random.default_rng(0)
    took_s = []
    for _ in range(DECISIONS):
        table = rng.uniform(0.0, 1.0, shape).astype(np.float32)
        start_s = time.thread_time()
        try:
            action: Any = session.run([ports.output], {ports.input: ports.given(table)})[0]
        except Exception as error:  # onnxruntime raises a dozen types of its own
            raise OnnxError(f"a decision fails: {str(error).splitlines()[0][:200]}") from error
        took_s.append(time.thread_time() - start_s)
        if action.shape != expected:
            raise OnnxError(f"{OUTPUT_NAME} of shape {action.shape}; expected {expected}")
    return {"decision_s": min(took_s)}


if __name__ == "__main__":
    sys.exit(main())
