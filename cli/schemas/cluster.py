"""``slicepilot k8s status``: an installation on a Kubernetes cluster."""

from typing import Annotated, Literal

from slicepilot.configs.documents import Document, Example

from .shared import SliceName


class ClusterAgent(Document):
    """The agent of a node."""

    node: Annotated[str | None, Example("edge-1")]
    """Its node; null while it has none."""
    pod: Annotated[str, Example("slicepilot-agent-x7k2p")]
    """Its pod."""
    ready: bool
    """Whether it acts for its node."""
    highest_mode: Annotated[Literal["shadow", "canary", "live"], Example("shadow")]
    """The most that it lets a SliceSet do."""
    image: Annotated[str | None, Example("slicepilot-agent:0.1.0")]
    """That it runs."""
    restarts: int
    """Of its container."""
    trouble: Annotated[str, Example("ImagePullBackOff: Back-off pulling image")]
    """Why it is not ready; empty where it is, or nothing is known."""


class ClusterCondition(Document):
    """As the API has them."""

    type: Annotated[str, Example("Ready")]
    """What it is about."""
    status: Annotated[str, Example("True")]
    """True, False or Unknown."""
    reason: Annotated[str, Example("LoopRunning")]
    """In a word."""
    message: Annotated[str, Example("5 slices, queue-greedy")]
    """In a line; may be empty."""


class ClusterSliceSet(Document):
    """A SliceSet, all nodes together."""

    namespace: Annotated[str, Example("core")]
    """Its namespace."""
    name: Annotated[str, Example("video")]
    """Its name."""
    mode: Annotated[str, Example("live")]
    """That is declared."""
    nodes: int
    """That have pods of it."""
    slices: int
    """On all of them."""
    kept: Annotated[str | None, Example("5/5")]
    """Slices whose promise is kept, and all; null before anybody has said."""
    conditions: list[ClusterCondition]
    """Its own."""


class ClusterSlice(Document):
    """A slice on a node."""

    name: SliceName
    """The slice's name."""
    pod: Annotated[str | None, Example("upf-1-0")]
    """Its UPF's."""
    kept: bool | None
    """Whether its promise is kept; null where nothing is measured yet."""
    p99_ms: Annotated[float | None, Example(4.2)]
    """99th percentile of its delay from N3 to N6, ms; null where there is none."""


class ClusterNode(Document):
    """A SliceSet on one node."""

    namespace: Annotated[str, Example("core")]
    """Of the SliceSet."""
    slice_set: Annotated[str | None, Example("video")]
    """Its name."""
    node: Annotated[str | None, Example("edge-1")]
    """The node."""
    mode: Annotated[str | None, Example("live")]
    """What becomes of decisions now; null where no loop runs."""
    agent: Annotated[str | None, Example("queue-greedy")]
    """Who decides."""
    kept: Annotated[str | None, Example("5/5")]
    """Slices whose promise is kept, and all."""
    conditions: list[ClusterCondition]
    """On this node."""
    slices: list[ClusterSlice]
    """On this node."""


class Overview(Document):
    """An installation."""

    namespace: Annotated[str, Example("slicepilot-system")]
    """That the agents run in."""
    agents: list[ClusterAgent]
    """By node."""
    slice_sets: list[ClusterSliceSet]
    """Of the whole cluster."""
    nodes: list[ClusterNode]
    """SliceSets on each of the nodes."""
