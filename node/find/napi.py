"""What polls an interface's packets: softirqs, or kernel threads of the interface ("threaded NAPI").

``echo 1 > /sys/class/net/DEVICE/threaded`` gives each NAPI instance of an interface a thread, ``napi/DEVICE-ID``, which
the scheduler handles as any other (https://docs.kernel.org/networking/napi.html#threaded-napi). That file is shown by a
sysfs of the interface's own network namespace alone; the netlink family "netdev" says the same by id and thread, from
Linux 6.8 on (https://docs.kernel.org/netlink/specs/netdev.html, ``napi-get``).
"""

from __future__ import annotations

import socket
import struct
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.net.namespaces import inside
from slicepilot.controller.system.net.rtnetlink import NLM_F_DUMP, RouteSocket, attribute, attributes, request

# linux/genetlink.h: the family that knows the others, and the header of messages (command, version).
NETLINK_GENERIC, GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME = 16, 16, 3, 1, 2
HEADER = struct.Struct("=BBxx")
FAMILY = b"netdev\0"
NETDEV_CMD_NAPI_GET, NETDEV_A_NAPI_IFINDEX, NETDEV_A_NAPI_ID, NETDEV_A_NAPI_PID = 11, 1, 2, 4
NUMBER = struct.Struct("=I")
PF_KTHREAD = 0x0020_0000  # include/linux/sched.h


@dataclass(frozen=True)
class Napi:
    """One NAPI instance: its id, and its thread; None where softirqs poll it."""

    identity: int
    thread: int | None


def napis(netns: Path, device: str) -> list[Napi]:
    """NAPIs of an interface, by id; none if it has none (veth(4) without native XDP and GRO), or old kernels hide them.

    Raises OSError where the namespace cannot be entered.
    """
    return inside(netns, lambda: _list(device))


def napi_threads(netns: Path, device: str) -> list[int]:
    """Numbers of the kernel threads that take an interface's packets, none without threaded NAPI; raises as `napis`."""
    return [item.thread for item in napis(netns, device) if item.thread is not None]


def _list(device: str) -> list[Napi]:
    question = HEADER.pack(CTRL_CMD_GETFAMILY, 1) + attribute(CTRL_ATTR_FAMILY_NAME, FAMILY)
    try:
        index = socket.if_nametoindex(device)
        with closing(RouteSocket(protocol=NETLINK_GENERIC)) as netlink:
            family = attributes(netlink.ask(request(GENL_ID_CTRL, 0, question), "family netdev")[HEADER.size :])
            (kind,) = struct.unpack("=H", family[CTRL_ATTR_FAMILY_ID])
            question = HEADER.pack(NETDEV_CMD_NAPI_GET, 1)
            answers = netlink.dump(request(kind, NLM_F_DUMP, question), "list NAPI instances")
    except (ActuatorError, OSError):  # an older kernel, or the interface has gone
        return []
    result = []
    for _, payload in answers:
        item = {kind: value for kind, value in attributes(payload[HEADER.size :]).items() if len(value) == NUMBER.size}
        if NETDEV_A_NAPI_ID in item and item.get(NETDEV_A_NAPI_IFINDEX) == NUMBER.pack(index):
            thread = item.get(NETDEV_A_NAPI_PID)
            result.append(Napi(_number(item[NETDEV_A_NAPI_ID]), None if thread is None else _checked(_number(thread))))
    return sorted(result, key=lambda item: item.identity)


def _number(value: bytes) -> int:
    return int(NUMBER.unpack(value)[0])


def _checked(thread: int) -> int | None:
    """None where the number is another's here: the kernel counts in the machine's PID namespace, whatever the reader.

    The id in a thread's name may be of an earlier instance: the thread is named before its NAPI has an id.
    """
    try:
        name, _, rest = Path(f"/proc/{thread}/stat").read_bytes().rpartition(b")")
    except OSError:
        return None
    return thread if b"(napi/" in name and int(rest.split()[6]) & PF_KTHREAD else None
