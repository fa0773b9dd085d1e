"""Who may use the control socket: what the kernel says of the process at its other end."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import socket
import struct
from dataclasses import dataclass

from slicepilot.configs import ConfigError

_CREDENTIALS = struct.Struct("=iII")  # struct ucred, unix(7)


@dataclass(frozen=True)
class Peer:
    """A process that has connected, as it was then."""

    pid: int
    uid: int
    gid: int

    @classmethod
    def of(cls, connection: socket.socket) -> Peer:
        """From SO_PEERCRED; raises OSError."""
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return cls(*_CREDENTIALS.unpack(raw))


@dataclass(frozen=True)
class Access:
    """Root, the controller's own user, and the members of one group.

    Attributes:
        uid: the controller's.
        group: name of a group; None: no group.
    """

    uid: int
    group: str | None = None

    def gid(self) -> int | None:
        """Number of the group.

        Raises:
            ConfigError: there is none of that name.
        """
        if self.group is None:
            return None
        try:
            return grp.getgrnam(self.group).gr_gid
        except KeyError:
            raise ConfigError(f"group = {self.group!r}: accepted: the name of a group in /etc/group") from None

    def owns(self, peer: Peer) -> bool:
        """Whether a peer is root, or runs as the controller does: members of the group do not keep it out."""
        return peer.uid in {0, self.uid}

    def permits(self, peer: Peer) -> bool:
        """Whether a peer may give commands."""
        return self.owns(peer) or self.gid() in {peer.gid, *_groups_of(peer.uid)}

    @property
    def text(self) -> str:
        """Who is accepted, for a refusal."""
        return "root" + (f" and members of group {self.group}" if self.group else "")


def _groups_of(uid: int) -> list[int]:
    with contextlib.suppress(KeyError):
        user = pwd.getpwuid(uid)
        return os.getgrouplist(user.pw_name, user.pw_gid)
    return []
