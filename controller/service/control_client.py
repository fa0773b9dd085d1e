"""The other end of a controller's control socket, for commands and scripts."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from pathlib import Path
from typing import Any

from slicepilot.configs import ConfigError
from slicepilot.configs.text import printable
from slicepilot.controller.contracts.running import not_running

from .run_config import RunConfig

ANSWER_S = 35.0
"""A little more than the publisher waits for the loop's process."""
MAX_ANSWER_BYTES = 1 << 24
BEATS_S = 3.0
"""A loop without a sign of life for longer does not run."""
MOST_DIGITS = 20
"""Limit for whole numbers; times in nanoseconds have 19 digits."""


class ControlError(RuntimeError):
    """The controller refused an order, or did not answer."""


class ControlClient:
    """One connection.

    Args:
        path: of ``control.sock``, see `find_socket`.
        answer_s: how long to wait for an answer.

    Raises:
        ConfigError: no controller listens there, or not to this user.
    """

    def __init__(self, path: Path, answer_s: float = ANSWER_S) -> None:
        self._answer_s, self._ring = answer_s, path.parent / "ticks"
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # A timeout of Python's would make connecting not wait: where many want to, the kernel lets them in by turns.
        patience = struct.pack("@ll", int(answer_s) + 1, 0)
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
        try:
            self._connection.connect(str(path))
            self._connection.settimeout(answer_s)
        except (FileNotFoundError, ConnectionRefusedError):
            self._connection.close()
            raise ConfigError(f"{path}: no controller listens there; is it running?") from None
        except OSError as error:
            self._connection.close()
            detail = error.strerror or error
            raise ConfigError(f"{path}: {detail}; expected root, or a member of the controller's group") from error

    def request(self, order: dict[str, Any]) -> dict[str, Any]:
        """Send an order (`slicepilot.controller.contracts.orders`), wait for its answer and return that.

        Raises:
            ConfigError: the order is not valid, or not from this user.
            ControlError: the controller refused, or there was no valid answer: answers come from the publisher, which
                is not trusted.
        """
        try:
            self._connection.sendall(json.dumps(order).encode() + b"\n")
        except BrokenPipeError:
            pass  # the reason may have been sent before
        except OSError as error:
            raise ControlError(f"control socket: {error.strerror or error}") from error
        answer: Any = None
        with contextlib.suppress(ValueError, RecursionError):
            answer = json.loads(self._line().decode(), parse_int=_whole)
        if not isinstance(answer, dict):
            raise ControlError("no answer: something other than JSON came")
        ok, why, reason = (answer.get(name) for name in ("ok", "error", "reason"))
        if ok is True:
            return answer
        if ok is not False or not isinstance(why, str) or not isinstance(reason, str):
            raise ControlError("no answer: something came that neither accepts the order nor refuses it")
        raise (ConfigError if reason in {"input", "denied"} else ControlError)(printable(why))

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _line(self) -> bytes:
        line, until_s = bytearray(), time.monotonic() + self._answer_s
        while not line.endswith(b"\n"):
            try:
                part = self._connection.recv(1 << 16)
            except TimeoutError as error:
                raise ControlError(f"no answer in time: {loop_state(self._ring)}") from error
            except OSError as error:
                raise ControlError(f"no answer: {error.strerror or error}") from error
            if not part or len(line) > MAX_ANSWER_BYTES or time.monotonic() > until_s:
                raise ControlError("no answer: the controller's publisher hung up")
            line += part
        return bytes(line)


def loop_state(ring: Path) -> str:
    """What the loop does whose publisher does not answer, and how it is ordered without that."""
    from slicepilot.controller.record.ring_reader import TickReader

    try:
        reader = TickReader(ring)
        try:
            beats, pid = time.monotonic_ns() - reader.beat_ns < BEATS_S * 1e9, reader.description()[1].get("pid")
            ticks = reader.written > 0
        finally:
            reader.close()
    except ConfigError as error:
        return str(error)
    if not (ticks and beats and pid):
        return "the controller is still starting, or hangs"
    return (
        f"its publisher is busy or still starting, but the loop runs (pid {pid}): `slicepilot top` shows it, "
        f"kill -USR1 {pid} orders shadow at once, and SIGTERM ends it and restores the knobs"
    )


def _whole(digits: str) -> int:
    """A number of an answer, unless it is too large for a float."""
    if len(digits) > MOST_DIGITS:
        raise ValueError("a number of too many digits")
    return int(digits)


def find_socket(name: str | None, run_root: Path | None = None) -> Path:
    """Control socket of a controller by its name; without a name, of the only controller that runs.

    Args:
        name: of the controller.
        run_root: folder of the controllers' run folders; the default if not given.

    Raises:
        ConfigError: no controller has that name, or several run and no name is given.
    """
    root = Path(run_root or RunConfig.run_root)
    running = {path.parent.name: path for path in sorted(root.glob("*/control.sock"))}
    if name is None and len(running) == 1:
        return next(iter(running.values()))
    if name in running:
        return running[name]
    raise not_running(name, root, list(running))
