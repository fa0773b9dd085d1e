"""Downloads from a real HTTP server on this machine that cuts them off and is busy."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from slicepilot.data.studies import fetching
from slicepilot.data.studies.fetching import ATTEMPTS, FetchError, fetch

CONTENT = bytes(range(256)) * 4096  # 1 MiB


class Site:
    """What the server serves, how it misbehaves, and how often it had a request.

    Attributes:
        cut: of each of the next answers, the bytes of its body after which the connection is closed.
        statuses: codes to answer the next requests with, before it serves.
    """

    def __init__(self) -> None:
        self.content = CONTENT
        self.cut: list[int] = []
        self.sized = True
        self.statuses: list[int] = []
        self.requests = 0
        self.address = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.requests += 1
        if self.statuses:
            handler.send_error(self.statuses.pop(0))
            return
        handler.send_response(200)
        if self.sized:
            handler.send_header("Content-Length", str(len(self.content)))
        handler.end_headers()
        handler.wfile.write(self.content[: self.cut.pop(0)] if self.cut else self.content)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(fetching, "PAUSE_S", 0.0)
    served = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.answer(self)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    served.address = f"http://127.0.0.1:{server.server_port}/data.bin"
    yield served
    server.shutdown()
    thread.join()
    server.server_close()


def get(site: Site, target: Path, **options: Any) -> Any:
    return fetch(site.address, target, **options)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_a_whole_file(site: Site, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    target = tmp_path / "new" / "data.bin"
    digest = get(site, target, on_progress=lambda *now: seen.append(now))
    assert target.read_bytes() == CONTENT
    assert digest == hashlib.sha256(CONTENT).hexdigest()
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert names_in(tmp_path) == ["data.bin"]


def test_a_file_that_is_there_is_not_fetched_again(site: Site, tmp_path: Path) -> None:
    target = tmp_path / "data.bin"
    target.write_bytes(CONTENT)
    assert get(site, target) == hashlib.sha256(CONTENT).hexdigest()
    assert site.requests == 0


def test_a_transfer_that_is_cut_off_begins_anew(site: Site, tmp_path: Path) -> None:
    site.cut = [300_000, 0, 1_000_000]
    get(site, tmp_path / "data.bin")
    assert (tmp_path / "data.bin").read_bytes() == CONTENT
    assert site.requests == 4
    site.cut = [300_000] * ATTEMPTS
    with pytest.raises(FetchError, match="the transfer was cut off, 5 times in a row"):
        get(site, tmp_path / "other.bin")
    assert names_in(tmp_path) == ["data.bin"]


def test_a_file_that_another_process_fetches_is_not_disturbed(site: Site, tmp_path: Path) -> None:
    theirs = tmp_path / ".data.bin.1"
    theirs.write_bytes(b"half")
    get(site, tmp_path / "data.bin")
    assert (tmp_path / "data.bin").read_bytes() == CONTENT
    assert theirs.read_bytes() == b"half"


def test_a_busy_server_gets_another_request(site: Site, tmp_path: Path) -> None:
    site.statuses = [503, 429, 500]
    get(site, tmp_path / "data.bin")
    assert site.requests == 4


def test_a_refusal_ends_it_at_once(site: Site, tmp_path: Path) -> None:
    site.statuses = [404]
    with pytest.raises(FetchError, match="the server answers 404 Not Found") as caught:
        get(site, tmp_path / "data.bin")
    assert site.requests == 1
    assert site.address in str(caught.value)
    assert names_in(tmp_path) == []


def test_nobody_answers(site: Site, tmp_path: Path) -> None:
    address = site.address.replace(site.address.split(":")[2].split("/")[0], "1")
    with pytest.raises(FetchError, match=r"no answer: .*, 5 times in a row"):
        fetch(address, tmp_path / "data.bin")


def test_only_http_is_fetched(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="expected an address that starts with http"):
        fetch("file:///etc/hostname", tmp_path / "x")


def test_a_file_whose_length_the_server_does_not_say(site: Site, tmp_path: Path) -> None:
    site.sized = False
    get(site, tmp_path / "data.bin")
    assert (tmp_path / "data.bin").read_bytes() == CONTENT
