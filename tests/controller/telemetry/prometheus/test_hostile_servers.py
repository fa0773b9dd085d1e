"""Servers that are not what they should be."""

from __future__ import annotations

import http.server
import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from slicepilot.configs import FailureError
from slicepilot.controller.telemetry.prometheus.source import PrometheusSource

from .servers import answer, serving, vector
from .sources import PERIOD_S, reported, source_of, spec_of, until, valid


def endless(request: http.server.BaseHTTPRequestHandler, pause_s: float = 0.0, status: int = 200) -> None:
    request.send_response(status)
    request.send_header("Location", "http://elsewhere.example/api/v1/query")
    request.end_headers()
    chunk = b" " if pause_s else bytes(1 << 20)
    for _ in range(1 << 10):
        request.wfile.write(chunk)
        time.sleep(pause_s)


BAD: dict[str, tuple[Callable[[Any], None], str]] = {
    "a gigabyte": (endless, r"answers with more than 1 MB \(most_mbytes\)"),
    "a redirect with a gigabyte": (lambda r: endless(r, status=302), "answers 302, a redirect to elsewhere.example"),
    "a byte now and then": (lambda r: endless(r, 0.2), "no answer within 1 s"),
    "slow": (lambda r: time.sleep(10), "no answer within 1 s"),
    "NaN": (lambda r: answer(r, vector("NaN")), "its query gives nan, which is not believed"),
    "Inf": (lambda r: answer(r, vector("+Inf")), "its query gives inf, which is not believed"),
    "too much": (lambda r: answer(r, vector("1e300")), r"its query gives 1e\+300, which is not believed"),
    "negative": (lambda r: answer(r, vector("-3")), "its query gives -3, which is not believed"),
    "old": (lambda r: answer(r, vector(taken_s=time.time() - 90)), r"the newest sample of .* is 90 s old"),
    "from the future": (lambda r: answer(r, vector(taken_s=time.time() + 90)), "are 90 s ahead of this machine's"),
    "no JSON": (lambda r: answer(r, b"<html>hello</html>"), "not an answer of a Prometheus server"),
    "deep JSON": (lambda r: answer(r, b"[" * 500_000), "not an answer of a Prometheus server"),
    "no list": (lambda r: answer(r, b'{"data": {"result": {}}}'), "not an answer of a Prometheus server"),
    "another JSON": (lambda r: answer(r, b'{"data": {"result": [7]}}'), "not an answer of a Prometheus server"),
    "no number": (lambda r: answer(r, vector("many")), "a value that is no number"),
    "compressed": (lambda r: answer(r, b"x", Content_Encoding="gzip"), "answers compressed"),
    "401": (
        lambda r: answer(r, b"", 401),
        "answers 401: .*the client is not known: give token_file",
    ),
    "503": (lambda r: answer(r, b"\x1b[2Jaway", 503), r"answers 503: \?\[2Jaway$"),
    "an error": (lambda r: answer(r, b'{"error": "\\u001b[2J no"}', 422), r"offered_mbps: answers 422: \?\[2J no"),
}


@pytest.mark.parametrize("name", ["503", "another JSON", "a byte now and then"])
def test_a_hostile_server_at_the_start_is_one_line(name: str) -> None:
    handle, words = BAD[name]
    with serving(handle) as address:
        began = time.monotonic()
        with pytest.raises(FailureError, match=words) as caught:
            PrometheusSource(spec_of(f"http://{address}", timeout_s=1.0, most_mbytes=1.0), ("s1",), PERIOD_S)
        assert time.monotonic() - began < 8.0
        assert str(caught.value).isprintable()


def test_a_server_that_turns_hostile_takes_nothing_with_it() -> None:
    """One after the other, on a source that has begun well; a proxy of the environment is not used."""
    good: Callable[[Any], None] = lambda request: answer(request, vector("0.5"))  # noqa: E731
    now: list[Any] = [good]
    os.environ["http_proxy"] = "http://127.0.0.1:1"
    try:
        with (
            serving(lambda request: now[0](request)) as address,  # noqa: PLW0108 (another each time)
            source_of(spec_of(f"http://{address}", timeout_s=1.0, most_mbytes=1.0)) as source,
        ):
            for bad, words in BAD.values():
                now[0] = bad
                lines = until(lambda words=words: reported(source, words))
                assert all(line.isprintable() for line in lines)
                now[0] = good
                until(lambda: valid(source) == [True] and source.check() == [])
    finally:
        del os.environ["http_proxy"]
