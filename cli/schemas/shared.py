"""Parts that documents of several commands have."""

from typing import Literal

from slicepilot.configs.documents import Document

Ends = tuple[float, float]
Quantiles = dict[Literal["p50", "p99", "p999"], float]
Knob = Literal["cpu_limit", "nice", "egress"]


class Difference(Document):
    """A difference, and the ends of its 95% confidence interval."""

    value: float
    low: float
    high: float
