"""The sockets that clients connect to, and which users may use the control socket.

Sockets are made before the controller gives up its privileges. A publisher that is started again gets the same sockets,
so that connections wait meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import ipaddress
import os
import pwd
import socket
import stat
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from slicepilot.configs import ConfigError

BACKLOG = 512
INHERITED = "inherited"
LOCAL, LOCAL_SOCKET = "local", "pages.sock"
FIRST_INHERITED = 3  # SD_LISTEN_FDS_START
DEFAULT_PORT = 9464
# The publisher of a killed controller closes them as soon as it notices.
PATIENCE_S, RETRY_S = 3.0, 0.02
_CREDENTIALS = struct.Struct("=iII")  # struct ucred, unix(7)


@dataclass(frozen=True)
class Peer:
    """A process that has connected, as the kernel knew it then."""

    pid: int
    uid: int
    gid: int

    @classmethod
    def of(cls, connection: socket.socket) -> Peer:
        """The peer of a connection, by SO_PEERCRED; raises OSError."""
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
            raise ConfigError(f"group = {self.group!r}: expected the name of a group in /etc/group") from None

    def owns(self, peer: Peer) -> bool:
        return peer.uid in {0, self.uid}

    def permits(self, peer: Peer) -> bool:
        if self.owns(peer):
            return True
        groups = {peer.gid}
        with contextlib.suppress(KeyError):
            user = pwd.getpwuid(peer.uid)
            groups.update(os.getgrouplist(user.pw_name, user.pw_gid))
        return self.gid() in groups

    @property
    def text(self) -> str:
        """The permitted users, for a refusal."""
        return "root" + (f" and members of group {self.group}" if self.group else "")


@dataclass(frozen=True)
class HttpAddress:
    """Address and port of metrics and status page; port 0 is any free port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> HttpAddress | None:
        """``ADDRESS:PORT``, ``[ADDRESS]:PORT``, or ``off``, which is None; raises ConfigError."""
        if text == "off":
            return None
        host, _, port = text.rpartition(":")
        try:
            address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
            if port.isascii() and port.isdecimal() and int(port) <= 65535:
                return cls(str(address), int(port))
        except ValueError:
            pass
        example = f"127.0.0.1:{DEFAULT_PORT}"
        raise ConfigError(
            f"listen = {text!r}: expected off, {INHERITED}, {LOCAL}, or an address and port, such as {example}"
        )

    @classmethod
    def of(cls, listener: socket.socket | None) -> HttpAddress | None:
        """The address of a bound socket; None for a Unix socket."""
        if listener is None or listener.family == socket.AF_UNIX:
            return None
        host, port = listener.getsockname()[:2]
        return cls(host, port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        return ipaddress.ip_address(self.host).is_loopback


def http_listener(address: HttpAddress) -> socket.socket:
    """A listening TCP socket; raises ConfigError."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _bind(listener, address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"listen = {address}: {error.strerror}; expected a free port, or off") from error
    return listener


def inherited_listener() -> socket.socket:
    """The listening TCP socket that a service manager passes (sd_listen_fds(3)); raises ConfigError.

    Then the process needs no right to make Internet sockets. The variables are removed from the environment, because
    the socket is for this process alone.
    """
    variables = {name: os.environ.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")}
    problem = "the service manager has not passed exactly one socket"
    if variables["LISTEN_PID"] == str(os.getpid()) and variables["LISTEN_FDS"] == "1":
        try:
            listener = socket.socket(fileno=FIRST_INHERITED)
        except OSError as error:
            problem = f"descriptor {FIRST_INHERITED}: {error.strerror}"
        else:
            tcp = listener.family in {socket.AF_INET, socket.AF_INET6} and listener.type == socket.SOCK_STREAM
            if tcp and listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                listener.set_inheritable(False)
                return listener
            listener.detach()
            problem = f"descriptor {FIRST_INHERITED} is no listening TCP socket"
    raise ConfigError(f"listen = {INHERITED!r}: {problem}; expected a socket from slicepilot@NAME.socket")


def _bind(listener: socket.socket, address: HttpAddress) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            listener.bind((address.host, address.port))
            return
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline_s:
                raise
        time.sleep(RETRY_S)


def unix_listener(what: str, path: Path, uid: int | None = None, gid: int | None = None) -> socket.socket:
    """A listening Unix socket that only permitted users can open. A socket without a listener is replaced.

    Args:
        what: its name in messages.
        path: its file, of mode 0600, or 0660 with a group.
        uid: its owner beside root; None: this process's user.
        gid: a group that can open it as well.

    Raises:
        ConfigError: another process listens there, or it cannot be made.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(what, path)
        # bind(2) gives the file the mode of the socket's inode: at no time can others connect.
        os.fchmod(listener.fileno(), 0o600)
        listener.bind(str(path))
        if gid is not None:
            os.chown(path, -1, gid)
            path.chmod(0o660)
        if uid is not None:
            os.chown(path, uid, -1)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"{what} {path}: {error.strerror or error}; expected a writable folder") from error
    except ConfigError:
        listener.close()
        raise
    return listener


def _remove_stale(what: str, path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{what} {path}: another file is there; remove it")
    deadline_s = time.monotonic() + PATIENCE_S
    while _listens(path):
        if time.monotonic() > deadline_s:
            raise ConfigError(f"{what} {path}: in use by another controller of this name")
        time.sleep(RETRY_S)
    path.unlink(missing_ok=True)


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except BlockingIOError:
            pass
        return True
