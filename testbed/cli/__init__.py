"""The commands ``slicepilot testbed ...`` and ``slicepilot bench ...`` on real packets."""
