"""``slicepilot testbed verify``: what packets say of rules that UPFs have accepted."""

from typing import Annotated

from slicepilot.configs.documents import Document, Example

from .shared import SliceName


class VerifiedRate(Document):
    """Rate of packets, from their IP headers on, under a Maximum Bit Rate."""

    offered_mbps: float
    """What was sent."""
    limit_mbps: float
    """The limit."""
    most_mbps: float
    """The most that counts as enforced."""
    arrived_mbps: float
    """What arrived."""


class VerifiedVolume(Document):
    """Volume of packets, from their IP headers on."""

    arrived_bytes: int
    """What arrived."""
    reported_bytes: int
    """What the UPF's URR reported."""


class VerifiedRule(Document):
    """What packets say of a rule that was asked for over PFCP."""

    rule: Annotated[str, Example("mbr")]
    """`gate`, `mbr` (maximum bit rate), `urr` (volume, on query)."""
    direction: Annotated[str, Example("ul")]
    """`ul` or `dl`."""
    result: Annotated[str, Example("enforced")]
    """`enforced`, `partly`, `accepted_without_effect`, `refused`, or `untested`: too few packets pass anyway."""
    cause: int | None
    """Cause of a refusal (TS 29.244 clause 8.2.1)."""
    sent_packets: int
    """Packets sent while it held."""
    arrived_packets: int
    """Those of them that arrived."""
    rate: VerifiedRate | None
    """Of `mbr`, where it was tried."""
    volume: VerifiedVolume | None
    """Of `urr`, where it was tried."""
    detail: str | None
    """What else there is to say."""


class VerifiedSlice(Document):
    """A slice's UPF, held to what it has accepted."""

    slice: SliceName
    """The slice's name."""
    session: Annotated[str, Example("slice1/0")]
    """The PDU session that was tried."""
    rules: list[VerifiedRule]
