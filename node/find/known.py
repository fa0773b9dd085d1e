"""User plane functions by their programs, and where each does its work on packets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .processes import COMM_CHARACTERS, Process

Work = Literal["process", "softirq", "polling"]


@dataclass(frozen=True)
class KnownUpf:
    """A kind of UPF.

    Attributes:
        name: of the project.
        programs: file names of its process.
        work: where packets are handled: in the process; in softirqs of the kernel (its GTP module, or XDP), which no
            cgroup is charged for; or in a loop that polls and uses its CPUs whole.
        distinctive: whether the program's name alone identifies it: others use "upf" as well.
    """

    name: str
    programs: tuple[str, ...]
    work: Work
    distinctive: bool = True


KNOWN = (
    KnownUpf("Open5GS", ("open5gs-upfd",), "process"),
    # gtp5g, its kernel module, takes GTP-U off in the socket's encap_rcv.
    KnownUpf("free5GC", ("free5gc-upf", "go-upf", "free5gc-upfd"), "softirq"),
    KnownUpf("eUPF", ("eupf",), "softirq"),
    KnownUpf("OMEC bess-upf", ("bessd",), "polling"),
    KnownUpf("VPP (UPG-VPP, OAI)", ("vpp", "vpp_main"), "polling"),
    KnownUpf("OAI", ("oai_upf", "spgwu", "oai_spgwu"), "process"),
    KnownUpf("a UPF of free5GC or slicepilot", ("upf",), "process", distinctive=False),
)


def known(process: Process) -> KnownUpf | None:
    """The known UPF that a process is, by the names of its program and of the process."""
    for kind in KNOWN:
        if process.program in kind.programs or process.name in {name[:COMM_CHARACTERS] for name in kind.programs}:
            return kind
    return None
