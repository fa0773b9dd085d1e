"""HTTP to a Prometheus server, with limits on its answers.

The server may be anybody who has taken its name or its address. An answer comes from the configured address
(`http.client` follows no redirect and uses no proxy), and is neither larger nor later than allowed.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

import numpy as np

from slicepilot.configs import FailureError
from slicepilot.configs.text import on_a_line

from .answers import Floats, NoAnswerError, Reading, read
from .config import PrometheusSpec, Row

_REFUSED = {401: "the client is not known", 403: "the client has no permission"}


class PrometheusError(FailureError):
    """A server gave no answer that can be used; the message is one line."""


class OutOfReachError(PrometheusError):
    """It gave none at all: another query would not be answered either."""


class Client:
    """Queries one server, one connection per query.

    Args:
        spec: of the server.
        secrets: contents of `slicepilot.controller.telemetry.prometheus.config.credential_files`, by the same names.

    Raises:
        PrometheusError: certificates that cannot be used.
    """

    def __init__(self, spec: PrometheusSpec, secrets: Mapping[str, str]) -> None:
        self._spec, self._url = spec, urlsplit(spec.url)
        self._most_bytes = round(1e6 * spec.most_mbytes)
        self._headers = {"Content-Type": "application/x-www-form-urlencoded"}
        if "token" in secrets:
            self._headers["Authorization"] = f"Bearer {secrets['token'].strip()}"
        if spec.basic_auth is not None:
            login = spec.basic_auth.user + ":" + secrets["password"].rstrip("\r\n")
            self._headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
        self._context = _context(secrets) if self._url.scheme == "https" else None

    def now(self, row: Row, most_age_s: float) -> Reading:
        """A row at this moment, (1, S); raises PrometheusError."""
        return self._ask(row, most_age_s, None)

    def over(self, row: Row, most_age_s: float, times_s: Floats) -> Reading:
        """A row at some whole seconds, evenly spaced, (N, S); raises PrometheusError."""
        return self._ask(row, most_age_s, times_s)

    def _ask(self, row: Row, most_age_s: float, times_s: Floats | None) -> Reading:
        where = f"prometheus {self._url.netloc}"
        now_s = time.time()
        try:
            if times_s is None:
                result = self._post("query", query=row.query)
                now_s = time.time()
                times_s = np.array([now_s])
            else:
                step_s = times_s[1] - times_s[0] if len(times_s) > 1 else 1.0
                ends = {"start": f"{times_s[0]:.0f}", "end": f"{times_s[-1]:.0f}", "step": f"{step_s:g}"}
                result = self._post("query_range", query=row.query, **ends)
            return read(row, result, times_s, most_age_s, now_s)
        except TimeoutError:
            raise OutOfReachError(f"{where}: no answer within {self._spec.timeout_s:g} s") from None
        except _QueryError as error:
            raise PrometheusError(f"{where}: {row.name}: {error}") from None
        except NoAnswerError as error:
            raise PrometheusError(f"{where}: {error}") from None
        except PrometheusError as error:
            raise OutOfReachError(f"{where}: {error}") from None
        except (OSError, http.client.HTTPException) as error:
            reason = on_a_line(getattr(error, "strerror", None) or str(error) or type(error).__name__)
            raise OutOfReachError(f"{where}: cannot be reached: {reason}") from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise PrometheusError(f"{where}: not an answer of a Prometheus server") from None

    def _post(self, what: str, **parameters: str) -> Any:
        """``data.result`` of an answer; parameters go as a form, as the API has it for long queries."""
        host, port, timeout_s = self._url.hostname, self._url.port, self._spec.timeout_s
        assert host is not None
        connection: http.client.HTTPConnection
        if self._context is None:
            connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
        else:
            connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=self._context)
        with contextlib.closing(connection), _limited(connection, timeout_s):
            connection.request("POST", f"{self._url.path}/api/v1/{what}", urlencode(parameters), self._headers)
            response = connection.getresponse()
            if 300 <= response.status < 400:
                to = on_a_line(urlsplit(response.getheader("location", "")).netloc or "another path")
                raise PrometheusError(f"answers {response.status}, a redirect to {to}: set url to where the server is")
            if response.getheader("content-encoding", "identity") != "identity":
                raise PrometheusError("answers compressed, though no compression was requested")
            body = response.read(self._most_bytes + 1)
        if len(body) > self._most_bytes:
            raise PrometheusError(f"answers with more than {1e-6 * self._most_bytes:g} MB (most_mbytes)")
        if response.status != 200:
            raise _refusal(response.status, body)
        return json.loads(body)["data"]["result"]


class _QueryError(PrometheusError):
    """The query is refused; another one may be answered."""


def _refusal(status: int, body: bytes) -> PrometheusError:
    """Why there is no result; 400 and 422 are about the query (HTTP API, "Format overview")."""
    if status in _REFUSED:
        return PrometheusError(
            f"answers {status}: {_REFUSED[status]}: give token_file, basic_auth or client_certificate that it knows"
        )
    reason = ""
    with contextlib.suppress(ValueError, RecursionError):
        document = json.loads(body)
        reason = str(document.get("error", "")) if isinstance(document, dict) else ""
    kind = _QueryError if status in {400, 422} else PrometheusError
    return kind(f"answers {status}{': ' if reason else ''}{on_a_line(reason)}")


def _context(secrets: Mapping[str, str]) -> ssl.SSLContext:
    """Which authorities are trusted, and the client's own certificate."""
    try:
        context = ssl.create_default_context(cadata=secrets.get("ca"))
    except (ssl.SSLError, ValueError):
        raise PrometheusError("ca_file: no certificates in it; expected PEM") from None
    if "certificate" in secrets:
        # OpenSSL takes files alone: these are in memory, and gone with the descriptor.
        with _in_memory(secrets["certificate"]) as file, _in_memory(secrets["key"]) as key:
            try:
                context.load_cert_chain(file, key, password=_no_password)
            except (ssl.SSLError, ValueError):
                raise PrometheusError("client_certificate: not a certificate with its key; expected PEM") from None
    return context


def _no_password() -> str:
    raise ValueError("a key with a password")


@contextlib.contextmanager
def _in_memory(text: str) -> Iterator[str]:
    descriptor = os.memfd_create("slicepilot", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _limited(connection: http.client.HTTPConnection, seconds: float) -> Iterator[None]:
    """Connect, and have the connection shut down after so many seconds, whatever it waits for: a server that sends a
    byte now and then keeps within every time-out of a socket.

    Raises:
        TimeoutError: it was, or connecting took too long.
    """
    connection.connect()
    connected, expired = connection.sock, threading.Event()

    def expire() -> None:
        expired.set()
        with contextlib.suppress(OSError):
            # Not the method of TLS sockets: that one changes what the other thread reads by.
            socket.socket.shutdown(connected, socket.SHUT_RDWR)

    timer = threading.Timer(seconds, expire)
    timer.start()
    try:
        yield
    except Exception:
        if expired.is_set():
            raise TimeoutError from None
        raise
    finally:
        timer.cancel()
        timer.join()
    if expired.is_set():
        raise TimeoutError
