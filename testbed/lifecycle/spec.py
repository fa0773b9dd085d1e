"""Configuration of a testbed: ``configs/testbed/NAME.yaml``, validated."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from slicepilot.configs import ConfigError, load, validate
from slicepilot.env.slices import SliceSet

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
Positive = Annotated[float, Field(gt=0)]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9]{0,7}$")]
MAX_SLICES = 64


@dataclass(frozen=True)
class TestbedSpec:
    """One testbed.

    Attributes:
        slices: name or file of the slice set; one UPF each, at most 64.
        uplink_mbps: rate of the shared N6 uplink; uplink_queue_ms: how long its queue may grow at that rate.
        burn_us: CPU time each UPF spends on a packet beside forwarding it, a stand-in for inspection and charging.
        n3_buffer_bytes: receive buffer of a UPF's N3 socket as the kernel counts it (with overhead, about 2.3 KB for a
            packet of 1400 bytes). Small, because a big buffer hides seconds of queue.
        ues: PDU sessions per slice.
        quota_period_ms: CFS bandwidth period the CPU limits are set with.
        edge_workers: threads of the edge application, which turns spare CPU into work; 0 = none.
        edge_request_mcpu: its Kubernetes CPU request, from which its group's weight follows.
        name: prefix of everything it makes.
    """

    __test__ = False  # not a test class, whatever pytest makes of its name
    __pydantic_config__ = _STRICT
    slices: str = "testbed-five"
    uplink_mbps: Annotated[float, Field(gt=0, le=100_000)] = 1000.0
    uplink_queue_ms: Positive = 20.0
    burn_us: Annotated[float, Field(ge=0, le=100_000)] = 100.0
    n3_buffer_bytes: Annotated[int, Field(ge=4608, le=1 << 26)] = 212_992
    ues: Annotated[int, Field(ge=1, le=200)] = 2
    quota_period_ms: Annotated[float, Field(ge=1, le=1000)] = 10.0
    edge_workers: Annotated[int, Field(ge=0, le=256)] = 0
    edge_request_mcpu: Annotated[float, Field(ge=0, le=256_000)] = 0.0
    name: Name = "sp"

    @classmethod
    def from_yaml(cls, name_or_path: str) -> TestbedSpec:
        """Load ``configs/testbed/NAME.yaml`` or a user's file; raises ConfigError."""
        return load("testbed", name_or_path, cls)

    def override(self, **values: Any) -> TestbedSpec:
        """A checked copy with the values that are not None; raises ConfigError."""
        given = {key: value for key, value in values.items() if value is not None}
        return validate(TestbedSpec, dataclasses.asdict(self) | given, "command line") if given else self

    def slice_set(self) -> SliceSet:
        """The slices it runs; raises ConfigError."""
        slices = SliceSet.from_yaml(self.slices)
        if len(slices) > MAX_SLICES:
            raise ConfigError(f"slices: {len(slices)} given; expected 1 to {MAX_SLICES} on a testbed")
        return slices
