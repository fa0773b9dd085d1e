"""The root qdisc of a device: put there, recognised after a crash, taken off again.

Messages: linux/rtnetlink.h, linux/pkt_sched.h.
"""

from __future__ import annotations

from slicepilot.controller.system.kernel_file import ActuatorError

from .rtnetlink import (
    IFINFOMSG,
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_EXCL,
    RTM_DELQDISC,
    RTM_GETLINK,
    RTM_GETQDISC,
    RTM_NEWQDISC,
    TCA_KIND,
    TCA_OPTIONS,
    TCMSG,
    RouteSocket,
    attribute,
    request,
)

TC_H_ROOT = 0xFFFFFFFF
HANDLE_MAJOR = 0x51CE  # recognisable, so that what a crash has left is known as ours
QDISC = HANDLE_MAJOR << 16


class RootQdisc:
    """The root qdisc of a device: ours, or the default. Any other qdisc was configured by others and is left alone.

    Args:
        route: a socket in the device's namespace.
        device: name of the device.

    Raises:
        ActuatorError: no such device.
    """

    def __init__(self, route: RouteSocket, device: str) -> None:
        self.route, self.device = route, device
        self.index = route.index_of(device)

    def require_device(self) -> None:
        self.route.send(request(RTM_GETLINK, 0, IFINFOMSG.pack(0, 0, self.index, 0, 0)), f"{self.device}: find it")

    def put(self, kind: str, options: bytes = b"") -> None:
        """Put a qdisc of this kind there; ours that is there is replaced.

        Raises:
            ActuatorError: not in this kernel, not permitted, or there is another qdisc, which could not be restored.
        """
        if self.check():
            self.remove()
        payload = attribute(TCA_KIND, kind.encode() + b"\0")
        if options:
            payload += attribute(TCA_OPTIONS, options)
        create = NLM_F_CREATE | NLM_F_EXCL
        self.send(RTM_NEWQDISC, create, QDISC, TC_H_ROOT, payload, f"add qdisc {kind}")

    def check(self) -> bool:
        """Whether our qdisc is there; raises ActuatorError for a qdisc of others."""
        there = self.handle()
        if there not in {0, QDISC}:
            raise ActuatorError(
                f"{self.route}: {self.device}: a qdisc with handle {there >> 16:x}: is configured; expected the "
                f"device's default, since another qdisc could not be restored (tc qdisc del dev {self.device} root)"
            )
        return there == QDISC

    def present(self) -> bool:
        return self.handle() == QDISC

    def remove(self) -> None:
        """Take ours off; the device has its default again. A device that is gone is not an error."""
        try:
            if self.present():
                self.send(RTM_DELQDISC, 0, QDISC, TC_H_ROOT, b"", "remove the qdisc")
        except ActuatorError as error:
            if not error.vanished:
                raise

    def send(self, kind: int, flags: int, handle: int, parent: int, payload: bytes, what: str) -> None:
        self.route.send(self.message(kind, flags, handle, parent, payload), f"{self.device}: {what}")

    def message(self, kind: int, flags: int, handle: int, parent: int, payload: bytes = b"") -> bytearray:
        return request(kind, flags, TCMSG.pack(0, self.index, handle, parent, 0) + payload)

    def handle(self) -> int:
        """Handle of the root qdisc; 0 for a default qdisc; raises ActuatorError."""
        message = self.message(RTM_GETQDISC, NLM_F_DUMP, 0, 0)
        for _, payload in self.route.dump(message, f"{self.device}: list qdiscs"):
            _, index, handle, parent, _ = TCMSG.unpack_from(payload)
            if (index, parent) == (self.index, TC_H_ROOT):
                return int(handle)
        return 0
