"""``python -m slicepilot.cluster.loops.child PARENT ARGUMENT...``: `slicepilot` with these arguments, sent SIGTERM when
its parent ends.

The kernel sends the signal (PR_SET_PDEATHSIG, prctl(2)), also if the parent was killed: a loop without an agent
restores its knobs. The setting survives execve(2) and the loss of capabilities, and not a change of user.
"""

from __future__ import annotations

import os
import signal
import sys

from slicepilot.controller.system.bpf.libc import PR_SET_PDEATHSIG, prctl
from slicepilot.controller.system.own_programs import python


def main() -> None:
    """Become the command."""
    parent, *arguments = sys.argv[1:]
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # it had ended before
        sys.exit(128 + signal.SIGTERM)
    os.execv(sys.executable, [*python("slicepilot.cli"), *arguments])


if __name__ == "__main__":
    main()
