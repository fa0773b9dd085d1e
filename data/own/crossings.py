"""How long packets take through a UPF: packets of captures at N3 and N6, matched by what the UPF leaves unchanged.

Uplink packets enter in a tunnel (N3) and leave without it (N6); downlink packets the other way round. Both captures
need the same clock, as captures on one machine have.
"""

from __future__ import annotations

import ipaddress
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from slicepilot.data.faults import DatasetError, Faults

from .map import FileMap
from .pcap_files import Packets, read_packets
from .rows import Floats, Ints, Raw, Words, require_columns

LABELS = ("upf_address", "ue_network", "qfi", "teid", "direction")
VALUES = ("delay_us", "packet_bytes")
LONGEST_NS = 10_000_000_000
"""No UPF holds a packet for longer."""
NAT_SHARE = 0.2
"""Share of the unmatched packets that must match under other addresses for this to be NAT and not chance."""
NETWORKS = {4: 24, 6: 64}

Matches = Ints
"""By packet (N,): the packet that it became at the other point, -1 for none."""


@dataclass(frozen=True)
class Crossings:
    """Packets that entered the UPF, M of them.

    Attributes:
        entered: their numbers (M,) among all packets; left: where each left, -1 for none.
        up: which go up (M,).
        delay_us: (M,), NaN for packets that did not leave.
    """

    entered: Ints
    left: Ints
    up: npt.NDArray[np.bool_]
    delay_us: Floats


def read_captures(paths: Sequence[Path], entry: FileMap, faults: Faults) -> Raw:
    """A row for each packet that entered the UPF, with `LABELS` and `VALUES`; all captures belong together.

    Raises:
        DatasetError: as `read_packets`; no tunnelled packet; captures of both sides of which no packet matches.
    """
    wanted = entry.labels
    require_columns(paths[0], wanted, LABELS)
    require_columns(paths[0], list(entry.columns), VALUES)
    packets = read_packets(paths, faults)
    crossings = crossings_of(paths, packets, faults)
    rows, labels = crossings.entered, labels_of(packets, crossings)
    values = {"delay_us": crossings.delay_us, "packet_bytes": packets.column("size")[rows].astype(np.float64)}
    return Raw(
        len(rows),
        packets.column("time_ns")[rows],
        True,
        {name: labels[name] for name in wanted},
        {name: values[name] for name in entry.columns},
        rows + 1,
    )


def crossings_of(paths: Sequence[Path], packets: Packets, faults: Faults) -> Crossings:
    """Match packets at N3 with those at N6; raises DatasetError where nothing can be."""
    inside = packets.column("tunnelled").astype(np.bool_)
    if not inside.any():
        raise DatasetError.at(paths[0], "no GTP-U packets (UDP port 2152); expected a capture of N3, and of N6 with it")
    times, up = packets.column("time_ns"), packets.column("up")
    if inside.all():
        faults.note("only N3 was captured: without N6 there are no delays")
        return Crossings(np.arange(len(inside)), np.full(len(inside), -1), up != 0, np.full(len(inside), np.nan))
    partner = match(times, packets.column("key"), inside)
    rest = np.flatnonzero(partner < 0)
    translated = match(times[rest], packets.column("bare")[rest], inside[rest])
    matched = translated >= 0
    if matched.sum() > NAT_SHARE * inside[rest].sum():
        partner[rest[matched]] = rest[translated[matched]]
        faults.note("packets have other addresses at N6 (NAT): matched by identification, length and contents")
    if not (partner >= 0).any():
        raise DatasetError.at(
            paths[-1], "none of its packets is one of N3; expected captures of both sides of the same UPF at a time"
        )
    return _entered(packets, inside, partner, faults)


