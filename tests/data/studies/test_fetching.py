"""Downloads from a real HTTP server on this machine that cuts them off, changes its mind and sends the wrong thing."""

from __future__ import annotations

import fcntl
import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from slicepilot.data.studies.fetching import ATTEMPTS, FetchError, fetch

CONTENT = bytes(range(256)) * 4096  # 1 MiB


class Site:
    """What the server serves, how it misbehaves, and what it was asked.

    Attributes:
        cut_after: bytes of each answer's body after which the connection is closed; None: none.
        ranges: it answers Range; tag: its ETag, None for none; date: its Last-Modified.
        statuses: codes to answer the next requests with, before it serves.
        asked: (Range, If-Range) of each request.
    """

    def __init__(self) -> None:
        self.content = CONTENT
        self.cut_after: int | None = None
        self.ranges = True
        self.tag: str | None = '"one"'
        self.date: str | None = None
        self.sized = True
        self.statuses: list[int] = []
        self.asked: list[tuple[str | None, str | None]] = []
        self.address = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        asked, condition = handler.headers.get("Range"), handler.headers.get("If-Range")
        self.asked.append((asked, condition))
        if self.statuses:
            handler.send_error(self.statuses.pop(0))
            return
        start = 0
        if asked and self.ranges and condition in {self.tag, self.date}:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(self.content):
                handler.send_error(416)
                return
        body = self.content[start:]
        handler.send_response(206 if start else 200)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        if self.sized:
            handler.send_header("Content-Length", str(len(body)))
        for name, value in (("ETag", self.tag), ("Last-Modified", self.date)):
            if value is not None:
                handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body if self.cut_after is None else body[: self.cut_after])


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
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
    return fetch(site.address, target, pause_s=0.0, timeout_s=10.0, **options)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_a_whole_file(site: Site, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    target = tmp_path / "new" / "data.bin"
    digest = hashlib.sha256(CONTENT).hexdigest()
    fetched = get(site, target, sha256=digest, num_bytes=len(CONTENT), on_progress=lambda *now: seen.append(now))
    assert target.read_bytes() == CONTENT
    assert (fetched.sha256, fetched.num_bytes, fetched.resumed_from, fetched.checked) == (digest, len(CONTENT), 0, True)
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert names_in(tmp_path) == ["data.bin"]


def test_a_file_that_is_there_is_not_fetched_again(site: Site, tmp_path: Path) -> None:
    target = tmp_path / "data.bin"
    target.write_bytes(CONTENT)
    fetched = get(site, target, sha256=hashlib.sha256(CONTENT).hexdigest())
    assert site.asked == []
    assert fetched.resumed_from == len(CONTENT)
    with pytest.raises(FetchError, match=r"SHA-256 is .*; published: 0000.*; remove it to fetch"):
        get(site, target, sha256="0" * 64)
    assert target.exists()


def test_an_interrupted_transfer_goes_on_where_it_stopped(site: Site, tmp_path: Path) -> None:
    site.cut_after = 300_000
    fetched = get(site, tmp_path / "data.bin")
    assert (tmp_path / "data.bin").read_bytes() == CONTENT
    assert site.asked == [(None, None), *((f"bytes={n * 300_000}-", '"one"') for n in (1, 2, 3))]
    assert fetched.resumed_from == 0


def test_a_later_call_goes_on_too(site: Site, tmp_path: Path) -> None:
    target = tmp_path / "data.bin"
    site.cut_after = 300_000
    first_request_only(site)
    with pytest.raises(FetchError, match=r"the server answers 503 .*, 5 times in a row; 300,000 bytes are kept"):
        get(site, target)
    assert names_in(tmp_path) == ["data.bin.part", "data.bin.part.json"]
    site.cut_after, site.statuses = None, []
    assert get(site, target).resumed_from == 300_000
    assert target.read_bytes() == CONTENT
    assert names_in(tmp_path) == ["data.bin"]


def first_request_only(site: Site) -> None:
    """After the first request the server is busy."""
    plain = site.answer

    def answer(handler: BaseHTTPRequestHandler) -> None:
        plain(handler)
        if len(site.asked) == 1:
            site.statuses = [503] * ATTEMPTS

    site.answer = answer  # type: ignore[method-assign]


def test_a_file_that_has_changed_starts_over(site: Site, tmp_path: Path) -> None:
    target = tmp_path / "data.bin"
    site.cut_after = 300_000
    first_request_only(site)
    with pytest.raises(FetchError):
        get(site, target)
    site.cut_after, site.statuses = None, []
    site.content, site.tag = CONTENT[::-1], '"two"'
    get(site, target)
    assert target.read_bytes() == CONTENT[::-1]
    assert site.asked[-1] == ("bytes=300000-", '"one"')


def test_a_file_that_has_become_shorter_starts_over(site: Site, tmp_path: Path) -> None:
    target = tmp_path / "data.bin"
    site.cut_after = 300_000
    first_request_only(site)
    with pytest.raises(FetchError):
        get(site, target)
    site.cut_after, site.statuses = None, []
    site.content = CONTENT[:1000]  # under the same tag
    get(site, target)
    assert target.read_bytes() == CONTENT[:1000]


def test_a_date_does_where_there_is_no_tag(site: Site, tmp_path: Path) -> None:
    site.tag, site.date, site.cut_after = None, "Sat, 01 Nov 2025 10:00:00 GMT", 600_000
    get(site, tmp_path / "data.bin")
    assert site.asked[1] == ("bytes=600000-", site.date)
    assert (tmp_path / "data.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("weakness", ["no ranges", "weak tag", "no tag"])
def test_a_server_that_cannot_resume_is_asked_for_all_again(weakness: str, site: Site, tmp_path: Path) -> None:
    site.cut_after = 300_000
    if weakness == "no ranges":
        site.ranges = False
    else:
        site.tag = 'W/"one"' if weakness == "weak tag" else None
    with pytest.raises(FetchError, match="the transfer was cut off, 5 times in a row"):
        get(site, tmp_path / "data.bin")
    assert len(site.asked) <= ATTEMPTS + 1
    site.cut_after = None
    get(site, tmp_path / "data.bin")
    assert (tmp_path / "data.bin").read_bytes() == CONTENT


def test_a_file_that_another_process_fetches_is_left_alone(site: Site, tmp_path: Path) -> None:
    part = tmp_path / "data.bin.part"
    part.touch()
    with part.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(FetchError, match=r"data\.bin: is being fetched by another process"):
            get(site, tmp_path / "data.bin")
    assert (site.asked, part.exists()) == ([], True)
    get(site, tmp_path / "data.bin")
    assert (tmp_path / "data.bin").read_bytes() == CONTENT


def test_a_wrong_checksum_keeps_nothing(site: Site, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"SHA-256 is .*; published: 0000.*; nothing was kept"):
        get(site, tmp_path / "data.bin", sha256="0" * 64)
    assert names_in(tmp_path) == []


def test_a_wrong_size_keeps_nothing(site: Site, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="1,048,576 bytes; published: 5; nothing was kept"):
        get(site, tmp_path / "data.bin", num_bytes=5)
    assert names_in(tmp_path) == []


def test_a_busy_server_is_asked_again(site: Site, tmp_path: Path) -> None:
    site.statuses = [503, 429, 500]
    get(site, tmp_path / "data.bin")
    assert len(site.asked) == 4


def test_a_refusal_ends_it_at_once(site: Site, tmp_path: Path) -> None:
    site.statuses = [404]
    with pytest.raises(FetchError, match="the server answers 404 Not Found") as caught:
        get(site, tmp_path / "data.bin")
    assert len(site.asked) == 1
    assert site.address in str(caught.value)
    assert names_in(tmp_path) == []


def test_nobody_answers(site: Site, tmp_path: Path) -> None:
    address = site.address.replace(site.address.split(":")[2].split("/")[0], "1")
    with pytest.raises(FetchError, match=r"no answer: .*, 5 times in a row"):
        fetch(address, tmp_path / "data.bin", pause_s=0.0, timeout_s=5.0)


def test_only_http_is_fetched(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="expected an address that starts with http"):
        fetch("file:///etc/hostname", tmp_path / "x")


def test_a_folder_that_cannot_be_made(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FetchError, match="file"):
        get(site, tmp_path / "file" / "data.bin")


def test_a_file_whose_length_the_server_does_not_say(site: Site, tmp_path: Path) -> None:
    site.sized = False
    assert get(site, tmp_path / "data.bin").num_bytes == len(CONTENT)
