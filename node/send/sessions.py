"""Through which PDU session packets of a slice can be sent: told by its configuration, or by the traffic that there is.

What passes N3 is whatever somebody there has sent: it is believed in what it is used for alone, as an address of a UE
of this slice and a tunnel of this UPF.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address

from slicepilot.controller.telemetry.points import SlicePoints, Traffic
from slicepilot.node.config.traffic import SessionSpec

from .packets import G_PDU, GTPU_PORT, Address, addresses, read_gtpu
from .taps import Place, Tap

_ANY_LENGTH, _BUFFER_BYTES, _PERIOD_S = 1 << 16, 1 << 17, 0.02
_MOST_UES = 4096  # of an N3; whoever could send from more addresses would fill the memory


@dataclass(frozen=True)
class Session:
    """A PDU session at its UPF.

    Attributes:
        ue: address of the UE.
        teid: the UPF's end of the uplink tunnel; None where that is not known.
        qfi: QoS flow; None for packets without a PDU Session Container.
        upf: address of the UPF at N3; gnb: that of the radio side. None where they are not known.
    """

    ue: Address
    teid: int | None = None
    qfi: int | None = None
    upf: Address | None = None
    gnb: Address | None = None

    @classmethod
    def given(cls, spec: SessionSpec) -> Session:
        """That of a configuration."""
        gnb = None if spec.gnb is None else ip_address(spec.gnb)
        return cls(ip_address(spec.ue), spec.teid, spec.qfi, gnb=gnb)


@dataclass
class Seen:
    """UEs of an N3 by address, those of later packets last; ``uplink`` has tunnels, ``downlink`` says who gets any."""

    uplink: dict[Address, Session] = field(default_factory=dict)
    downlink: dict[Address, Session] = field(default_factory=dict)

    def note(self, packet: bytes, to_upf: bool) -> None:
        """Take a G-PDU into account, and nothing else."""
        message = read_gtpu(packet)
        if message is None or message.kind != G_PDU or (inner := addresses(message.content)) is None:
            return
        ue = inner[0] if to_upf else inner[1]
        upf, gnb = (message.destination, message.source) if to_upf else (message.source, message.destination)
        known = self.uplink if to_upf else self.downlink
        known.pop(ue, None)
        if len(known) < _MOST_UES and message.teid:
            known[ue] = Session(ue, message.teid if to_upf else None, message.qfi, upf, gnb)


@dataclass(frozen=True)
class N3Look:
    """Where the N3 of a slice is looked at.

    Attributes:
        place: the UPF's own interface, or its far end, where ``far`` holds.
        points: of the slice.
    """

    place: Place
    far: bool
    points: SlicePoints


class Onlooker:
    """Sees some packets of every N3 while it is open, at most some thousand a second.

    Raises:
        OSError: an interface cannot be looked at.
    """

    def __init__(self, looks: Sequence[N3Look]) -> None:
        self._looks = {look.points.name: look for look in looks}
        self._seen = {(look.place, look.far): Seen() for look in looks}
        self._stop = threading.Event()
        with contextlib.ExitStack() as undo:
            self._taps = [(Tap(key[0], GTPU_PORT, _ANY_LENGTH, _BUFFER_BYTES), *key) for key in self._seen]
            for tap, *_ in self._taps:
                undo.callback(tap.close)
            self._thread = threading.Thread(target=self._look, name="onlooker")
            self._thread.start()
            self._undo = undo.pop_all()

    def close(self) -> None:
        """Look no more; what was seen stays."""
        self._stop.set()
        self._thread.join()
        self._undo.close()

    def _look(self) -> None:
        while not self._stop.wait(_PERIOD_S):
            for tap, place, far in self._taps:
                for packet, outgoing in tap.take():
                    self._seen[place, far].note(packet, to_upf=outgoing == far)

    def uplink(self, name: str) -> Session | None:
        """The session of a slice that was seen last in the uplink."""
        return next(self._of(name, self._at(name).uplink), None)

    def downlink(self, name: str) -> Session | None:
        """The same of the downlink, which does not tell the UPF's end of the tunnel."""
        return next(self._of(name, self._at(name).downlink), None)

    def _at(self, name: str) -> Seen:
        look = self._looks[name]
        return self._seen[look.place, look.far]

    def _of(self, name: str, known: dict[Address, Session]) -> Iterator[Session]:
        own, uplink = self._looks[name], self._at(name).uplink
        others = [
            one.points.traffic
            for one in self._looks.values()
            if one.points.name != name and one.points.traffic is not None and one.place == own.place
        ]
        for ue, session in reversed(known.items()):
            teid = session.teid if session.teid is not None or ue not in uplink else uplink[ue].teid
            if belongs(own.points.traffic, others, ue, teid, session.qfi):
                yield session


def belongs(traffic: Traffic | None, others: Sequence[Traffic], ue: Address, teid: int | None, qfi: int | None) -> bool:
    """Whether packets are a slice's, as the probe tells them apart: by tunnel, else by longest prefix, and by QFI."""
    if traffic is None:
        return True
    if traffic.qfis and qfi not in traffic.qfis:
        return False
    if any(teid in one.teids for one in (traffic, *others)):
        return teid in traffic.teids
    own = _longest(traffic, ue)
    return own is not None and all((_longest(one, ue) or 0) <= own for one in others)


def _longest(traffic: Traffic, ue: Address) -> int | None:
    return max((pool.prefixlen for pool in traffic.ue_pools if ue in pool), default=None)
