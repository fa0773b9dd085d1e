"""Clsact hooks and BPF classifiers of a namespace, by rtnetlink (tc-bpf(8)).

Message layouts: ``linux/rtnetlink.h``, ``linux/pkt_cls.h``.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

from .rtnetlink import (
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_EXCL,
    RTM_DELQDISC,
    RTM_NEWQDISC,
    TCA_KIND,
    TCA_OPTIONS,
    TCMSG,
    RouteSocket,
    attribute,
    attributes,
    request,
    text,
)

RTM_NEWTFILTER, RTM_DELTFILTER, RTM_GETTFILTER = 44, 45, 46
TCA_BPF_CLASSID, TCA_BPF_FD, TCA_BPF_NAME, TCA_BPF_FLAGS = 3, 6, 7, 8
TCA_BPF_FLAG_ACT_DIRECT = 1
ETH_P_ALL = socket.htons(3)
CLSACT_HANDLE, CLSACT_PARENT = 0xFFFF0000, 0xFFFFFFF1
Hook = str | int
"""One of `HOOKS`, or the handle of a qdisc whose classes the filters choose between."""
HOOKS = {"ingress": 0xFFFFFFF2, "egress": 0xFFFFFFF3}  # TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS or _EGRESS)


@dataclass(frozen=True)
class Filter:
    """A classifier on a hook; ``name`` is empty where it is not a BPF program."""

    priority: int
    protocol: int
    handle: int
    kind: str
    name: str


def add_clsact(route: RouteSocket, index: int) -> None:
    """Give an interface its hooks; raises ActuatorError (EEXIST where it has them)."""
    message = TCMSG.pack(0, index, CLSACT_HANDLE, CLSACT_PARENT, 0) + attribute(TCA_KIND, b"clsact\0")
    route.send(request(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, message), "add clsact")


def remove_clsact(route: RouteSocket, index: int) -> None:
    """Take the hooks away with all that is attached to them; raises ActuatorError."""
    message = TCMSG.pack(0, index, CLSACT_HANDLE, CLSACT_PARENT, 0) + attribute(TCA_KIND, b"clsact\0")
    route.send(request(RTM_DELQDISC, 0, message), "remove clsact")


def filters(route: RouteSocket, index: int, hook: Hook) -> list[Filter]:
    """Filters at a hook, in the order in which packets pass them; raises ActuatorError."""
    message = request(RTM_GETTFILTER, NLM_F_DUMP, TCMSG.pack(0, index, 0, _parent(hook), 0))
    result = (_filter(payload) for kind, payload in route.dump(message, "list filters") if kind == RTM_NEWTFILTER)
    return [item for item in result if item.handle]  # without a handle: the head of a priority's list


def add_filter(
    route: RouteSocket, index: int, hook: Hook, *, priority: int, handle: int, program: int, name: str, classid: int
) -> None:
    """Attach a BPF program, by its descriptor, as a direct-action classifier for all protocols; raises
    ActuatorError."""
    options = (
        attribute(TCA_BPF_FD, struct.pack("=I", program))
        + attribute(TCA_BPF_NAME, name.encode() + b"\0")
        + attribute(TCA_BPF_CLASSID, struct.pack("=I", classid))
        + attribute(TCA_BPF_FLAGS, struct.pack("=I", TCA_BPF_FLAG_ACT_DIRECT))
    )
    message = TCMSG.pack(0, index, handle, _parent(hook), priority << 16 | ETH_P_ALL)
    message += attribute(TCA_KIND, b"bpf\0") + attribute(TCA_OPTIONS, options)
    route.send(request(RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_EXCL, message), f"attach {name!r}")


def remove_filter(route: RouteSocket, index: int, hook: Hook, which: Filter) -> None:
    """Detach a classifier; raises ActuatorError."""
    message = TCMSG.pack(0, index, which.handle, _parent(hook), which.priority << 16 | which.protocol)
    message += attribute(TCA_KIND, which.kind.encode() + b"\0")
    route.send(request(RTM_DELTFILTER, 0, message), f"detach {which.name!r}")


def _parent(hook: Hook) -> int:
    return hook if isinstance(hook, int) else HOOKS[hook]


def _filter(payload: bytes) -> Filter:
    _, _, handle, _, info = TCMSG.unpack_from(payload)
    result = attributes(payload[TCMSG.size :])
    options = attributes(result.get(TCA_OPTIONS, b""))
    return Filter(
        info >> 16, info & 0xFFFF, handle, text(result.get(TCA_KIND, b"")), text(options.get(TCA_BPF_NAME, b""))
    )
