"""A rule that leaves slices less room than `queue-greedy-edge`, for what an edge application gains and promises lose.

    slicepilot evaluate -c testbed-promises --agents experiment-7-scaled,queue-greedy-edge \\
        --policy benchmarks/edge_work/tight.py:Tight --seeds 4
"""

from dataclasses import replace

from slicepilot.agents.heuristics.queue_greedy import EDGE, QueueGreedy


class Tight(QueueGreedy):
    """No spare uplink, and little more than what a promise takes."""

    def __init__(self) -> None:
        super().__init__(config=replace(EDGE, spare_uplink=0.0, margin=1.02, committed_margin=1.0), name="tight")
