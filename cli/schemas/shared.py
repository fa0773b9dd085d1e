"""Parts that documents of several commands have."""

from typing import Literal

Ends = tuple[float, float]
Quantiles = dict[Literal["p50", "p99", "p999"], float]
Knob = Literal["cpu_limit", "nice", "egress"]
