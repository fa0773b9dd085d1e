"""What an operator can order a running controller to do, parsed once, by the controller.

An order is a JSON object: ``{"command": "mode", "mode": "canary", "slices": ["slice1"]}``, ``{"command": "pause"}``,
``resume``, ``safe``, or ``{"command": "reload", "bundle": PATH, "guard": NAME_OR_PATH}`` with one of the two or both.
(``status`` is not for the controller: its publisher answers it.)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slicepilot.configs import ConfigError, did_you_mean

from .modes import MODES, Mode

FIELDS: dict[str, tuple[str, ...]] = {
    "mode": ("mode", "slices", "force"),
    "pause": (),
    "resume": (),
    "safe": (),
    "reload": ("bundle", "guard", "force"),
}
MAX_ORDER_BYTES, ID_BYTES = 1 << 16, 8
"""Limit of a line; length of the number before a line and before its answer, between publisher and controller."""
MAX_PATH, MAX_ERROR = 4096, 500

Answer = dict[str, Any]


@dataclass(frozen=True)
class Order:
    """A checked order.

    Attributes:
        command: one of `FIELDS`.
        mode, slices: of ``mode``; slices for the canary only.
        bundle, guard: of ``reload``; None keeps the present bundle or guard.
        force: take a bundle that was never promoted.
    """

    command: str
    mode: Mode | None = None
    slices: tuple[str, ...] = ()
    bundle: str | None = None
    guard: str | None = None
    force: bool = False


def refusal(error: str, reason: str) -> Answer:
    """A refusal, in one line."""
    line = " ".join(error.split())
    return {"ok": False, "error": line if len(line) <= MAX_ERROR else f"{line[: MAX_ERROR - 3]}...", "reason": reason}


def parse(line: bytes, slice_names: Sequence[str]) -> Order:
    """The order on a line, for a node with these slices.

    Raises:
        ConfigError: names the field, the value and what is expected, with the nearest valid name.
    """
    try:
        return _order(_object_on(line), slice_names)
    except RecursionError:  # of json, or of the text of an error
        raise ConfigError("order: too deeply nested; expected one object on a line") from None


def _order(request: dict[str, Any], slice_names: Sequence[str]) -> Order:
    command = request.get("command")
    if not isinstance(command, str) or command not in FIELDS:
        raise ConfigError(f"command = {_shown(command)}; {did_you_mean(command, FIELDS)}")
    for name in request:
        if name != "command" and name not in FIELDS[command]:
            raise ConfigError(f"{command}: unknown field {_shown(name)}; {did_you_mean(name, FIELDS[command])}")
    force = request.get("force", False)
    if not isinstance(force, bool):
        raise ConfigError(f"force = {_shown(force)}; expected true or false")
    if command == "mode":
        return _mode(request, slice_names, force)
    if command == "reload":
        return _reload(request, force)
    return Order(command)


def _object_on(line: bytes) -> dict[str, Any]:
    """The JSON object on a line; raises ConfigError."""
    try:
        # Decoded here: of bytes, json would guess UTF-16, for which a confined process may not read the decoder.
        order = json.loads(line.decode(), object_pairs_hook=_object)
    except ConfigError:
        raise
    except ValueError:
        raise ConfigError("order: not valid JSON; expected one object on a line") from None
    if not isinstance(order, dict):
        raise ConfigError(f"order: {type(order).__name__}; expected one object on a line")
    return order


def _mode(request: dict[str, Any], slice_names: Sequence[str], force: bool) -> Order:
    wanted, slices = request.get("mode"), request.get("slices", [])
    if not isinstance(wanted, str) or wanted not in MODES:
        raise ConfigError(f"mode = {_shown(wanted)}; {did_you_mean(wanted, MODES)}")
    mode = MODES[wanted]
    if not isinstance(slices, list) or len(slices) > len(slice_names):
        raise ConfigError(f"slices = {_shown(slices)}; expected a list of names of this node's slices")
    for name in slices:
        if name not in slice_names:
            raise ConfigError(f"slices: unknown name {_shown(name)}; {did_you_mean(name, slice_names)}")
    if (mode is Mode.CANARY) != bool(slices):
        expected = "at least one slice for canary: --slices NAME" if mode is Mode.CANARY else "slices for canary only"
        raise ConfigError(f"slices = {_shown(slices)}; expected {expected}")
    return Order("mode", mode, tuple(dict.fromkeys(slices)), force=force)


def _reload(request: dict[str, Any], force: bool) -> Order:
    paths: dict[str, str | None] = {}
    for name in ("bundle", "guard"):
        value = paths[name] = request.get(name)
        if value is not None and not (isinstance(value, str) and 0 < len(value) <= MAX_PATH and "\0" not in value):
            raise ConfigError(f"{name} = {_shown(value)}; expected a path")
    if not any(paths.values()):
        raise ConfigError("reload: neither bundle nor guard; expected at least one of them")
    return Order("reload", bundle=paths["bundle"], guard=paths["guard"], force=force)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ConfigError("order: a field is given twice")
    return values


def _shown(value: Any) -> str:
    """An untrusted value, shortened to fit on a line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
