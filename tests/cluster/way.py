"""A way to the API server on which things go wrong: ``python way.py PORT CA FAULT``, in the cluster's machine.

FAULT is a JSON file, looked at for each request: ``delay_s`` before it goes on, or a ``status`` that is answered
instead, with ``retry_after_s``; with ``watches`` it is so for watches alone. When the file changes, watches are cut.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SERVER = ("127.0.0.1", 6443)
HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive"}


class Way(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    ca: str
    fault: Path

    def _go(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault, since_ns = self._fault()
        if "watch=true" in self.path or not fault.get("watches"):
            time.sleep(fault.get("delay_s", 0))
            if "status" in fault:
                self._refuse(fault["status"], fault.get("retry_after_s"))
                return
        context = ssl.create_default_context(cafile=self.ca)
        with contextlib.closing(http.client.HTTPSConnection(*SERVER, context=context, timeout=60.0)) as to:
            headers = {key: value for key, value in self.headers.items() if key.lower() not in {"host", *HOP_BY_HOP}}
            to.request(self.command, self.path, body or None, headers)
            response = to.getresponse()
            self.send_response(response.status)
            for key, value in response.getheaders():
                if key.lower() not in HOP_BY_HOP:
                    self.send_header(key, value)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            if "watch=true" in self.path:
                threading.Thread(target=self._cut, args=(since_ns,), daemon=True).start()
            with contextlib.suppress(OSError, http.client.HTTPException):
                part = b"-"
                while part:
                    part = response.read1(1 << 16)
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))

    def _cut(self, since_ns: int) -> None:
        """A watch, when something else goes wrong."""
        while self._fault()[1] == since_ns:
            time.sleep(0.1)
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _fault(self) -> tuple[dict[str, Any], int]:
        return json.loads(self.fault.read_text()), self.fault.stat().st_mtime_ns

    def _refuse(self, status: int, retry_after_s: float | None) -> None:
        reported = {"kind": "Status", "status": "Failure", "code": status, "message": "as the test wants it"}
        data = json.dumps(reported).encode()
        self.send_response(status)
        if retry_after_s is not None:
            self.send_header("Retry-After", f"{retry_after_s:g}")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _go

    def log_message(self, *_: Any, **named: Any) -> None:
        """Nothing."""


if __name__ == "__main__":
    Way.ca, Way.fault = sys.argv[2], Path(sys.argv[3])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Way).serve_forever()
