"""A server that says what a test has it say, and a client of it."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from slicepilot.cluster.client.connection import Api

Answer = tuple[int, dict[str, str], Iterable[dict[str, Any]]]


class Server:
    """Answers each request with the next of a script, line by line as it comes, and records it: method, path, query,
    time."""

    def __init__(self, script: Callable[[str, str, dict[str, str], Any], Answer]) -> None:
        self.requests: list[tuple[str, str, dict[str, str], float]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                parts = urlsplit(self.path)
                query = {key: values[0] for key, values in parse_qs(parts.query).items()}
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.requests.append((self.command, parts.path, query, time.monotonic()))
                status, headers, documents = script(self.command, parts.path, query, json.loads(body or b"null"))
                self.send_response(status)
                for key, value in headers.items():
                    self.send_header(key, value)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for text in itertools.chain(map(json.dumps, documents), [""]):
                    line = text.encode() + b"\n"
                    self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
                self.wfile.write(b"0\r\n\r\n")

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

            def log_message(self, *_: Any, **named: Any) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def serving(folder: Path, script: Callable[[str, str, dict[str, str], Any], Answer]) -> Iterator[tuple[Api, Server]]:
    server = Server(script)
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(document))
    api = Api(path)
    try:
        yield api, server
    finally:
        api.close()
        server.close()
