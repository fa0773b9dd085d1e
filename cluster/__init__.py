"""A Kubernetes cluster: SliceSets, and the agent that runs their loops on its node.

Only the agent's process talks to the API server. A loop is a `slicepilot run` process, which knows nothing of the
cluster.
"""
