"""The web server of `ue`, asked by a client that shares no code with it."""

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from .built import built

UE = built("ue")


@pytest.fixture
def server() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with subprocess.Popen([UE, f"--serve={address}"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "ready"
        yield f"http://{address}"
        process.terminate()
    assert process.returncode == 0


def loaded(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=20) as answer:
        assert int(answer.headers["Content-Length"]) >= 0
        content: bytes = answer.read()
        return content


def test_an_answer_has_so_many_octets_and_its_rate(server: str) -> None:
    assert len(loaded(f"{server}/1000000")) == 1_000_000
    assert loaded(f"{server}/0") == b""
    before = time.monotonic()
    assert len(loaded(f"{server}/3000000?rate=16000000")) == 3_000_000
    assert time.monotonic() - before > 0.75, "1.5 s of 16 Mbit/s, less the first window, which is sent at once"


@pytest.mark.parametrize("path", ["/", "/-1", "/many", "/1e3", "/10?rate=0", "/10?rate=fast", "/99999999999999999999"])
def test_another_request_is_refused(server: str, path: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(server + path, timeout=10)
