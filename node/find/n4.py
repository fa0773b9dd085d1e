"""Addresses at which a UPF takes PFCP, and when its process began."""

from __future__ import annotations

import ipaddress
import os

from slicepilot.controller.telemetry.n4.capture import Address

from .interfaces import interfaces
from .locate import Located
from .sockets import PFCP_PORT, SocketTable


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
