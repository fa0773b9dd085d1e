"""Egress rates of a node's slices as the loop sets them: requested here, and set by a thread (`BackgroundCaller`)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial

from slicepilot.controller.system.background import BackgroundCaller, RepeatedCall
from slicepilot.controller.system.kernel_file import ActuatorError

from .cilium.rate import ThrottleRate
from .egress import EgressRate

REPORT_AFTER_S = 1.0
Rate = EgressRate | ThrottleRate
"""Sets a slice's egress rate in the kernel; all methods may wait and raise ActuatorError, but not ``mbps``."""


class Shapers:
    """What sets them.

    Args:
        wait_s: how long the loop waits for its requests.
    """

    def __init__(self, wait_s: float) -> None:
        self._background = BackgroundCaller("egress", wait_s)
        self._all: list[Shaper] = []
        self._pending: list[Shaper] = []
        self._looks = RepeatedCall(self._background, self._look)
        self._since_s: float | None = None

    def add(self, rate: Rate) -> Shaper:
        """One more, open, which from now on is this thread's alone."""
        shaper = Shaper(rate, self._pending, self._background)
        self._all.append(shaper)
        return shaper

    def remove(self, shaper: Shaper) -> None:
        self._all.remove(shaper)
        self._background.call_and_wait(shaper.rate.close)

    def settle(self) -> str | None:
        """Have all rates set that were requested since the last call, and wait a moment for that; returns a message if
        it takes much longer."""
        if not self._background.busy:
            self._since_s = None
        if self._pending:
            request = self._pending[:]
            self._pending.clear()
            self._background.call(partial(_carry_out, request))
        if not self._background.busy:
            self._since_s = None
            return None
        now_s = time.monotonic()
        self._since_s = since_s = now_s if self._since_s is None else self._since_s
        if now_s - since_s < REPORT_AFTER_S:
            return None
        return f"egress rates: not confirmed for {now_s - since_s:.0f} s: the kernel's lock of interfaces is held"

    def look(self) -> None:
        """Look whether each is as it was set; `Shaper.deviation` says it, where it takes longer at the next call."""
        self._looks.start()
        self._looks.take()

    def close(self) -> None:
        """End the thread; the shapers have been released."""
        self._background.close()

    def _look(self) -> None:
        for shaper in self._all[:]:
            shaper.look()


def _carry_out(pending: list[Shaper]) -> None:
    for shaper in pending:
        shaper.carry_out()


class Shaper:
    """One slice's egress rate.

    Attributes:
        rate: the thread's own.
        held: what the kernel is known to have, in Mbit/s; inf where nothing is paced.
        seen_mbps: what it had at the last look.
        wanted: what was requested last.
    """

    def __init__(self, rate: Rate, pending: list[Shaper], background: BackgroundCaller) -> None:
        self.rate, self._pending, self._background = rate, pending, background
        self.held = self.seen_mbps = rate.mbps
        self.wanted = math.inf
        self._waiting = self._again = self._taking = False
        self._failure: ActuatorError | None = None
        self._seen: str | ActuatorError | None = None

    def set(self, egress_mbps: float) -> None:
        """Ask for a rate; it is set when `Shapers.settle` is called, and then in `held` (dead band, a floor)."""
        if egress_mbps == self.wanted and not self._again:
            return
        self.wanted, self._again = egress_mbps, False
        if not self._waiting:
            self._waiting = True
            self._pending.append(self)

    def failure(self) -> ActuatorError | None:
        """Why the requested rate could not be set, once; it is tried again when it is requested again."""
        failure, self._failure = self._failure, None
        return failure

    def read(self) -> float:
        """The rate in the kernel, for which this waits; raises ActuatorError."""
        self.held = held = self._background.call_and_wait(self.rate.read)
        return held

    def deviation(self) -> str | None:
        """A deviation from the set rate that the last look has seen, reported once; raises ActuatorError."""
        seen, self._seen = self._seen, None
        if isinstance(seen, ActuatorError):
            raise seen
        return seen

    def adopt(self) -> float:
        return self._take(self.rate.adopt)

    def reassert(self) -> float:
        """Set again what was set last; raises ActuatorError where that fails at once."""
        return self._take(self.rate.reassert)

    def restore(self) -> None:
        """Take the shaper off, for which this waits; raises ActuatorError."""
        self._background.call_and_wait(self.rate.restore)

    def carry_out(self) -> None:
        """In the thread: set the wanted rate, unless another program has set a rate that was not handled yet."""
        self._waiting = False
        if isinstance(self._seen, str):
            self._again = True
            return
        try:
            self.held = self.rate.set(self.wanted)
        except ActuatorError as error:
            self._failure, self._again = error, True

    def look(self) -> None:
        try:
            self._seen = None if (seen := self.rate.deviation()) is None else self._noted(seen)
        except ActuatorError as error:
            self._seen = error

    def _noted(self, seen: str) -> str:
        try:
            self.seen_mbps = self.rate.read()
        except ActuatorError:  # taken off
            self.seen_mbps = math.inf
        return seen

    def _take(self, call: Callable[[], float]) -> float:
        if not self._taking:
            self._taking = True
            future = self._background.call(lambda: self._took(call))
            if future.done():
                self._failure = None
                future.result()
        return self.held

    def _took(self, call: Callable[[], float]) -> None:
        self._again = True  # whatever is requested next is set
        try:
            self.held = call()
        except ActuatorError as error:
            self._failure = error
            raise
        finally:
            self._seen, self._taking = None, False
