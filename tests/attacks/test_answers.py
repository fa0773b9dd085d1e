"""A publisher under foreign control answers commands of root at a terminal with anything."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from slicepilot.cli import main
from slicepilot.cli.shared.output import print_json
from slicepilot.controller.contracts.answers import OrderAnswer, Status
from tests.examples import example

CODES = "\x1b]0;owned\x07\x1b[2J\u202e[/b]"
SHOWN = "?]0;owned??[2J?[/b]"
Ran = tuple[int, str, str]


@contextlib.contextmanager
def answering(root: Path, line: bytes) -> Iterator[None]:
    """Listens where a publisher does, and answers every client with this line."""
    path = root / "sp" / "control.sock"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.recv(1 << 16)
                connection.sendall(line + b"\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield
        thread.join(10.0)


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Run ``slicepilot control`` against such an answer: its exit code, and what it prints."""

    def run(line: bytes, *arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["slicepilot", "control", *arguments, "--run-root", str(tmp_path)])
        with answering(tmp_path, line), pytest.raises(SystemExit) as stop:
            main()
        assert isinstance(stop.value.code, int)
        reported = capsys.readouterr()
        return stop.value.code, reported.out, reported.err

    return run


def status(**changed: Any) -> dict[str, Any]:
    return {"ok": True, "status": example(Status) | changed}


def lines_of(text: str) -> list[str]:
    """As a terminal has them."""
    return text.removesuffix("\n").split("\n")


def test_a_status_is_shown_as_plain_text(ask: Callable[..., Ran]) -> None:
    honest: Any = example(Status)
    [item], [trip] = honest["slices"], honest["notes"]["trips"]
    reason = item["reasons"][0] | {"reason": CODES}
    document = status(
        run=honest["run"] | {"name": CODES},
        agent=CODES,
        level="latched",
        slices=[item | {"name": CODES, "reasons": [reason]}],
        notes=honest["notes"] | {"trips": [trip | {"slice": CODES, "text": CODES, "remedy": CODES}]},
    )
    code, out, err = ask(json.dumps(document).encode(), "status")
    assert (code, err) == (0, "")
    assert all(line.isprintable() for line in lines_of(out))
    assert out.startswith(f"{SHOWN}: shadow, guard latched, paused, {SHOWN}\n")
    assert f"{SHOWN}: {SHOWN}\n  {SHOWN}\n" in out
    assert f"\n{SHOWN[:11]}" in out


def test_what_an_order_is_answered_is_shown_as_plain_text(ask: Callable[..., Ran]) -> None:
    answer: Any = example(OrderAnswer)
    code, out, err = ask(json.dumps(answer | {"slices": [CODES]}).encode(), "safe")
    recorded = "paused; safe setting ordered; shadow: only recorded"
    assert (code, " ".join(out.split()), err) == (0, f"mode shadow, acting on {SHOWN}; {recorded}", "")


@pytest.mark.parametrize(("reason", "code"), [("input", 2), ("refused", 1)])
def test_a_refusal_is_plain_text(reason: str, code: int, ask: Callable[..., Ran]) -> None:
    answer = {"ok": False, "error": f"{CODES}\n\ud800", "reason": reason}
    assert ask(json.dumps(answer).encode(), "safe") == (code, "", f"slicepilot: error: {SHOWN}??\n")


NEITHER = "no answer: something came that neither accepts the order nor refuses it"
NO_JSON = "no answer: something other than JSON came"
LIES: dict[str, tuple[Any, str]] = {
    "a list of reasons": ({"ok": False, "error": "e", "reason": ["input"]}, NEITHER),
    "no reason": ({"ok": False, "error": "e"}, NEITHER),
    "an error that is no text": ({"ok": False, "error": {"a": CODES}, "reason": "refused"}, NEITHER),
    "yes": ({"ok": "yes"}, NEITHER),
    "nothing": ({}, NEITHER),
    "a list": ([1], NO_JSON),
    "no text": (b"\xff\xfe", NO_JSON),
    "UTF-16": (json.dumps(status()).encode("utf-16-be"), NO_JSON),
    "deep": (b"[" * 100_000, NO_JSON),
    "rather deep": (b'{"ok": true, "status": {"run": ' + b"[" * 400 + b"]" * 400 + b"}}", "no answer: "),
    "very large": (b'{"ok": true, "mode": ' + b"9" * 400 + b"}", NO_JSON),
    "accepted alone": ({"ok": True}, "no answer: "),
    "a status that is none": ({"ok": True, "status": [CODES]}, "no answer: "),
    "slices that are none": (status(slices=[7]) | {"slices": 7, "mode": "live"}, "no answer: "),
    "an unknown field": (status(**{CODES: 1}) | {CODES: 1}, "no answer: "),
    "half a character": (status(agent="\ud800"), "no answer: "),
}


@pytest.mark.parametrize("arguments", [("status",), ("status", "--json"), ("safe",), ("safe", "--json")])
@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_one_line(lie: str, arguments: tuple[str, ...], ask: Callable[..., Ran]) -> None:
    given, words = LIES[lie]
    code, out, err = ask(given if isinstance(given, bytes) else json.dumps(given).encode(), *arguments)
    assert (code, out) == (1, "")
    assert err.startswith(f"slicepilot: error: {words}")
    assert len(lines_of(err)) == 1
    assert err.removesuffix("\n").isprintable()


def test_what_does_not_fit_a_schema_is_named_in_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        print_json(example(OrderAnswer) | {CODES: 1}, OrderAnswer)
    assert capsys.readouterr().err == f"slicepilot: internal error: JSON: {SHOWN} = 1: not in the schema\n"
