"""PFCP session transactions while loads run: a session is established, modified and deleted, again and again."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from slicepilot.testbed.lifecycle.sessions import session_arguments
from slicepilot.testbed.lifecycle.testbed import Testbed

from .traffic import LOAD_PRIORITY

KINDS = {"establish": "establishment", "modify": "modification", "delete": "deletion"}
FIRST_UE, UES = 100, 100  # of sessions that carry nothing, beyond those of the testbed's terminals
REST_MS = 5  # between the transactions of a session


class Transactions:
    """Asks all UPFs in turn through the testbed's SMF, which times each round trip itself, and never waits for it.

    Args:
        testbed: a running testbed whose SMF has no other client. Until `close` the SMF has the load's priority, since
            it has no CPU of its own here and would measure its own wait for a CPU.
    """

    def __init__(self, testbed: Testbed) -> None:
        self._smf = testbed.smf()
        self._smf.answers()  # of before
        self._slices = list(zip(testbed.layout.slices, testbed.slices.slices, strict=True))
        self._sessions = 0
        self.failures: list[str] = []
        [*_, entry] = (e for e in testbed.journal.entries("process") if e["program"] == "smf")
        self._threads = Path(f"/proc/{entry['pid']}/task")
        self._schedule(os.SCHED_FIFO, LOAD_PRIORITY)

    def _schedule(self, policy: int, priority: int) -> None:
        for thread in self._threads.iterdir():
            with contextlib.suppress(ProcessLookupError):  # ended meanwhile
                os.sched_setscheduler(int(thread.name), policy, os.sched_param(priority))

    def begin(self) -> None:
        """Establish the next session, modify and delete it."""
        plan, spec = self._slices[self._sessions % len(self._slices)]
        session = session_arguments(plan, spec, FIRST_UE + self._sessions // len(self._slices) % UES)
        named, rest = {"session": session["session"]}, {"op": "sleep", "ms": REST_MS}
        self._sessions += 1
        self._smf.send(
            {"op": "establish", **session},
            rest,
            {"op": "modify", **named, "mbr_ul_mbps": 50.0},
            rest,
            {"op": "delete", **named},
        )

    def read(self) -> list[tuple[str, float]]:
        """Transactions that ended since the last call: kind and round trip in us, from SMF to UPF and back."""
        result = []
        for answer in self._smf.answers():
            if (kind := KINDS.get(answer.get("op", ""))) is None:
                continue
            if answer.get("ok"):
                result.append((kind, float(answer["rtt_us"])))
            else:
                self.failures.append(f"{kind}: {answer.get('error') or answer.get('cause_text') or answer}")
        return result

    def close(self) -> None:
        """Release the SMF, which goes on as it was."""
        with contextlib.suppress(FileNotFoundError):
            self._schedule(os.SCHED_OTHER, 0)
        self._smf.close()
