"""At which addresses a UPF takes PFCP, and since when its process runs."""

from __future__ import annotations

import ipaddress
import os

from slicepilot.controller.telemetry.n4.capture import Address

from .interfaces import interfaces
from .locate import Located
from .sockets import PFCP_PORT, SocketTable


def pfcp_addresses(found: Located) -> frozenset[Address]:
    """Those that its sockets are bound to. Where they are bound to none, or another process has them (an agent that
    speaks PFCP for it), all of its namespace but those at which other processes take PFCP.

    Raises:
        OSError: its namespace cannot be entered.
    """
    table = SocketTable()
    there = [one for one in table.of(found.process) if one.port == PFCP_PORT]
    own = table.opened(found.process).at(PFCP_PORT)
    if own and not any(one.anywhere for one in own):
        return frozenset(ipaddress.ip_address(one.address) for one in own)
    others = {one.address for one in there if own and not one.anywhere and one not in own}
    return frozenset(ipaddress.ip_address(one) for one in interfaces(found.netns).addresses if one not in others)


def running_since_ns(found: Located) -> int:
    """When its process began, by CLOCK_BOOTTIME, rounded down to the clock ticks that proc_pid_stat(5) counts."""
    return found.process.start_ticks * 10**9 // os.sysconf("SC_CLK_TCK")
