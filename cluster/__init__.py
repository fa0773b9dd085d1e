"""Kubernetes: SliceSets, and the agent that runs their control loops on a node.

The API is spoken by the agent's process alone. A loop is a `slicepilot run` of its own, which knows of no cluster.
"""
