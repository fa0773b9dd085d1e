"""Who takes packets from an interface: softirqs, or kernel threads of its own ("threaded NAPI").

``echo 1 > /sys/class/net/DEVICE/threaded`` gives each NAPI instance of an interface a thread, ``napi/DEVICE-ID``, which
the scheduler handles as any other (https://docs.kernel.org/networking/napi.html#threaded-napi). That file is shown by a
sysfs of the interface's own network namespace alone; the netlink family "netdev" says the same by id and thread, from
Linux 6.8 on (https://docs.kernel.org/netlink/specs/netdev.html, ``napi-get``).
"""

from __future__ import annotations

import socket
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyroute2.netlink import NLM_F_DUMP, NLM_F_REQUEST, genlmsg
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.generic import GenericNetlinkSocket

from ...controller.system.net.namespaces import inside

FAMILY = "netdev"
NAPI_GET = 11  # NETDEV_CMD_NAPI_GET
PF_KTHREAD = 0x0020_0000  # include/linux/sched.h


class _Message(genlmsg):  # type: ignore[misc]  # pyroute2 makes it at run time
    """``napi`` of the family's specification, as far as it is needed."""

    prefix = "NETDEV_A_NAPI_"
    nla_map = (
        ("NETDEV_A_NAPI_UNSPEC", "none"),
        ("NETDEV_A_NAPI_IFINDEX", "uint32"),
        ("NETDEV_A_NAPI_ID", "uint32"),
        ("NETDEV_A_NAPI_IRQ", "uint32"),
        ("NETDEV_A_NAPI_PID", "uint32"),
    )


@dataclass(frozen=True)
class Napi:
    """One NAPI instance: its id, and its thread; None where softirqs poll it."""

    identity: int
    thread: int | None


def napis(netns: Path, device: str) -> list[Napi]:
    """Of an interface, by id; none where it has none (veth(4) without native XDP and GRO), or the kernel does not say.

    Raises OSError where the namespace cannot be entered.
    """
    return inside(netns, lambda: _list(device))


def napi_threads(netns: Path, device: str) -> list[int]:
    """Numbers of the kernel threads that take an interface's packets, none without threaded NAPI; raises as `napis`."""
    return [one.thread for one in napis(netns, device) if one.thread is not None]


def _list(device: str) -> list[Napi]:
    answers: list[Any] = []
    try:
        index = socket.if_nametoindex(device)
        with closing(GenericNetlinkSocket()) as netlink:
            netlink.bind(FAMILY, _Message)
            message = _Message()
            message["cmd"], message["version"] = NAPI_GET, 1
            answers += netlink.nlm_request(message, msg_type=netlink.prid, msg_flags=NLM_F_REQUEST | NLM_F_DUMP)
    except (NetlinkError, OSError):  # an older kernel, or the interface has gone
        return []
    here = [one for one in answers if one.get_attr("NETDEV_A_NAPI_IFINDEX") == index]
    found = [Napi(int(one.get_attr("NETDEV_A_NAPI_ID")), _checked(one.get_attr("NETDEV_A_NAPI_PID"))) for one in here]
    return sorted(found, key=lambda one: one.identity)


def _checked(thread: int | None) -> int | None:
    """None where the number is another's here: the kernel counts in the machine's PID namespace, whoever asks.

    The id in a thread's name may be that of an instance before: it is named before its NAPI has one of its own.
    """
    try:
        name, _, rest = Path(f"/proc/{thread}/stat").read_text().rpartition(")")
    except OSError:
        return None
    return thread if "(napi/" in name and int(rest.split()[6]) & PF_KTHREAD else None