def _entered(packets: Packets, inside: npt.NDArray[np.bool_], partner: Matches, faults: Faults) -> Crossings:
    """Which packets came in, and which way they go."""
    times = packets.column("time_ns")
    matched = partner >= 0
    later = np.where(matched, times[partner], 0) >= times
    known = packets.column("up")
    # Of packets without a partner: whose tunnel ends where that of matched packets does goes up as they do.
    uplink = matched & inside & later
    ends = set(packets.column("outer_target")[uplink].tolist())
    begins = set(packets.column("outer_source")[matched & inside & ~later].tolist())
    target, source = packets.column("outer_target"), packets.column("outer_source")
    up = np.where(known >= 0, known == 1, np.isin(target, list(ends)) | ~np.isin(source, list(begins)))
    up = np.where(matched & inside, later, up)
    ues = np.union1d(packets.column("source")[inside & up], packets.column("target")[inside & ~up])
    down = ~inside & np.where(matched, later, np.isin(packets.column("target"), ues))
    entered = np.flatnonzero((inside & up) | down)
    left = partner[entered]
    delay = np.where(left >= 0, times[left] - times[entered], 0) / 1e3
    other = int((~inside & ~matched & ~down).sum())
    lost_in = int((inside & ~up & ~matched).sum())
    if other:
        faults.note(f"{other:,} packets at N6 are of no UE, or came before the capture of N3: left out")
    if lost_in:
        faults.note(f"{lost_in:,} packets of the downlink at N3 were not seen at N6: left out")
    return Crossings(entered, left, inside[entered], np.where(left >= 0, delay, np.nan))


def match(times: Ints, keys: Ints, inside: npt.NDArray[np.bool_]) -> Matches:
    """The partner of each packet at the other point, -1 for none.

    Packets that are alike are matched in their order where both points saw equally many of them, since queues keep
    order, and else with the latest that came before.
    """
    result = np.full(len(times), -1, np.int64)
    order = np.lexsort((times, keys))
    sorted_keys = keys[order]
    starts = np.flatnonzero(np.diff(sorted_keys, prepend=~sorted_keys[:1]) != 0)
    sizes = np.diff(starts, append=len(order))
    pairs = starts[sizes == 2]
    first, second = order[pairs], order[pairs + 1]
    good = (inside[first] != inside[second]) & (times[second] - times[first] <= LONGEST_NS)
    result[first[good]], result[second[good]] = second[good], first[good]
    for start, size in zip(starts[sizes > 2].tolist(), sizes[sizes > 2].tolist(), strict=True):
        _match_alike(order[start : start + size], times, inside, result)
    return result


def _match_alike(alike: Ints, times: Ints, inside: npt.NDArray[np.bool_], result: Ints) -> None:
    """Match indistinguishable packets in order of time."""
    here, there = alike[inside[alike]], alike[~inside[alike]]
    if not len(here) or not len(there):
        return
    if len(here) == len(there):
        gaps = times[there] - times[here]
        if ((gaps >= 0) & (gaps <= LONGEST_NS)).all() or ((gaps <= 0) & (gaps >= -LONGEST_NS)).all():
            result[here], result[there] = there, here
            return
    # The side that saw the first of them is where they came in.
    came, went = (here, there) if times[here[0]] <= times[there[0]] else (there, here)
    waiting: list[int] = []
    queue = deque(came.tolist())
    for out in went.tolist():
        while queue and times[queue[0]] <= times[out]:
            waiting.append(queue.popleft())
        if waiting and times[out] - times[waiting[-1]] <= LONGEST_NS:
            own = waiting.pop()
            result[own], result[out] = out, own


def labels_of(packets: Packets, crossings: Crossings) -> dict[str, Words]:
    """`LABELS` of the packets that entered."""
    names = packets.names()
    rows, left, up = crossings.entered, crossings.left, crossings.up
    tunnel = np.where(packets.column("tunnelled")[rows] == 1, rows, left)  # where the tunnel is; -1 for lost downlink
    known = tunnel >= 0

    def of_tunnel(name: str) -> Ints:
        return np.where(known, packets.column(name)[tunnel], -1)

    upf = np.where(up, of_tunnel("outer_target"), of_tunnel("outer_source"))
    ue = np.where(up, packets.column("source")[rows], packets.column("target")[rows])
    sizes = [NETWORKS[ipaddress.ip_address(name).version] for name in names]
    networks = [str(ipaddress.ip_network((name, size), strict=False)) for name, size in zip(names, sizes, strict=True)]
    return {
        "upf_address": _words(upf, lambda code: names[code]),
        "ue_network": _words(ue, lambda code: networks[code]),
        "qfi": _words(of_tunnel("qfi"), str),
        "teid": _words(of_tunnel("teid"), str),
        "direction": Words((~up).astype(np.int32), ("uplink", "downlink")),
    }


def _words(codes: Ints, text_of: Callable[[int], str]) -> Words:
    known, index = np.unique(codes, return_inverse=True)
    texts = ["" if code < 0 else text_of(code) for code in known.tolist()]
    words = Words.of(texts)
    return Words(words.codes[index], words.names)
