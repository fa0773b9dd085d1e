"""HTTP to a Prometheus server, held to what an answer may be.

The server may be anybody: whoever has taken its name or its address. An answer comes from the address that was named
(`http.client` follows no redirect and asks no proxy), and is neither larger nor later than allowed.
"""

from __future__ import annotations

import base64
import contextlib
import encodings.idna  # noqa: F401 - names of hosts need it when files cannot be read any more
import http.client
import json
import os
import signal
import ssl
import time
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any
from urllib.parse import urlencode, urlsplit

import numpy as np

from slicepilot.configs import FailureError

from .answers import Floats, NoAnswerError, Reading, read, shortened_line
from .config import PrometheusSpec, Row

_REFUSED = {401: "the client is not known", 403: "the client has no permission"}


class PrometheusError(FailureError):
    """A server gave no answer that can be used; the message is one line."""


class OutOfReachError(PrometheusError):
    """It gave none at all: another query would not be answered either."""


class _OutOfTime(BaseException):
    """Raised by an alarm; nothing on the way takes it for an error of its own."""


class Client:
    """Queries one server. For the main thread: what takes too long is interrupted by SIGALRM.

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
            with _alarm(self._spec.timeout_s):
                if times_s is None:
                    result = self._post("query", query=row.query)
                    now_s = time.time()
                    times_s = np.array([now_s])
                else:
                    step_s = times_s[1] - times_s[0] if len(times_s) > 1 else 1.0
                    ends = {"start": f"{times_s[0]:.0f}", "end": f"{times_s[-1]:.0f}", "step": f"{step_s:g}"}
                    result = self._post("query_range", query=row.query, **ends)
            return read(row, result, times_s, most_age_s, now_s)
        except _OutOfTime:
            raise OutOfReachError(f"{where}: no answer within {self._spec.timeout_s:g} s") from None
        except _QueryError as error:
            raise PrometheusError(f"{where}: {row.name}: {error}") from None
        except NoAnswerError as error:
            raise PrometheusError(f"{where}: {error}") from None
        except PrometheusError as error:
            raise OutOfReachError(f"{where}: {error}") from None
        except (OSError, http.client.HTTPException) as error:
            reason = shortened_line(getattr(error, "strerror", None) or str(error) or type(error).__name__)
            raise OutOfReachError(f"{where}: cannot be reached: {reason}") from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise PrometheusError(f"{where}: not an answer of a Prometheus server") from None

    def _post(self, what: str, **parameters: str) -> Any:
        """``data.result`` of an answer; parameters go as a form, as the API has it for long queries."""
        host, port = self._url.hostname, self._url.port
        assert host is not None
        if self._context is None:
            connection = http.client.HTTPConnection(host, port)
        else:
            connection = http.client.HTTPSConnection(host, port, context=self._context)
        with contextlib.closing(connection):
            connection.request("POST", f"{self._url.path}/api/v1/{what}", urlencode(parameters), self._headers)
            response = connection.getresponse()
            if 300 <= response.status < 400:
                to = shortened_line(urlsplit(response.getheader("location", "")).netloc or "another path")
                raise PrometheusError(f"answers {response.status}, a redirect to {to}; accepted: url = where it is")
            if response.getheader("content-encoding", "identity") != "identity":
                raise PrometheusError("answers compressed, which was not asked for")
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
            f"answers {status}: {_REFUSED[status]}; accepted: token_file, basic_auth or client_certificate it knows"
        )
    reason = ""
    with contextlib.suppress(ValueError, RecursionError):
        document = json.loads(body)
        reason = str(document.get("error", "")) if isinstance(document, dict) else ""
    kind = _QueryError if status in {400, 422} else PrometheusError
    return kind(f"answers {status}{': ' if reason else ''}{shortened_line(reason)}")


def _context(secrets: Mapping[str, str]) -> ssl.SSLContext:
    """Which authorities are trusted, and the client's own certificate."""
    try:
        context = ssl.create_default_context(cadata=secrets.get("ca"))
    except (ssl.SSLError, ValueError):
        raise PrometheusError("ca_file: no certificates in it; accepted: PEM") from None
    if "certificate" in secrets:
        # OpenSSL takes files alone: these are in memory, and gone with the descriptor.
        with _in_memory(secrets["certificate"]) as file, _in_memory(secrets["key"]) as key:
            try:
                context.load_cert_chain(file, key, password=_no_password)
            except (ssl.SSLError, ValueError):
                raise PrometheusError("client_certificate: not a certificate with its key; accepted: PEM") from None
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
def _alarm(seconds: float) -> Iterator[None]:
    """Interrupt what is inside after so long, whatever it waits for: names, a handshake, a byte now and then."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise _OutOfTime

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
