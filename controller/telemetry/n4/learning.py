"""Assigns packets to slices by the PFCP messages on N4: `Learning.poll`, called a few times a second."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from slicepilot.configs import ConfigError
from slicepilot.controller.system.background import BackgroundCaller, RepeatedCall
from slicepilot.controller.telemetry.points import NetPoint, SlicePoints, Traffic
from slicepilot.controller.telemetry.sharing import Owners, Sharing
from slicepilot.env.slices import SNssai

from .capture import Address, Capture
from .elements import NO_SD, without_operator
from .sessions import Key, Session, Sessions

BUDGET_S = 2e-3
TRIED_AGAIN, NAMED = 64, 3


@dataclass(frozen=True)
class LearningUpf:
    """A UPF of which something is to be learned.

    Attributes:
        number: of the UPF, as the caller counts them.
        point: where its N4 is watched, by number.
        slices: that are its own, by index.
    """

    number: int
    point: int
    slices: Owners


@dataclass(frozen=True)
class Learned:
    """What was learned of a slice: its sessions, their tunnels and QFIs now; ``ever``: was there any session yet?"""

    sessions: int = 0
    tunnels: int = 0
    flows: tuple[int, ...] = ()
    ever: bool = False


class Learning:
    """Watches N4 of UPFs whose slices say which sessions are theirs, and has `Sharing` distinguish their packets.

    Sessions that are there when it begins are not known: nothing on N4 lists them.

    Args:
        points: one per slice, in order.
        upfs: indices of the slices of each UPF.
        sharing: of the probe that measures them.
        background: looks after what is attached.

    Attributes:
        sessions: what UPFs have.

    Raises:
        ConfigError: a UPF's N4 is not known, or two of its slices have the same sessions.
        ProbeError: something that is needed is missing; nothing stays attached.
    """

    def __init__(
        self,
        points: Sequence[SlicePoints],
        upfs: Sequence[Sequence[int]],
        sharing: Sharing,
        background: BackgroundCaller,
    ) -> None:
        self._points, self._sharing = points, sharing
        self._traffic = [_ready(point.traffic) for point in points]
        numbers: dict[NetPoint, int] = {}
        self.upfs: list[LearningUpf] = []
        for number, slices in enumerate(upfs):
            of_n4: dict[NetPoint, list[int]] = {}
            for index in filter(self.learns, slices):
                of_n4.setdefault(self._n4(index), []).append(index)
            self._check_apart([index for indices in of_n4.values() for index in indices])
            for n4, indices in of_n4.items():
                self.upfs.append(LearningUpf(number, numbers.setdefault(n4, len(numbers)), tuple(indices)))
        self.sessions = Sessions(lambda upf, session: bool(self._owners(upf, session)))
        self._held: dict[Key, Owners] = {}
        self._refused: dict[Key, str] = {}
        self._ever: set[int] = set()
        self._followers: list[tuple[Sharing, Mapping[int, int]]] = []
        self._again_ns: dict[int, int] = {}
        self._capture = Capture(tuple(numbers)) if numbers else None
        self._look = None if self._capture is None else RepeatedCall(background, self._healed)
        self._missing: dict[int, str] = {}

    @property
    def hooks_taken(self) -> int:
        """How often another program had taken messages before they were seen (`Hooks`)."""
        return 0 if self._capture is None else self._capture.hooks.taken

    def learns(self, index: int) -> bool:
        """Whether a slice's packets are identified by its sessions: it is configured so, and it shares its N3."""
        return self._traffic[index].learned and self._sharing.class_of(self._points[index].n3) is not None

    def watch(self, upf: int, addresses: Collection[Address], since_ns: int) -> None:
        """Capture a UPF's PFCP at these addresses, and forget sessions of processes before ``since_ns``
        (CLOCK_BOOTTIME), when its process began."""
        for number, item in enumerate(self.upfs):
            if item.number == upf and self._capture is not None:
                self._capture.watch(number, item.point, addresses)
                self.sessions.restarted(number, since_ns)

    def poll(self) -> None:
        """Take up what came since the last call, or as much as there is time for; the rest waits in the buffer."""
        if self._capture is None:
            return
        until = time.perf_counter() + BUDGET_S
        while time.perf_counter() < until:
            if (key := self.sessions.next_change()) is not None:
                self._apply(key)
            elif (datagram := self._capture.next()) is not None:
                self.sessions.take(datagram)
            else:
                return

    def check(self) -> list[str]:
        """What is not known of the slices' sessions, and why; attaches again what was lost, as `Hooks.heal`."""
        if self._look is None:
            return []
        self._look.start()
        if (looked := self._look.take()) is not None:
            renewed, self._missing, at_ns = looked
            self._again_ns |= dict.fromkeys(renewed, at_ns)
        for key in list(islice(self._refused, TRIED_AGAIN)):
            self._apply(key)
        return [
            *self._missing.values(),
            *(report for number in range(len(self.upfs)) if (report := self._gaps(number))),
            *self._conflicts(),
            *self._unseen(),
        ]

    def _healed(self) -> tuple[set[int], dict[int, str], int]:
        """In the thread: the result of `Capture.heal`, and the time (CLOCK_BOOTTIME)."""
        assert self._capture is not None
        renewed, missing = self._capture.heal()
        return renewed, missing, time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def learned(self, index: int) -> Learned:
        sessions = [self.sessions.get(key) for key, owners in self._held.items() if index in owners]
        there = [session for session in sessions if session is not None]
        tunnels = {teid for item in there for teid in item.teids}
        flows = sorted({flow for item in there for flow in item.flows})
        return Learned(len(there), len(tunnels), tuple(flows), index in self._ever)

    def close(self) -> None:
        """Detach and unload; what was learned stays with `Sharing`."""
        if self._capture is not None:
            self._capture.close()

    def _n4(self, index: int) -> NetPoint:
        item = self._points[index]
        if item.n4 is None:
            raise ConfigError(
                f"slices.{item.name}.traffic: sessions are seen on N4, which is not known; expected devices.n4, the "
                "UPF's interface with PFCP"
            )
        return item.n4.facing("ingress")

    def _check_apart(self, slices: Sequence[int]) -> None:
        """What is sure beforehand: with an S-NSSAI, which each slice has its own of, it is not."""
        of_dnn: dict[str, list[int]] = {}
        for index in slices:
            traffic = self._traffic[index]
            for name in traffic.dnns if traffic.s_nssai is None else ():
                of_dnn.setdefault(name, []).append(index)
        for name, indices in of_dnn.items():
            if (two := self._sharing.contenders(indices)) is not None:
                raise ConfigError(
                    f"{' and '.join(self._points[index].name for index in two)}: sessions of DNN {name} are both's; "
                    "expected DNNs or QFIs that are one slice's, or s_nssai with them"
                )

    def _owners(self, upf: int, session: Session) -> Owners:
        return tuple(index for index in self.upfs[upf].slices if _fits(self._traffic[index], session))

    @contextlib.contextmanager
    def also_for(self, sharing: Sharing, indices: Mapping[int, int]) -> Iterator[None]:
        """Have another probe distinguish packets by the same sessions, those there are and those to come.

        Args:
            sharing: of that probe.
            indices: its slices, by those here; the others are none of its.
        """
        self._followers.append((sharing, indices))
        try:
            for key in list(self._held):
                self._hand_on(key)
            yield
        finally:
            self._followers.pop()

    def _hand_on(self, key: Key) -> None:
        session, owners = self.sessions.get(key), self._held.get(key, ())
        for sharing, indices in self._followers:
            theirs = tuple(indices[index] for index in owners if index in indices)
            if session is None or not theirs:
                sharing.release(key)
            else:
                sharing.claim(key, theirs, session.teids, session.addresses)

    def _apply(self, key: Key) -> None:
        """What a session is now, to the tables."""
        self._take_up(key)
        if self._followers:
            self._hand_on(key)

    def _take_up(self, key: Key) -> None:
        self._held.pop(key, None)
        self._refused.pop(key, None)
        session = self.sessions.get(key)
        owners = () if session is None else self._owners(key[0], session)
        if session is None or not owners:
            self._sharing.release(key)
            return
        self._ever.update(owners)
        if not session.teids and not session.addresses:
            self._sharing.release(key)
            why = "neither tunnel nor UE address is in it"
        else:
            why = self._sharing.claim(key, owners, session.teids, session.addresses)
        if why:
            self._refused[key] = why
        else:
            self._held[key] = owners

    def _gaps(self, number: int) -> str:
        """Why sessions of a UPF may be unknown since its association was set up."""
        assert self._capture is not None
        item, since = self.upfs[number], self.sessions.associated.get(number)
        counters = self._capture.counters[item.point]
        lost = int(counters["lost"]) - (since.lost if since else 0)
        unread = int(counters["unread"]) - (since.unread if since else 0)
        report = [
            f"{count} {what}"
            for count, what in (
                (lost, "messages were lost because the buffer was full"),
                (unread, "were fragmented or too long"),
                (self.sessions.unexplained[number], "answers were to requests that were not read"),
                (self.sessions.senseless[number], "messages or elements made no sense and were left out"),
            )
            if count
        ]
        if item.point in self._again_ns and (since is None or since.seen_ns < self._again_ns[item.point]):
            report.append("it was away for a while")
        return f"N4 of {self._names(item.slices)}: {', '.join(report)}: sessions may be missing" if report else ""

    def _conflicts(self) -> list[str]:
        report = [
            f"{self._names(self._owners(key[0], session))}: a session is left out: {why}"
            for key, why in islice(self._refused.items(), NAMED)
            if (session := self.sessions.get(key)) is not None
        ]
        more = max(len(self._refused) - NAMED, 0) + self.sessions.over
        return [*report, f"{more} more sessions are left out"] if more > 0 else report

    def _unseen(self) -> list[str]:
        """Slices that nothing else identifies."""
        return [
            f"{self._points[index].name}: no session of it was seen yet"
            for upf in self.upfs
            for index in upf.slices
            if index not in self._ever and not self._traffic[index].given
        ]

    def _names(self, slices: Owners) -> str:
        return ", ".join(self._points[index].name for index in slices)


def _ready(traffic: Traffic | None) -> Traffic:
    """The same with names and S-NSSAI in the form in which messages have them."""
    if traffic is None:
        return Traffic()
    wanted = traffic.s_nssai
    if wanted is not None and wanted.sd == NO_SD:
        wanted = SNssai(wanted.sst)
    return replace(traffic, dnns=tuple(without_operator(name.lower()) for name in traffic.dnns), s_nssai=wanted)


def _fits(traffic: Traffic, session: Session) -> bool:
    """Whether a session is a slice's by all that the slice says of its sessions."""
    if not traffic.learned:
        return False
    flows = session.flows
    return (
        (not traffic.dnns or not session.dnns.isdisjoint(traffic.dnns))
        and (traffic.s_nssai is None or session.s_nssai == traffic.s_nssai)
        and (not traffic.qfis or not flows or not flows.isdisjoint(traffic.qfis))
    )
