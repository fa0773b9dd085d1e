"""Learns sessions from N4 of a node's UPFs, also across their restarts."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from slicepilot.controller.system.background import BackgroundCaller
from slicepilot.controller.telemetry.n4.capture import Address
from slicepilot.controller.telemetry.n4.learning import Learned, Learning
from slicepilot.controller.telemetry.points import SlicePoints
from slicepilot.controller.telemetry.sharing import Sharing
from slicepilot.node.find.interfaces import interfaces
from slicepilot.node.find.locate import Located
from slicepilot.node.find.sockets import PFCP_PORT, SocketTable

POLL_S = 0.1
"""A buffer holds some two thousand messages, and a poll takes some forty in the time that it has."""


class NodeLearning:
    """`Learning` of the slices of a node.

    Args:
        points: one per slice, in order.
        families: slices by UPF, by name.
        located: where each slice's UPF is.
        sharing: of the probe.
        background: looks after what is attached.

    Raises:
        ConfigError, ProbeError: see `Learning`.
    """

    def __init__(
        self,
        points: Sequence[SlicePoints],
        families: Sequence[Sequence[str]],
        located: Mapping[str, Located],
        sharing: Sharing,
        background: BackgroundCaller,
    ) -> None:
        self._names = [item.name for item in points]
        self._families = families
        self._processes: dict[int, tuple[int, int | None]] = {}
        indices = [[self._names.index(name) for name in names] for names in families]
        self._learning = Learning(points, indices, sharing, background)
        try:
            self._follow(located)
        except BaseException:
            self.close()
            raise

    def __bool__(self) -> bool:
        """Whether a slice learns from sessions."""
        return bool(self._learning.upfs)

    @property
    def hooks_taken(self) -> int:
        """See `Learning.hooks_taken`."""
        return self._learning.hooks_taken

    def poll(self) -> None:
        """See `Learning.poll`."""
        self._learning.poll()

    def also_for(self, sharing: Sharing, indices: Mapping[int, int]) -> AbstractContextManager[None]:
        """See `Learning.also_for`."""
        return self._learning.also_for(sharing, indices)

    def check(self, located: Mapping[str, Located]) -> list[str]:
        """Sessions that may be unknown, and why; ``located``: where the UPFs are now."""
        text = self._follow(located) if self else []
        self.poll()
        return [*text, *self._learning.check()]

    def learned(self, name: str) -> Learned | None:
        """What a slice has learned; None for a slice that does not learn."""
        index = self._names.index(name)
        return self._learning.learned(index) if self._learning.learns(index) else None

    def close(self) -> None:
        """Detach and unload."""
        self._learning.close()

    def _follow(self, located: Mapping[str, Located]) -> list[str]:
        """Take up where UPFs take PFCP, where they have begun anew."""
        failures = []
        for number in {item.number for item in self._learning.upfs}:
            item = located[self._families[number][0]]
            process = (item.process.pid, item.process.start_ticks)
            if self._processes.get(number) == process:
                continue
            try:
                self._learning.watch(number, pfcp_addresses(item), running_since_ns(item))
                self._processes[number] = process
            except OSError as error:
                failures.append(f"{', '.join(self._families[number])}: where it takes PFCP is not known: {error}")
        return failures


def pfcp_addresses(located: Located) -> frozenset[Address]:
    """Addresses that its sockets are bound to. If they are bound to none, or if another process speaks PFCP for it, all
    addresses of its namespace except those at which other processes take PFCP.

    Raises:
        OSError: its namespace cannot be entered.
    """
    table = SocketTable()
    present = [item for item in table.of(located.process) if item.port == PFCP_PORT]
    own = table.opened(located.process).at(PFCP_PORT)
    if own and not any(item.anywhere for item in own):
        return frozenset(ipaddress.ip_address(item.address) for item in own)
    others = {item.address for item in present if own and not item.anywhere and item not in own}
    return frozenset(ipaddress.ip_address(item) for item in interfaces(located.netns).addresses if item not in others)


def running_since_ns(located: Located) -> int:
    """When its process began, by CLOCK_BOOTTIME, rounded down to the clock ticks that proc_pid_stat(5) counts."""
    return located.process.start_ticks * 10**9 // os.sysconf("SC_CLK_TCK")
