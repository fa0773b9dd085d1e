"""A Kubernetes cluster: SliceSets, and the agent that runs a loop for them on its node.

The API is spoken by the agent's process alone. A loop is a `slicepilot run` of its own, which knows of no cluster.
"""
