"""Send packets through a slice, and say which arrive, or where they are lost."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from .causes import cause, misled
from .packets import DISCARD_PORT, G_PDU, GTPU_PORT, LONGEST_G_PDU, MARK_OCTETS, SIZE, read_gtpu, refused_tunnel
from .taps import Tap
from .ways import Downlink, Stop, Uplink, Way

Result = Literal["arrives already", "arrived", "lost", "nothing to send"]
PATIENCE_S = 0.5
# Sent once more when one is lost.
MORE = 20
_NUMBER_OCTETS, _BUFFER_BYTES = 2, 1 << 23


@dataclass(frozen=True)
class Outcome:
    """Of one slice and direction.

    Attributes:
        result: in two words.
        sent, arrived: packets.
        why: between which addresses; and where they were seen last, and what may have become of them.
    """

    result: Result
    sent: int
    arrived: int
    why: str

    @property
    def passes(self) -> bool:
        """Whether packets arrive."""
        return self.result in {"arrives already", "arrived"}


def deliver(way: Way) -> Outcome:
    """Send one packet, and a batch where it does not arrive; takes a second at most.

    Raises:
        OSError: the UPF's namespace, or an interface, has gone.
    """
    if isinstance(way, Downlink) and (why := misled(way)) is not None:
        return Outcome("lost", 0, 0, f"nothing was sent: {why}")
    sent = 0
    for count in (1, MORE):
        sent += count
        try:
            volley = _volley(way, count)
        except OSError as error:
            return Outcome("lost", sent - count, 0, f"{way.path}: {_not_sent(way, error)}")
        if volley.arrived:
            more = "" if sent == 1 else f", {volley.arrived} of {count} after the first was lost"
            return Outcome("arrived", sent, volley.arrived, f"{way.path}{more}")
    return Outcome("lost", sent, 0, f"{way.path}: of {MORE}, {_told(way, volley)}")


@dataclass(frozen=True)
class Volley:
    """What was seen of some packets: their numbers at each stop, in order."""

    seen: tuple[frozenset[int], ...]
    unknown_tunnel: bool

    @property
    def arrived(self) -> int:
        """How many."""
        return len(self.seen[-1])


def _volley(way: Way, count: int) -> Volley:
    mark = os.urandom(MARK_OCTETS - _NUMBER_OCTETS)
    watch = _Watch(way, mark)
    with contextlib.ExitStack() as undo:
        taps = list(_opened(way, undo))
        sender = undo.enter_context(contextlib.closing(way.opened()))
        for number in range(count):
            sender.send(way.packet(mark + number.to_bytes(_NUMBER_OCTETS, "big")))
        deadline = time.monotonic() + PATIENCE_S
        while len(watch.seen[-1]) < count and (left := deadline - time.monotonic()) > 0:
            select.select(taps, [], [], left)
            for tap in taps:
                for packet, outgoing in tap.take():
                    watch.note(tap, packet, outgoing)
    return Volley(tuple(map(frozenset, watch.seen)), watch.unknown_tunnel)


def _opened(way: Way, undo: contextlib.ExitStack) -> Iterator[Tap]:
    """One for each interface and kind of packet; at N3 for Error Indications, too."""
    wanted = {(stop.place, GTPU_PORT if stop.tunnelled else DISCARD_PORT) for stop in way.stops}
    wanted |= {(place, GTPU_PORT) for place in (way.ends.n3, way.ends.n3_far) if place is not None}
    for place, port in wanted:
        tap = Tap(place, port, LONGEST_G_PDU if port == GTPU_PORT else SIZE, _BUFFER_BYTES)
        yield undo.enter_context(contextlib.closing(tap))


class _Watch:
    """Notes packets with a mark where they are seen. Each counts once, however often it comes."""

    def __init__(self, way: Way, mark: bytes) -> None:
        self.seen: list[set[int]] = [set() for _ in way.stops]
        self.unknown_tunnel = False
        self._way, self._mark = way, mark

    def note(self, tap: Tap, packet: bytes, outgoing: bool) -> None:
        """Take a packet that was seen into account."""
        tunnelled, way = tap.port == GTPU_PORT, self._way
        if tunnelled:
            message = read_gtpu(packet)
            if message is None:
                return
            if isinstance(way, Uplink) and message.source == way.upf and refused_tunnel(message) == way.session.teid:
                self.unknown_tunnel = True
            if message.kind != G_PDU:
                return
        at = packet.find(self._mark)
        if at < 0:
            return
        number = int.from_bytes(packet[at + len(self._mark) : at + MARK_OCTETS], "big")
        for stop, numbers in zip(way.stops, self.seen, strict=True):
            if (stop.place, stop.outgoing, stop.tunnelled) == (tap.place, outgoing, tunnelled):
                numbers.add(number)


def _told(way: Way, volley: Volley) -> str:
    """How many passed each stop, up to the first that most did not pass, and why that may be."""
    found: list[str] = []
    last: Stop | None = None
    for stop, numbers in zip(way.stops, volley.seen, strict=True):
        found.append(f"{len(numbers)} {stop.passed} ({stop.place.device})")
        if len(numbers) <= MORE // 2:
            return f"{', '.join(found)}: {cause(way, last, stop, volley.unknown_tunnel)}"
        last = stop
    return ", ".join(found)


def _not_sent(way: Way, error: OSError) -> str:
    return f"cannot be sent: {error.strerror or error}: {cause(way, None, way.stops[0], False)}"
