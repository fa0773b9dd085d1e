"""Starts the publisher, restarts it and ends it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pwd
import socket
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from annotated_types import Interval  # as pydantic's Field(ge=..., le=...)

from slicepilot.configs import ConfigError, FailureError
from slicepilot.controller.system.own_programs import start
from slicepilot.controller.system.realtime import let_others_go_first

from .listeners import (
    INHERITED,
    LOCAL,
    LOCAL_SOCKET,
    Access,
    HttpAddress,
    http_listener,
    inherited_listener,
    unix_listener,
)
from .logs import Form

FIRST_WAIT_S, LONGEST_WAIT_S, WELL_S = 1.0, 60.0, 120.0
END_S = 15.0


@dataclass(frozen=True)
class PublishConfig:
    """What a controller publishes for other programs, by its operator's configuration; without pydantic, which the
    publisher does not import.

    Attributes:
        listen: address and port of metrics and status page, or ``off``; ``inherited``: a socket from systemd;
            ``local``: the Unix socket ``pages.sock`` in the run folder, for root and ``user``.
        hosts: names by which the pages may be requested, beside localhost, this machine's own and any address.
        group: members may use the control socket, beside root.
        user: the publishing process runs as this user, if the controller is root's.
        log: structured logs on standard error.
        records_mb: disk space for decision records; 0 keeps none.
        estimate_s: seconds between estimates of what the policy would change where it does not act; 0 makes none, and
            a run that starts live makes none: what they simulate with is compiled for minutes.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "allow_inf_nan": False}
    listen: str = "off"
    hosts: tuple[str, ...] = ()
    group: str | None = None
    user: str = "nobody"
    log: Form = "json"
    records_mb: Annotated[float, Interval(ge=0, le=1_000_000)] = 256.0
    estimate_s: Annotated[float, Interval(ge=0, le=3600)] = 30.0


@dataclass(frozen=True, kw_only=True)
class PublisherOptions(PublishConfig):
    """Options of the publisher, with its paths.

    Attributes:
        run: folder of the ring ``ticks``; ``control.sock`` is made there.
        state: folder in which ``records`` is made.
        off_cpu: the loop's CPU, which the process does not use; None: it may use all.
        harden: confine it to the system calls and files that it needs.
    """

    run: Path
    state: Path
    off_cpu: int | None = None
    harden: bool = True

    @property
    def records(self) -> Path:
        return self.state / "records"


class Publisher:
    """A publisher process and the sockets it serves, which outlive it; use `start`."""

    def __init__(self, options: PublisherOptions, control: socket.socket) -> None:
        self._options, self._control = options, control
        self._api: socket.socket | None = None
        self._http: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._wait_s, self._started_s = FIRST_WAIT_S, 0.0

    @classmethod
    def start(cls, options: PublisherOptions, control: socket.socket) -> Publisher:
        """Make folder and sockets, and start the process; to be called while there are privileges to do so.

        ``control`` is the publisher's end of a SOCK_SEQPACKET pair; owned. The process ends when the other end closes.

        Raises:
            ConfigError: the address or socket is in use, or there is no such user or group.
            FailureError: the folder cannot be made.
            OSError: the process cannot be started.
        """
        publisher = cls(options, control)
        try:
            user = _user(options.user) if os.geteuid() == 0 else None
            if options.listen == INHERITED:
                publisher._http = inherited_listener()
            elif options.listen == LOCAL:
                uid = None if user is None else user.pw_uid
                publisher._http = unix_listener("socket of the pages", options.run / LOCAL_SOCKET, uid=uid)
            elif (address := HttpAddress.parse(options.listen)) is not None:
                publisher._http = http_listener(address)
            gid = Access(os.getuid(), options.group).gid()
            publisher._api = unix_listener("control socket", options.run / "control.sock", gid=gid)
            publisher._make_folder(user)
            publisher._spawn()
        except BaseException:
            publisher._release()
            raise
        return publisher

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def http_port(self) -> int | None:
        """Port of metrics and status page, if they are served over a network."""
        address = HttpAddress.of(self._http)
        return None if address is None else address.port

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def restart(self, control: socket.socket | None = None) -> bool:
        """End what runs and start another process, with the same sockets.

        A process that keeps ending is started ever less often: after a second, then two, up to a minute. False when it
        is too soon; then nothing is done, and ``control``, which replaces the connection (None keeps it), is not taken
        over. Raises OSError if the process cannot be started.
        """
        now_s = time.monotonic()
        lived_s = now_s - self._started_s
        if lived_s < self._wait_s:
            return False
        self._wait_s = FIRST_WAIT_S if lived_s > WELL_S else min(2 * self._wait_s, LONGEST_WAIT_S)
        self._end(0.0)
        if control is not None:
            self._control.close()
            self._control = control
        self._spawn()
        return True

    def stop(self) -> None:
        """Let it write the remaining records, end it, and remove its sockets. Calling it again does nothing.

        Call it after the ring's last tick. It blocks until the process has ended.
        """
        self._end(END_S)
        self._release()

    def _spawn(self) -> None:
        assert self._api is not None
        sockets = {"api": self._api, "link": self._control, "http": self._http}
        fds = {name: owned.fileno() for name, owned in sockets.items() if owned is not None}
        options = dataclasses.replace(self._options, hosts=(socket.gethostname(), *self._options.hosts))
        argument = json.dumps({"fds": fds, **asdict(options)}, default=_path)
        self._process = start(f"{__package__}.process", argument, fds=fds.values())
        let_others_go_first(self._process.pid)
        self._started_s = time.monotonic()

    def _make_folder(self, user: pwd.struct_passwd | None) -> None:
        """Make the folder of records for the publisher's user; the group is root's, because root may lack
        CAP_DAC_OVERRIDE."""
        if not self._options.records_mb:
            return
        folder = self._options.records
        try:
            with contextlib.suppress(FileExistsError):
                folder.mkdir(parents=True)
                folder.chmod(0o755)
            if user is not None:
                os.chown(folder, user.pw_uid, os.getegid())
        except OSError as error:
            raise FailureError(f"{folder}: {error.strerror}: decision records cannot be kept there") from error

    def _end(self, wait_s: float) -> None:
        """Close its connection and give it time to finish; SIGKILL after that."""
        process = self._process
        if process is None:
            return
        if wait_s:
            with contextlib.suppress(OSError):  # closed already
                self._control.shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(wait_s)
        if process.poll() is None:
            process.kill()
            process.wait()

    def _release(self) -> None:
        for owned in (self._control, self._api, self._http):
            if owned is not None:
                owned.close()
        if self._api is not None:
            (self._options.run / "control.sock").unlink(missing_ok=True)
        if self._http is not None and self._options.listen == LOCAL:
            (self._options.run / LOCAL_SOCKET).unlink(missing_ok=True)
        self._api = self._http = None


def _path(path: object) -> str:
    """A path as JSON; the process has another working folder."""
    assert isinstance(path, Path)
    return str(path.absolute())


def _user(name: str) -> pwd.struct_passwd:
    """The user of the process; raises ConfigError."""
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise ConfigError(f"user = {name!r}: unknown; expected a user of this machine") from None
    if user.pw_uid == 0:
        raise ConfigError(f"user = {name!r}: is root; expected a user without privileges")
    return user
