"""Figures by flow, that is by slice, TEID and QFI: the slow path, for people and for export."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from . import layout
from .packets import PacketProbe, PacketPrograms

SCARCE = 0.75  # of the slots: beyond, new flows have none within reach


@dataclass(frozen=True)
class Flow:
    """Counters of a flow since the start; ``qfi`` is None where no PDU Session Container came.

    ``delay`` holds the histograms to the TUN device and to N6, (2, BUCKETS), of sampled packets; ``carried_bytes``
    counts those too.
    """

    slice: int
    teid: int
    qfi: int | None
    packets: int
    bytes: int
    carried_bytes: int
    delay: npt.NDArray[np.uint32]


def read(probe: PacketPrograms) -> list[Flow]:
    """All flows that were seen, in the order of slice, TEID and QFI."""
    keys = probe.flow_keys.copy()
    result: dict[tuple[int, int, int], list[Any]] = {}
    for index in np.flatnonzero(keys):
        key = int(keys[index])
        # A flow is there twice when a slot before its own became free meanwhile.
        result.setdefault((key >> 40 & 0xFF, key & 0xFFFFFFFF, key >> 32 & 0x7F), []).append(probe.flows[index].copy())
    return [_flow(key, records) for key, records in sorted(result.items())]


def _flow(key: tuple[int, int, int], records: list[Any]) -> Flow:
    slice_, teid, qfi = key
    delay = np.zeros_like(records[0]["delay"])
    for record in records:
        delay += record["delay"]
    packets, bytes_, carried = (
        sum(int(record[field]) for record in records) for field in ("packets", "bytes", "carried_bytes")
    )
    return Flow(slice_, teid, None if qfi == layout.QFI_NONE else qfi, packets, bytes_, carried, delay)


class IdleFlows:
    """Frees the slots of flows that have gone, as those of a UPF that restarted with new TEIDs; call it every minute
    or so."""

    def __init__(self, probe: PacketProbe) -> None:
        self._probe = probe
        self._packets: npt.NDArray[np.uint64] | None = None

    def free(self) -> int:
        """Where slots are getting scarce, forget flows that had no packet since the last call; returns how many."""
        probe, before = self._probe, self._packets
        now = probe.flows["packets"].copy()
        freed = np.array([], np.intp)
        if before is not None and np.count_nonzero(probe.flow_keys) > SCARCE * layout.FLOWS:
            freed = np.flatnonzero((probe.flow_keys != 0) & (now == before))
            probe.flow_keys[freed] = 0
            probe.flows[freed] = np.zeros(1, layout.FLOW)
            now[freed] = 0
        owners = (probe.flow_keys[probe.flow_keys != 0] >> np.uint64(40)) & np.uint64(0xFF)
        probe.flows_of[:] = np.bincount(owners.astype(np.intp), minlength=layout.MAX_SLICES)
        self._packets = now
        return len(freed)
