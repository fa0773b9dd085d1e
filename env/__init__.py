"""What agents see and do: slices, telemetry, knobs, rewards, and the contract of backends.

Importing this package registers ``slicepilot/SliceControl-v0`` with Gymnasium, and ``slicepilot/SliceControlLive-v0``
for real UPFs: those of the testbed or, with ``node``, of a node. If SLICEPILOT_WITHOUT_GYMNASIUM is set, it registers
nothing, which saves 5 MiB in each process of a controller.
"""

import os as _os

ENV_ID = "slicepilot/SliceControl-v0"
LIVE_ENV_ID = "slicepilot/SliceControlLive-v0"


def _register() -> None:
    import gymnasium as gym

    if ENV_ID not in gym.registry:
        gym.register(
            ENV_ID,
            entry_point="slicepilot.env.environments.slice_env:SliceEnv",
            vector_entry_point="slicepilot.env.environments.slice_env:make_vector_env",
        )
        gym.register(
            LIVE_ENV_ID,
            entry_point="slicepilot.env.environments.slice_env:SliceEnv",
            kwargs={"backend": "testbed", "scenario": "testbed-contention"},
            nondeterministic=True,
        )


if "SLICEPILOT_WITHOUT_GYMNASIUM" not in _os.environ:
    _register()
