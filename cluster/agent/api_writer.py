"""The thread that writes to the API server: Leases, pods, status, Events, sums."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from slicepilot.cluster.client.errors import ApiError
from slicepilot.cluster.client.lease import Lease

STEP_S = 0.25
LAST_REQUEST_S = 3.0
RESTORE_S = 8.0

Step = Callable[[float], None]


class ApiWriter:
    """Calls each step in turn, again and again; each waits for a single answer at most.

    Args:
        steps: called with the monotonic time; may raise ApiError.
        leases: released at the end.
        failed: called with the text of an error.
    """

    def __init__(self, steps: Sequence[Step], leases: Sequence[Lease], failed: Callable[[str], None]) -> None:
        self._steps, self._leases, self._failed = steps, leases, failed
        self._woken, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="api writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._woken.set()

    def close(self, unfinished: Callable[[], bool]) -> None:
        """End and release the Leases, once nothing is unfinished or `RESTORE_S` have passed."""
        until_s = time.monotonic() + RESTORE_S
        while self._thread.is_alive() and unfinished() and time.monotonic() < until_s:
            time.sleep(STEP_S)
        self._ended.set()
        self._woken.set()
        if self._thread.ident is not None:
            self._thread.join(LAST_REQUEST_S)

    def _run(self) -> None:
        while not self._ended.is_set():
            self._woken.wait(STEP_S)
            self._woken.clear()
            now_s = time.monotonic()
            for step in self._steps:
                try:
                    step(now_s)
                except ApiError as error:
                    self._failed(str(error))
        for lease in self._leases:
            lease.release()
