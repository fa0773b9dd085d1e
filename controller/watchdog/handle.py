"""Starts a controller's supervisor, restarts it and ends it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slicepilot.controller.system.bpf.libbpf import link_listeners, links_held
from slicepilot.controller.system.kernel_file import ActuatorError
from slicepilot.controller.system.own_programs import start
from slicepilot.controller.system.realtime import ThreadBesideTheLoop

from .keeper import JournalKeeper
from .supervisor import DISARM, LINK

READY_TIMEOUT_S = 10.0
END_TIMEOUT_S = 5.0
ANSWER_BYTES = 1 << 16


class SupervisorHandle:
    """A running supervisor. The tick ring has to exist before it starts.

    Args:
        keeper: has written the journal; kept open until this has ended.
        ring: path of the tick ring.
        lock_descriptors: of `Locks`; the supervisor keeps the locks until it has restored.
        hang_s: time without a heartbeat after which the controller counts as hung; several control periods.
        harden: confine it to the system calls that it needs.
        leave_groups: it leaves this process's cgroups, so that it outlives a container.

    Attributes:
        facts: what it has reported when it was ready: pid, scheduling, memory, groups, confined.
        restarts: how often it had to be started again.

    Raises:
        ActuatorError: it does not start; then no knob may be set.
    """

    def __init__(
        self,
        keeper: JournalKeeper,
        ring: Path,
        lock_descriptors: Sequence[int],
        hang_s: float = 1.0,
        harden: bool = True,
        leave_groups: bool = False,
    ) -> None:
        memory = keeper.memory
        self._keeper, self._starting = keeper, threading.Lock()
        self._options: dict[str, Any] = {
            "state": str(keeper.state),
            "journal": str(keeper.path),
            "ring": str(ring.absolute()),
            "memory": memory.descriptor,
            "hang_s": hang_s,
            "harden": harden,
            "leave_groups": leave_groups,
        }
        self._inherited = (memory.descriptor, *lock_descriptors)
        self._process: subprocess.Popen[bytes]
        self._channel: socket.socket
        self._maps: frozenset[tuple[str, int]]
        self.facts: dict[str, Any]
        self._ended = threading.Event()
        # Idle; it ends before the other threads when this process is killed, which the supervisor notices early.
        self._sentinel = ThreadBesideTheLoop(self._ended.wait, "sentinel")
        self._sentinel.start()
        self._reviving: threading.Thread | None = None
        self.restarts = 0
        try:
            self._start()
        except BaseException:
            self._end_sentinel()
            raise
        link_listeners.append(self._pass_on)

    def alive(self) -> bool:
        """Whether it runs; a microsecond."""
        return self._process.poll() is None

    def restart(self) -> None:
        """Start it again after it was killed; takes a tenth of a second. Raises ActuatorError."""
        with self._starting:
            self._reap()
            self._start()
            self.restarts += 1

    def follow(self) -> None:
        """Replace the supervisor by another if the journal has a map of Cilium that it has not opened; both run
        meanwhile. Raises ActuatorError."""
        with self._starting:
            if self._keeper.maps <= self._maps:
                return
            before = self._process, self._channel, self.facts, self._maps
            try:
                self._start()
            except BaseException:
                self._process, self._channel, self.facts, self._maps = before
                raise
            process, channel, *_ = before
            process.kill()
            process.wait()
            channel.close()

    def revive(self) -> bool:
        """Whether it runs; if not, start it again from another thread, without waiting."""
        if self.alive():
            return True
        if self._reviving is None or not self._reviving.is_alive():
            self._reviving = ThreadBesideTheLoop(self._try_restart, "revive")
            self._reviving.start()
        return False

    def notes(self) -> dict[str, Any]:
        """Facts about the supervisor for the tick ring's notes."""
        facts = {what: self.facts[what] for what in ("groups", "confined")}
        return {"pid": self._process.pid, "restarts": self.restarts, "alive": self.alive(), **facts}

    def disarm_and_wait(self) -> None:
        """End it, after everything was restored and the journal removed.

        Raises:
            ActuatorError: it does not end, because something is left to restore.
        """
        if self._reviving is not None:
            self._reviving.join()
        with contextlib.suppress(OSError):  # it has died
            self._channel.send(DISARM)
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise ActuatorError(f"supervisor {self._process.pid} stays: something is left to restore") from None
        link_listeners.remove(self._pass_on)
        self._reap()
        self._end_sentinel()

    def _end_sentinel(self) -> None:
        self._ended.set()
        self._sentinel.join()

    def _pass_on(self, link: int) -> None:
        with contextlib.suppress(OSError):  # it has died: the next is started with all links
            socket.send_fds(self._channel, [LINK], [link], socket.MSG_DONTWAIT)

    def _start(self) -> None:
        self._maps = self._keeper.maps
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, links_held() as links:
            own = {"pid": os.getpid(), "sentinel": self._sentinel.native_id, "channel": theirs.fileno()}
            fds = (theirs.fileno(), *self._inherited, *links)
            argument = json.dumps(self._options | own)
            self._process = start(
                f"{__package__}.supervisor", argument, options=("-S",), fds=fds, stdout=subprocess.DEVNULL
            )
        try:
            self.facts = self._ready()
        except BaseException:
            self._process.kill()
            self._reap()
            raise

    def _ready(self) -> dict[str, Any]:
        self._channel.settimeout(READY_TIMEOUT_S)
        try:
            answer = self._channel.recv(ANSWER_BYTES)
        except TimeoutError:
            raise ActuatorError(f"supervisor: not ready within {READY_TIMEOUT_S:g} s") from None
        facts: dict[str, Any] = json.loads(answer or b'{"error": "it has ended"}')
        if "error" in facts:
            raise ActuatorError(f"supervisor: {facts['error']}")
        return facts

    def _try_restart(self) -> None:
        with contextlib.suppress(ActuatorError, OSError):  # tried again
            self.restart()

    def _reap(self) -> None:
        self._process.wait()
        self._channel.close()
