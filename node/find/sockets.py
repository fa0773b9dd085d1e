"""Which process listens for GTP-U or PFCP, and which TUN devices it has opened (proc(5), proc_pid_net(5))."""

from __future__ import annotations

import contextlib
import ipaddress
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from slicepilot.controller.system.net.rtnetlink import text

from .processes import Process

GTPU_PORT, PFCP_PORT = 2152, 8805  # TS 29.281, clause 4.4.2; TS 29.244, clause 6.4.1
PORTS = (GTPU_PORT, PFCP_PORT)
TUN = "/dev/net/tun"


@dataclass(frozen=True)
class Bound:
    """A UDP socket; ``address`` may be unspecified, ``inode`` is 0 where it belongs to the kernel."""

    port: int
    address: str
    inode: int

    @property
    def anywhere(self) -> bool:
        """Whether it takes packets to any address."""
        return ipaddress.ip_address(self.address).is_unspecified


@dataclass(frozen=True)
class Opened:
    """A process's UDP sockets of `PORTS`, and TUN devices by name."""

    sockets: tuple[Bound, ...] = ()
    tuns: tuple[str, ...] = ()

    def at(self, port: int) -> list[Bound]:
        """Sockets of one port."""
        return [item for item in self.sockets if item.port == port]


@dataclass
class SocketTable:
    """UDP sockets of `PORTS` in the network namespaces of processes."""

    _by_netns: dict[tuple[int, int], list[Bound]] = field(default_factory=dict)

    def of(self, process: Process) -> list[Bound]:
        """All in a process's namespace, of any process."""
        if process.netns is None:
            return []
        if process.netns not in self._by_netns:
            self._by_netns[process.netns] = [
                item for name in ("udp", "udp6") for item in listed(Path(f"/proc/{process.pid}/net/{name}"))
            ]
        return self._by_netns[process.netns]

    def opened(self, process: Process) -> Opened:
        """Sockets and devices that the process itself has opened; nothing if it must not be inspected."""
        present = {item.inode: item for item in self.of(process)}
        sockets, tuns = [], []
        with contextlib.suppress(OSError):
            for entry in sorted(Path(f"/proc/{process.pid}/fd").iterdir()):
                with contextlib.suppress(OSError, ValueError):
                    target = str(entry.readlink())
                    if target.startswith("socket:["):
                        sockets += [present[inode]] if (inode := int(target[8:-1])) in present else []
                    elif target == TUN:
                        tuns += _interfaces(Path(f"/proc/{process.pid}/fdinfo/{entry.name}").read_bytes().split(b"\n"))
        return Opened(tuple(sockets), tuple(dict.fromkeys(tuns)))


def _interfaces(lines: Iterable[bytes]) -> list[str]:
    """TUN interfaces of a descriptor of /dev/net/tun (drivers/net/tun.c, tun_chr_show_fdinfo)."""
    return [text(line.split()[1]) for line in lines if line.startswith(b"iff:") and len(line.split()) > 1]


def listed(path: Path) -> list[Bound]:
    """Sockets with `PORTS` in a file of /proc/PID/net, "udp" or "udp6"; none if it cannot be read."""
    try:
        lines = path.read_text().splitlines()[1:]
    except OSError:
        return []
    result = []
    for line in lines:
        words = line.split()
        address, port = words[1].split(":")
        if int(port, 16) in PORTS:
            result.append(Bound(int(port, 16), _address(address), int(words[9])))
    return result


def _address(hexadecimal: str) -> str:
    """The kernel prints an address as words of 32 bits, each in the machine's byte order."""
    words = [bytes.fromhex(hexadecimal[at : at + 8]) for at in range(0, len(hexadecimal), 8)]
    raw = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    address = ipaddress.ip_address(raw)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
