"""``slicepilot doctor``, and ``slicepilot testbed``: what a machine can run, and the user plane on it."""

from typing import Annotated

from ...configs.documents import Document, Example
from .shared import ScenarioName, SliceName


class Check(Document):
    """Something that was looked at."""

    name: Annotated[str, Example("numba")]
    """What was looked at."""
    ok: bool
    """Whether it is as it should be."""
    found: Annotated[str, Example("0.65.0")]
    """What was found."""
    needed_for: Annotated[str, Example("simulate")]
    """Which commands it matters to."""
    hint: Annotated[str, Example("pip install 'slicepilot[train]'")]
    """How to mend it; may be empty where nothing is missing."""


class TestbedSlice(Document):
    """A UPF with its sessions."""

    name: SliceName
    """The slice's name."""
    netns: Annotated[str, Example("sp-upf-slice1")]
    """Its network namespace."""
    pid: Annotated[int, Example(4242)]
    """Process id of the UPF."""
    alive: bool
    """Whether it runs."""
    sessions: int
    """PDU sessions."""
    cgroup: Annotated[str, Example("/sys/fs/cgroup/sp/slice1")]
    """Its CPU cgroup."""


class TestbedUp(Document):
    """A testbed that was brought up."""

    name: Annotated[str, Example("sp")]
    """Prefix of everything it has made."""
    up_s: float
    """Time that took."""
    slices: list[TestbedSlice]


class TestbedStatus(Document):
    """A testbed that is up."""

    name: Annotated[str, Example("sp")]
    """Prefix of everything it has made."""
    slices: list[TestbedSlice]


class Flow(Document):
    """A flow from the generator to the sink."""

    flow: Annotated[str, Example("slice1-0")]
    """Its name."""
    kind: Annotated[str, Example("video")]
    """Of load."""
    offered_mbps: float
    """Rate that was sent."""
    sent_packets: int
    """Packets that were sent."""
    received_packets: int
    """Packets that arrived."""
    reordered_packets: int
    """Those of them that a later one had overtaken."""
    delay_p50_us: float | None
    """Median delay; null where nothing arrived."""
    delay_p99_us: float | None
    """99th percentile of the delay."""


class LoadPlayed(Document):
    """What became of a scenario's loads, without control."""

    scenario: ScenarioName
    """Its name."""
    seconds: float
    """How long they were played."""
    flows: list[Flow]


class IdentifiedErrors(Document):
    """How far off the fitted simulator is."""

    throughput_mean_pct: float
    """Mean error of a slice's throughput."""
    throughput_median_pct: float
    """Median of that error."""
    throughput_p90_pct: float
    """Its 90th percentile."""
    throughput_within_10_pct: float
    """Share of the errors of at most 10%."""
    delay_p99_median_factor: float
    """By which factor a slice's p99 delay is off: median."""
    delay_p99_p90_factor: float
    """90th percentile of that factor."""
    delay_p99_within_1_5_pct: float
    """Share of the factors of at most 1.5."""
    delay_p99_within_2_pct: float
    """Share of the factors of at most 2."""


class Identified(Document):
    """The simulator's hardware, fitted to this machine."""

    hardware: Annotated[str, Example("testbed-hardware.yaml")]
    """The file that was written."""
    fitted: IdentifiedErrors
    """On the loads that it was fitted on."""
    unseen: IdentifiedErrors
    """On others."""
    repeated: IdentifiedErrors
    """The machine against itself: the others played once more, with other phases of their loads."""
