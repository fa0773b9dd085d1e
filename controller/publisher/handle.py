"""How the controller starts its publisher, looks after it and ends it."""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from slicepilot.configs import ConfigError, FailureError
from slicepilot.controller.system.own_programs import environment, python
from slicepilot.controller.system.realtime import let_others_go_first

from .listeners import (
    INHERITED,
    LOCAL,
    LOCAL_SOCKET,
    Access,
    HttpAddress,
    control_listener,
    http_listener,
    inherited_listener,
    local_listener,
)

FIRST_WAIT_S, LONGEST_WAIT_S, WELL_S = 1.0, 60.0, 120.0
END_S = 15.0


@dataclass(frozen=True)
class PublisherOptions:
    """What the publisher does, and where.

    Attributes:
        run: folder of the ring ``ticks``; ``control.sock`` is made there.
        state: folder in which ``records`` is made.
        listen: address and port of metrics and status page; ``inherited`` from a service manager; ``local`` for a Unix
            socket in ``run``, which root and ``user`` can open; or ``off``.
        hosts: names by which they are asked for, beside localhost, this machine's own and any address.
        group: members may use the control socket, beside root.
        user: to run as; of no effect unless the controller is root's.
        log: ``json``, ``pretty`` or ``off``.
        records_mb: disk space for decision records; 0 keeps none.
        estimate_s: time from one estimate of a shadow run to the next; 0 makes none.
        off_cpu: the loop's own, which the process keeps off; none: it has all.
        harden: confine it to the system calls and files that it needs.
    """

    run: Path
    state: Path
    listen: str = "off"
    hosts: tuple[str, ...] = ()
    group: str | None = None
    user: str = "nobody"
    log: str = "json"
    records_mb: float = 256.0
    estimate_s: float = 30.0
    off_cpu: int | None = None
    harden: bool = True


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

        Args:
            options: see there.
            control: the publisher's end of a SOCK_SEQPACKET pair; owned. The process ends when the other end closes.

        Raises:
            ConfigError: an address or socket that is not to be had, no such user or group.
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
                publisher._http = local_listener(options.run / LOCAL_SOCKET, uid)
            elif (address := HttpAddress.parse(options.listen)) is not None:
                publisher._http = http_listener(address)
            publisher._api = control_listener(options.run / "control.sock", Access(os.getuid(), options.group))
            publisher._make_folder(user)
            publisher._spawn()
        except BaseException:
            publisher._release()
            raise
        return publisher

    @property
    def pid(self) -> int:
        """Of the process that was started last."""
        assert self._process is not None
        return self._process.pid

    @property
    def http_port(self) -> int | None:
        """Where metrics and status page are served, if they are, and over a network."""
        address = HttpAddress.of(self._http)
        return None if address is None else address.port

    def alive(self) -> bool:
        """Whether the process runs; one system call."""
        return self._process is not None and self._process.poll() is None

    def restart(self, control: socket.socket | None = None) -> bool:
        """End what runs and start another process, with the same sockets.

        One that keeps ending is started less and less often: after a second, then two, up to a minute. False when it is
        too soon; then nothing is done, and ``control`` is not taken over.

        Args:
            control: replaces the connection; None goes on with the one there is.

        Raises:
            OSError: the process cannot be started.
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
        """Let it write what it has, then end it, and remove its sockets. More than once does nothing.

        Call it after the ring's last tick. It blocks until the process has ended.
        """
        self._end(END_S)
        self._release()

    def _spawn(self) -> None:
        assert self._api is not None
        options, fds = self._options, [self._control.fileno(), self._api.fileno()]
        command = python(f"{__package__}.process")
        command += ["--ring", str((options.run / "ticks").absolute())]
        command += ["--records", str((options.state / "records").absolute())]
        command += ["--control-fd", str(fds[0]), "--api-fd", str(fds[1])]
        command += ["--records-mb", str(options.records_mb), "--estimate-s", str(options.estimate_s)]
        command += ["--log", options.log]
        if self._http is not None:
            fds.append(self._http.fileno())
            command += ["--http-fd", str(fds[2])]
            for host in (socket.gethostname(), *options.hosts):
                command += ["--host", host]
        if options.off_cpu is not None:
            command += ["--off-cpu", str(options.off_cpu)]
        if not options.harden:
            command.append("--no-harden")
        if options.group is not None:
            command += ["--group", options.group]
        if os.geteuid() == 0:
            command += ["--user", options.user]
        # A session of its own: Ctrl-C is for the controller, which ends it after the last tick.
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, pass_fds=fds, start_new_session=True, cwd="/", env=environment()
        )
        let_others_go_first(self._process.pid)
        self._started_s = time.monotonic()

    def _make_folder(self, user: pwd.struct_passwd | None) -> None:
        """The records', for the user who will write them; whatever the umask, root looks into it as the group, since it
        may have no CAP_DAC_OVERRIDE."""
        if not self._options.records_mb:
            return
        folder = self._options.state / "records"
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


def _user(name: str) -> pwd.struct_passwd:
    """Who the process is to run as; raises ConfigError."""
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise ConfigError(f"user = {name!r}: unknown; accepted: a user of this machine") from None
    if user.pw_uid == 0:
        raise ConfigError(f"user = {name!r}: is root; accepted: a user without privileges")
    return user
