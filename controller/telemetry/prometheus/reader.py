"""The client process: HTTP, TLS and names are its alone, and whoever waits for an answer is not the loop.

It has its settings from standard input, secrets among them, gives up all that it could do on this machine, and tells
what it was answered by a socket, one message a round. It ends when the other end of that closes.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import time
from typing import Any

import numpy as np

from slicepilot.configs import FailureError, validate
from slicepilot.controller.system import privileges
from slicepilot.controller.system.confinement import confine_client

from .client import Client, OutOfReachError, PrometheusError
from .config import PrometheusSpec, Row

MESSAGE_BYTES = 1 << 17


def main() -> None:
    """Ask until nobody listens any more; the descriptor of the socket is the first argument."""
    settings = json.load(sys.stdin)
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        try:
            client = Client(validate(PrometheusSpec, settings["spec"], "prometheus"), settings["secrets"])
            privileges.drop_all(privileges.NOBODY if os.geteuid() == 0 else None)
        except (FailureError, OSError) as error:
            _send(listener, {"error": str(error), "rows": []})
            return
        if settings["harden"]:
            confine_client()
        rows = [Row(**{**row, "samples": tuple(row["samples"])}) for row in settings["rows"]]
        _ask(client, rows, settings["most_age_s"], settings["every_s"], listener)


def _ask(client: Client, rows: list[Row], most_age_s: float, every_s: float, listener: socket.socket) -> None:
    """Rounds, ``every_s`` from the start of one to the start of the next."""
    due_s = time.monotonic()
    while True:
        if not _send(listener, _round(client, rows, most_age_s)):
            return
        due_s = max(due_s + every_s, time.monotonic())
        while (left_s := due_s - time.monotonic()) > 0:
            readable, _, _ = select.select([listener], [], [], left_s)
            if readable:  # nobody sends: it has closed
                return


def _round(client: Client, rows: list[Row], most_age_s: float) -> dict[str, Any]:
    """Every row once; after a question that nobody answers no other is asked."""
    result, error = [], None
    for row in rows:
        try:
            reading = client.now(row, most_age_s)
        except OutOfReachError as gone:
            return {"error": str(gone), "rows": []}
        except PrometheusError as bad:
            error = error or str(bad)
            continue
        age_s = np.maximum(time.time() - reading.newest_s[-1], 0.0)
        result.append(
            {
                "kind": row.kind,
                "name": row.name,
                "values": reading.values[-1].tolist(),
                "taken_s": (_clock_s() - age_s).tolist(),
                "why": reading.why,
            }
        )
    return {"error": error, "rows": result}


def _send(listener: socket.socket, message: dict[str, Any]) -> bool:
    """Whether somebody listens; what is too long for a message is left out."""
    data = json.dumps(message).encode()
    if len(data) > MESSAGE_BYTES:
        data = json.dumps({"error": "prometheus: more slices than go into a message", "rows": []}).encode()
    try:
        listener.send(data)
    except OSError:
        return False
    return True


def _clock_s() -> float:
    """Of this machine, whoever sets its time, suspended or not."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


if __name__ == "__main__":
    main()
