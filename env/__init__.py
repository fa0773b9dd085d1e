"""What an agent sees and does. Importing it registers ``slicepilot/SliceControl-v0`` with Gymnasium."""

import gymnasium as _gym

ENV_ID = "slicepilot/SliceControl-v0"

if ENV_ID not in _gym.registry:
    _gym.register(ENV_ID, entry_point="slicepilot.env.slice_env:SliceEnv")
