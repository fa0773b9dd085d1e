"""``slicepilot k8s status``."""

from typing import Literal

from slicepilot.configs.documents import Document


class ClusterAgent(Document):
    """The agent of a node."""

    node: str | None
    pod: str
    ready: bool
    highest_mode: Literal["shadow", "canary", "live"]
    """The highest mode that it allows a SliceSet."""
    image: str | None
    restarts: int
    trouble: str
    """Why it is not ready; empty where it is, or nothing is known."""


ClusterCondition = dict[Literal["type", "status", "reason", "message"], str]


class ClusterSliceSet(Document):
    """A SliceSet on all nodes together."""

    namespace: str
    name: str
    mode: str
    """The declared mode."""
    nodes: int
    slices: int
    kept: str | None
    """Slices whose promise is kept, of all slices."""
    conditions: list[ClusterCondition]


class ClusterSlice(Document):
    """A slice on a node."""

    name: str
    pod: str | None
    kept: bool | None
    """Whether its promise is kept; null before the first measurement."""
    p99_ms: float | None


class ClusterNode(Document):
    """A SliceSet on a node."""

    namespace: str
    slice_set: str | None
    node: str | None
    mode: str | None
    """The actual mode; null where no loop runs."""
    agent: str | None
    kept: str | None
    """Slices whose promise is kept, of all slices."""
    conditions: list[ClusterCondition]
    slices: list[ClusterSlice]


class Overview(Document):
    """An installation."""

    namespace: str
    """The namespace of the agents."""
    agents: list[ClusterAgent]
    slice_sets: list[ClusterSliceSet]
    nodes: list[ClusterNode]
