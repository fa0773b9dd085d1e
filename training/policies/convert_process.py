"""Converts a file of Stable-Baselines3 to ONNX: ``python -m slicepilot.training.policies.convert_process``.

Started by `sb3_bundles`, with a line of JSON and the file's bytes on standard input. It answers with a line of JSON,
``refused`` or what is known of the policy, and the model's bytes behind it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys

from slicepilot.agents.learned.policy_names import PolicyName
from slicepilot.configs import ConfigError
from slicepilot.controller.system import privileges
from slicepilot.controller.system.bpf.libc import PR_SET_NO_NEW_PRIVS, PR_SET_PDEATHSIG, prctl


def main() -> int:
    """Returns the exit status."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)  # before there are threads
    import encodings.cp437  # noqa: F401 (of names in ZIP archives)

    import stable_baselines3  # noqa: F401 (all of its policies)
    import torch

    with contextlib.suppress(ModuleNotFoundError):
        import sb3_contrib  # noqa: F401

    from .sb3_bundles import Sb3Source
    from .sb3_export import sb3_to_onnx, warm_up
    from .sb3_files import load_sb3

    torch.set_num_threads(1)
    if os.geteuid() == 0:
        warm_up()  # what is imported on the way may be in a folder that only root can read
        privileges.drop_all()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # which a change of user takes back
    head = json.loads(sys.stdin.buffer.readline())
    model, statistics = (sys.stdin.buffer.read(count) for count in head["bytes"])
    name = PolicyName.parse(head["policy"])
    try:
        policy = load_sb3(Sb3Source(name, model, statistics or None))
        exported, agreement = sb3_to_onnx(policy, name.what)
    except ConfigError as error:
        sys.stdout.buffer.write(json.dumps({"refused": str(error)}).encode() + b"\n")
        return 0
    answer = {"facts": policy.facts, "agreement": dataclasses.asdict(agreement)}
    sys.stdout.buffer.write(json.dumps(answer, default=str).encode() + b"\n" + exported)
    return 0


if __name__ == "__main__":
    sys.exit(main())
