"""``slicepilot testbed verify``."""

from typing import Literal

from slicepilot.configs.documents import Document


class VerifiedRule(Document):
    """Whether packets show that a UPF enforces a rule that it has accepted over PFCP."""

    rule: str
    """`gate`, `mbr` (maximum bit rate) or `urr` (volume)."""
    direction: str
    """`ul` or `dl`."""
    result: str
    """`enforced`, `partly`, `accepted_without_effect`, `refused`, or `untested`: too few packets pass."""
    cause: int | None
    """Cause of a refusal (TS 29.244 clause 8.2.1)."""
    sent_packets: int
    arrived_packets: int
    rate: dict[Literal["offered_mbps", "limit_mbps", "most_mbps", "arrived_mbps"], float] | None
    """For `mbr`; `most_mbps` is the highest rate that counts as enforced."""
    volume: dict[Literal["arrived_bytes", "reported_bytes"], int] | None
    """For `urr`."""
    detail: str | None


class VerifiedSlice(Document):
    """A slice's UPF."""

    slice: str
    session: str
    """The PDU session that was used."""
    rules: list[VerifiedRule]
