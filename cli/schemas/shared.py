"""Parts that documents of several commands have, and what values look like in examples."""

from typing import Annotated

from slicepilot.configs.documents import Document, Example

SliceName = Annotated[str, Example("slice1", "slice")]
AgentName = Annotated[str, Example("captain", "agent")]
ScenarioName = Annotated[str, Example("testbed-contention")]
BundlePath = Annotated[str, Example("runs/ppo-seed0/bundle")]
FilePath = Annotated[str, Example("tables/mishra-forwarding-light.parquet")]
RunId = Annotated[str, Example("5f0c9a7e4b1d4c0f8a2b6d3e9f1c7a58", "run")]
Sha256 = Annotated[str, Example("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")]
Time = Annotated[str, Example("2026-01-31T10:20:30.123456Z")]
TimeNs = Annotated[int, Example(1769854830123456000)]
ReasonName = Annotated[str, Example("slew", "reason")]
Ends = Annotated[tuple[float, float], Example([0.9, 1.1])]


class Quantiles(Document):
    """Quantiles of durations."""

    p50: Annotated[float, Example(38.2)]
    """Median."""
    p99: Annotated[float, Example(61.5)]
    """99th percentile."""
    p999: Annotated[float, Example(94.0)]
    """99.9th percentile."""


class Median(Document):
    """A median with its interval."""

    median: float
    """Median."""
    ci95: Ends
    """Ends of its 95% interval."""


class Mean(Document):
    """A mean with its interval."""

    mean: float
    """Mean."""
    ci95: Ends
    """Ends of its 95% interval."""


class Difference(Document):
    """A difference with its interval."""

    value: float
    """The difference."""
    low: float
    """Lower end of its 95% interval."""
    high: float
    """Upper end of its 95% interval."""
