"""The HTTP server (`http.server`) of the status page, the status as JSON, and the metrics. It takes GET and HEAD, one
request a connection, and limits connections (`connections`), size and time of a request, and time of an answer."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import io
import ipaddress
import json
import re
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from importlib import resources
from typing import TYPE_CHECKING

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from .connections import ConnectionLimit

if TYPE_CHECKING:
    from .status import Status

MAX_CONNECTIONS = 256
MAX_HEAD_BYTES = 8192
REQUEST_S, ANSWER_S = 5.0, 10.0
FRESH_S = 0.25
OPENMETRICS = "application/openmetrics-text"
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Connection": "close",
}
Page = Callable[[str], tuple[bytes, dict[str, str]]]
"""Makes the body and its headers for a request's ``Accept`` header."""


class PageServer(ConnectionLimit):
    """Serves pages by path.

    Args:
        listener: bound and listening; taken over.
        pages: by path, without query; called by several threads at once.
        hosts: names under which the node is reached, beside localhost and any address. Requests for other names are
            refused, as after DNS rebinding the browser sends the foreign name.
    """

    def __init__(self, listener: socket.socket, pages: Mapping[str, Page], hosts: tuple[str, ...] = ()) -> None:
        super().__init__(listener, _Request, MAX_CONNECTIONS, drop_served=True)
        self.pages = pages
        self._hosts = {"localhost", *(host.lower() for host in hosts)}

    def privileged(self, connection: socket.socket) -> bool:
        """Clients of this machine."""
        with contextlib.suppress(OSError, ValueError):  # it has gone
            peer = connection.getpeername()
            return isinstance(peer, str | bytes) or ipaddress.ip_address(peer[0].partition("%")[0]).is_loopback
        return False

    def names_this_machine(self, host: str) -> bool:
        """Whether a ``Host`` header means this machine."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
            return True
        return name.lower().rstrip(".") in self._hosts


class _Request(http.server.BaseHTTPRequestHandler):
    protocol_version = default_request_version = "HTTP/1.1"
    error_content_type, error_message_format = "text/plain; charset=utf-8", "%(code)d %(message)s\n"

    @property
    def _server(self) -> PageServer:
        assert isinstance(self.server, PageServer)
        return self.server

    def handle(self) -> None:
        head, self.close_connection = self._head(), True
        if not head:  # the client disconnected or timed out
            self._server.refused += 1
            return
        self._server.serving(self.request, True)
        self.connection.settimeout(ANSWER_S)
        self.rfile = io.BytesIO(head)  # all that the base class will read
        with contextlib.suppress(OSError):
            if len(head) > MAX_HEAD_BYTES:
                self.command = self.requestline = ""
                self.request_version = "HTTP/1.1"
                self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            else:
                self.handle_one_request()

    def do_GET(self) -> None:
        hosts = self.headers.get_all("host", [])
        page = self._server.pages.get(self.path.partition("?")[0])
        if len(hosts) > 1:
            self.send_error(HTTPStatus.BAD_REQUEST)
        elif not self._server.names_this_machine("".join(hosts).strip()):
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
        elif page is None:
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            self._server.requests += 1
            body, headers = page(self.headers.get("accept", ""))
            self.send_response(HTTPStatus.OK)
            for name, value in (headers | HEADERS | {"Content-Length": str(len(body))}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    do_HEAD = do_GET

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        self._server.refused += 1
        super().send_error(code, None, explain)  # without what the client has sent

    def version_string(self) -> str:
        return "slicepilot"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base's name)
        """Write nothing, so that clients cannot fill the log."""

    def _head(self) -> bytes:
        """The request up to the empty line, or slightly more than the limit; empty if it is not complete in time."""
        head, until_s = b"", time.monotonic() + REQUEST_S
        with contextlib.suppress(OSError):
            while b"\r\n\r\n" not in head and len(head) <= MAX_HEAD_BYTES:
                self.connection.settimeout(max(1e-3, until_s - time.monotonic()))
                part = self.connection.recv(MAX_HEAD_BYTES)
                if not part:
                    return b""
                head += part
            return head
        return b""


class Rendered:
    """Bytes that clients share: rendered again when they are older than ``fresh_s``."""

    def __init__(self, make: Callable[[], bytes], fresh_s: float = FRESH_S) -> None:
        self._make, self._fresh_s = make, fresh_s
        self._body, self._made_s = b"", float("-inf")

    def body(self) -> bytes:
        if time.monotonic() - self._made_s >= self._fresh_s:
            self._body, self._made_s = self._make(), time.monotonic()
        return self._body


def pages_of(status: Status, collector: Collector) -> dict[str, Page]:
    """The pages by path; each reads nothing but memory."""
    document = Rendered(
        lambda: json.dumps(status.document(), allow_nan=False, separators=(",", ":")).encode()  # strict JSON
    )
    page = status_page()
    return {
        "/": lambda accept: page,
        "/metrics": metrics_page(collector),
        "/status.json": lambda accept: (document.body(), {"Content-Type": "application/json"}),
    }


def metrics_page(collector: Collector) -> Page:
    """Metrics in the text format that a scraper accepts: OpenMetrics 1.0.0 or Prometheus' own 0.0.4.

    Whatever versions and escapings a header names, there are two renderings, so that requests cannot exhaust the
    cache. All names are valid without escaping.
    """
    renderings = {}
    for openmetrics, accept in ((False, ""), (True, OPENMETRICS)):
        encode, content_type = choose_encoder(accept)
        renderings[openmetrics] = Rendered(partial(encode, collector)), {"Content-Type": content_type}

    def page(accept: str) -> tuple[bytes, dict[str, str]]:
        chosen = ""
        with contextlib.suppress(ValueError, TypeError, IndexError):  # an invalid version
            chosen = choose_encoder(accept)[1]
        rendered, headers = renderings[chosen.startswith(OPENMETRICS)]
        return rendered.body(), headers

    return page


def status_page() -> tuple[bytes, dict[str, str]]:
    """The packaged page, with a policy that allows only its own scripts and styles."""
    package = __name__.rpartition(".")[0]
    text = resources.files(package).joinpath("status.html").read_text(encoding="utf-8")
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {_hash_of('script', text)}",
            f"style-src {_hash_of('style', text)}",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )
    return text.encode(), {"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": policy}


def _hash_of(tag: str, text: str) -> str:
    """The source expression of an inline element (CSP level 3, section 2.3.1)."""
    (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
