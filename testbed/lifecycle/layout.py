"""Names of a testbed's namespaces and interfaces, and its addresses, as pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

NETNS_FOLDER = Path("/run/netns")
STATE_FOLDER = Path("/run/slicepilot-testbed")
GTPU_PORT, PFCP_PORT = 2152, 8805
SINK_ADDRESS = "10.103.0.2"
UPLINK_ADDRESS = "10.103.0.1"
SINK_PORT = 6000


@dataclass(frozen=True)
class SlicePlan:
    """Addresses of one slice by its index: N3 and N4 from the radio side's namespace, N6 towards the router.

    ``qfi`` is that of its packets.
    """

    index: int
    name: str
    netns: str
    qfi: int

    @property
    def n3_ran(self) -> str:
        """The gNB's end of N3."""
        return f"10.100.{self.index}.1"

    @property
    def n3_upf(self) -> str:
        """The UPF's end of N3."""
        return f"10.100.{self.index}.2"

    @property
    def n4_smf(self) -> str:
        """The SMF's end of N4."""
        return f"10.101.{self.index}.1"

    @property
    def n4_upf(self) -> str:
        """The UPF's end of N4."""
        return f"10.101.{self.index}.2"

    @property
    def n6_upf(self) -> str:
        """The UPF's end of N6."""
        return f"10.102.{self.index}.2"

    @property
    def n6_router(self) -> str:
        """The router's end of N6."""
        return f"10.102.{self.index}.1"

    @property
    def ue_pool(self) -> str:
        """Addresses of the slice's UEs."""
        return f"10.60.{self.index}.0/24"

    def ue(self, number: int) -> str:
        """Address of UE 0, 1, ..."""
        return f"10.60.{self.index}.{number + 2}"

    def teid(self, number: int) -> int:
        """Uplink TEID of UE 0, 1, ..."""
        return 0x1000 * (self.index + 1) + number


@dataclass(frozen=True)
class Layout:
    """Everything a testbed of this name and these slices is made of."""

    name: str
    slice_names: tuple[str, ...]
    qfis: tuple[int, ...]

    @property
    def ran(self) -> str:
        """Namespace of gNB, load and SMF."""
        return f"{self.name}-ran"

    @property
    def router(self) -> str:
        """Namespace in which the slices' N6 meet and leave over the shared uplink."""
        return f"{self.name}-up"

    @property
    def data_network(self) -> str:
        """Namespace of the sink."""
        return f"{self.name}-dn"

    @property
    def slices(self) -> tuple[SlicePlan, ...]:
        """The slices' addresses, in order."""
        return tuple(
            SlicePlan(i, name, f"{self.name}-upf-{name}", qfi)
            for i, (name, qfi) in enumerate(zip(self.slice_names, self.qfis, strict=True))
        )

    @property
    def namespaces(self) -> tuple[str, ...]:
        """All of them."""
        return (self.ran, self.router, self.data_network, *(plan.netns for plan in self.slices))

    @property
    def state(self) -> Path:
        """Folder that holds what is known of the running testbed."""
        return STATE_FOLDER / self.name


def netns_path(name: str) -> Path:
    """Where a named namespace can be opened."""
    return NETNS_FOLDER / name
