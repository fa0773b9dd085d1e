"""The SMF of a testbed: a long-lived process that holds the PFCP sessions and takes commands line by line."""

from __future__ import annotations

import json
import os
import select
import time
from pathlib import Path
from typing import Any

from slicepilot.env.slices import SliceSpec

from .layout import PFCP_PORT, SlicePlan
from .processes import ProgramError

ANSWER_TIMEOUT_S = 10.0
COMMANDS, ANSWERS = "smf.commands", "smf.answers"


class SmfClient:
    """Talks to the testbed's SMF through two named pipes in its state folder.

    Named pipes outlive their writers: the SMF goes on (heartbeats, retransmissions) after ``testbed up`` has
    returned, and a later command can talk to it again.
    """

    def __init__(self, state: Path) -> None:
        self._commands = os.open(state / COMMANDS, os.O_RDWR | os.O_CLOEXEC)
        # Read and write: the pipe then never reports its end while the SMF restarts.
        self._answers = os.open(state / ANSWERS, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        self._pending = b""

    @staticmethod
    def make_pipes(state: Path) -> tuple[int, int]:
        """Create both pipes; descriptors for the SMF's standard input and output."""
        for name in (COMMANDS, ANSWERS):
            os.mkfifo(state / name, 0o600)
        return (
            os.open(state / COMMANDS, os.O_RDWR | os.O_CLOEXEC),
            os.open(state / ANSWERS, os.O_RDWR | os.O_CLOEXEC),
        )

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events that come in between are dropped.

        Raises:
            ProgramError: no answer in time, or an answer that reports a failure.
        """
        mark = f"{os.getpid()}-{time.monotonic_ns()}"
        os.write(self._commands, (json.dumps({"op": op, "id": mark, **arguments}) + "\n").encode())
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while (answer := self._next(deadline)).get("id") != mark:
            pass
        if not answer.get("ok"):
            raise ProgramError(f"smf: {op}: {answer.get('error') or answer.get('cause_text') or answer}")
        return answer

    def send(self, *commands: dict[str, Any]) -> None:
        """Send commands without waiting for their answers, some 30 kB of them at most; `answers` has these later."""
        os.write(self._commands, "".join(json.dumps(command) + "\n" for command in commands).encode())

    def answers(self) -> list[dict[str, Any]]:
        """The SMF's answers and events since the last call; never waits."""
        while select.select([self._answers], [], [], 0.0)[0]:
            self._pending += os.read(self._answers, 65536)
        *lines, self._pending = self._pending.split(b"\n")
        return [json.loads(line) for line in lines]

    def wait_ready(self) -> None:
        """Wait for the SMF's first line."""
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while self._next(deadline).get("event") != "ready":
            pass

    def associate(self, plan: SlicePlan) -> None:
        """Set up the association with a slice's UPF."""
        self.ask("associate", upf=f"{plan.n4_upf}:{PFCP_PORT}")

    def establish(self, plan: SlicePlan, spec: SliceSpec, ue: int) -> dict[str, Any]:
        """Establish a UE's session; the answer has its round trip in ``rtt_us``."""
        return self.ask("establish", **session_arguments(plan, spec, ue))

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\n" not in self._pending:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise ProgramError(f"smf: no answer within {ANSWER_TIMEOUT_S:g} s")
            self._pending += os.read(self._answers, 65536)
        line, self._pending = self._pending.split(b"\n", 1)
        answer = json.loads(line)
        return answer if isinstance(answer, dict) else {}

    def close(self) -> None:
        """Release the pipes; the SMF goes on."""
        os.close(self._commands)
        os.close(self._answers)


def session_name(plan: SlicePlan, ue: int) -> str:
    """How the SMF calls a UE's session."""
    return f"{plan.name}/{ue}"


def session_arguments(plan: SlicePlan, spec: SliceSpec, ue: int) -> dict[str, Any]:
    """Arguments of the command ``establish`` for a UE's session."""
    s_nssai: dict[str, Any] = {"sst": spec.s_nssai.sst}
    if spec.s_nssai.sd is not None:
        s_nssai["sd"] = spec.s_nssai.sd
    return {
        "upf": f"{plan.n4_upf}:{PFCP_PORT}",
        "session": session_name(plan, ue),
        "ue": plan.ue(ue),
        "teid": plan.teid(ue),
        "qfi": plan.qfi,
        "n3": plan.n3_upf,
        "gnb": plan.n3_ran,
        "gnb_teid": plan.teid(ue),
        "dnn": spec.dnn,
        **s_nssai,
    }
