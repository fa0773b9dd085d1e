"""Reports to the service manager: sd_notify(3) in a few lines, without its library.

A message is one datagram to the socket that ``NOTIFY_SOCKET`` names. Nothing here waits or fails: without a service
manager, or with a manager that does not listen, nothing happens.
"""

from __future__ import annotations

import os
import socket


def ready(status: str = "") -> bool:
    """The knobs are in hand; returns whether a manager was notified."""
    return _notify(f"READY=1\n{_status(status)}")


def watchdog() -> bool:
    """Still ticking: to be called well within the unit's ``WatchdogSec=``, for instance once a second."""
    return _notify("WATCHDOG=1\n")


def stopping(text: str) -> bool:
    """Ending on purpose: the knobs are being restored."""
    return _notify(f"STOPPING=1\n{_status(text)}")


def _status(text: str) -> str:
    return f"STATUS={' '.join(text.split())}\n" if text else ""


def _notify(message: str) -> bool:
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):  # an abstract address
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as manager:
            manager.sendto(message.encode(), address)
    except OSError:
        return False
    return True
