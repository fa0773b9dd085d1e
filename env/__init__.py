"""What an agent sees and does.

Importing it registers ``slicepilot/SliceControl-v0`` with Gymnasium, and ``slicepilot/SliceControlLive-v0`` for real
UPFs, of the testbed or (with ``node``) of somebody else: the same environment, but no two runs of it are alike.
"""

import gymnasium as _gym

ENV_ID = "slicepilot/SliceControl-v0"

LIVE_ENV_ID = "slicepilot/SliceControlLive-v0"

if ENV_ID not in _gym.registry:
    _gym.register(ENV_ID, entry_point="slicepilot.env.environments.slice_env:SliceEnv")
    _gym.register(
        LIVE_ENV_ID,
        entry_point="slicepilot.env.environments.slice_env:SliceEnv",
        kwargs={"backend": "testbed", "scenario": "testbed-contention"},
        nondeterministic=True,
    )
