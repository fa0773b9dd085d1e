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
import re
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

import numpy as np

from slicepilot.configs import FailureError
from slicepilot.configs.text import on_a_line

from .answers import Floats, NoAnswerError, Reading, read
from .config import OR, PrometheusSpec, Row

MOST_QUERY_BYTES = 1 << 14
"""Limit on a query: VictoriaMetrics' default (``-search.maxQueryLen``)."""
MOST_URL_BYTES = 8000
"""Limit on a query within a URL: request lines that any server should accept (RFC 9112, clause 3)."""
MOST_INFOS = 4
MOST_REASON_BYTES = 1 << 12
_CREDENTIALS = {401: "the client is not known", 403: "the client has no permission"}
_TENANT = re.compile(r"\b(org|tenant|account)", re.IGNORECASE)
_TOO_MUCH = {400, 413, 414, 422, 431}
_LIMIT = re.compile(r"exceed|too (long|large|big|many)|limit|maximum", re.IGNORECASE)
_LIMIT_OF_RANGE = re.compile(r"points|resolution|samples|range|query length", re.IGNORECASE)


class PrometheusError(FailureError):
    """A server gave no answer that can be used; the message is one line."""


class OutOfReachError(PrometheusError):
    """The server gave no answer at all: it would not answer another query either."""


class _MethodError(PrometheusError):
    """The server does not accept the HTTP method; it may accept another method."""


@dataclass
class _Said:
    """What a server says of its own answers (HTTP API, "Format overview"; ``isPartial`` is VictoriaMetrics')."""

    partial: str | None = None
    infos: list[str] = field(default_factory=list)

    def note(self, document: Mapping[str, Any]) -> None:
        warnings = _lines(document.get("warnings"))
        incomplete = any(part.get("isPartial") not in {None, False} for part in (document, document["data"]))
        if (warnings or incomplete) and self.partial is None:
            self.partial = "; ".join(warnings) if warnings else "isPartial"
        self.infos += [line for line in _lines(document.get("infos")) if line not in self.infos]


def _lines(said: Any) -> list[str]:
    """The first of what should be a list of texts, or may be a single text."""
    if not said:
        return []
    items = said if isinstance(said, list) else [said]
    return [on_a_line(str(item)) for item in items[:MOST_INFOS]]


class Client:
    """Queries one server, one connection per query.

    A query that is longer than servers take is split by slices, as is a query that the server refuses for its length;
    a range of more points than the server allows is split by time. Queries go as a form, or in the URL where the server
    takes GET alone.

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
        for name, given in spec.headers.items():
            self._headers[name] = given if isinstance(given, str) else secrets[f"headers.{name}"].strip()
        self._context = _context(secrets) if self._url.scheme == "https" else None
        self._method = "POST"
        self._most_query_bytes = {"POST": MOST_QUERY_BYTES, "GET": MOST_URL_BYTES}
        self._most_points = sys.maxsize

    def now(self, row: Row, most_age_s: float) -> Reading:
        """A row at this moment, (1, S); raises PrometheusError."""
        return self._ask(row, most_age_s, None)

    def over(self, row: Row, most_age_s: float, times_s: Floats) -> Reading:
        """A row at some whole seconds, evenly spaced, (N, S); raises PrometheusError."""
        if len(times_s) <= self._most_points:
            try:
                return self._ask(row, most_age_s, times_s)
            except _LimitError as error:
                if not (error.of_range and len(times_s) > 1):
                    raise
                self._most_points = len(times_s) // 2
        middle = (len(times_s) + 1) // 2
        return _together(self.over(row, most_age_s, times_s[:middle]), self.over(row, most_age_s, times_s[middle:]))

    def _ask(self, row: Row, most_age_s: float, times_s: Floats | None) -> Reading:
        where = f"prometheus {self._url.netloc}"
        now_s = time.time()
        try:
            if times_s is None:
                result, said = self._series(row, "query", {}, False)
                now_s = time.time()
                times_s = np.array([now_s])
            else:
                step_s = times_s[1] - times_s[0] if len(times_s) > 1 else 1.0
                ends = {"start": f"{times_s[0]:.0f}", "end": f"{times_s[-1]:.0f}", "step": f"{step_s:g}"}
                result, said = self._series(row, "query_range", ends, len(times_s) > 1)
            partial = None if said.partial is None else f"{where}: {row.name}: a partial answer: {said.partial}"
            return read(row, result, times_s, most_age_s, now_s).marked(partial, tuple(said.infos[:MOST_INFOS]))
        except TimeoutError:
            raise OutOfReachError(f"{where}: no answer within {self._spec.timeout_s:g} s") from None
        except _LimitError as error:
            raise _LimitError(f"{where}: {row.name}: {error}", error.of_range) from None
        except _QueryError as error:
            raise PrometheusError(f"{where}: {row.name}: {error}") from None
        except NoAnswerError as error:
            raise PrometheusError(f"{where}: {error}") from None
        except PrometheusError as error:
            raise OutOfReachError(f"{where}: {error}") from None
        except (OSError, http.client.HTTPException) as error:
            reason = on_a_line(getattr(error, "strerror", None) or str(error) or type(error).__name__)
            raise OutOfReachError(f"{where}: cannot be reached: {reason}") from None
        except (AttributeError, ValueError, KeyError, TypeError, RecursionError):
            raise PrometheusError(f"{where}: not an answer of a Prometheus server") from None

    def _series(self, row: Row, what: str, parameters: Mapping[str, str], in_range: bool) -> tuple[list[Any], _Said]:
        """Series of all of a row's parts, in as many queries as it takes, and what the server says of them.

        Args:
            row, what, parameters: the query, the name of the API, and its other parameters.
            in_range: whether a range that is too long can still be made shorter.
        """
        series, said, waiting = list[Any](), _Said(), [row.parts]
        while waiting:
            parts = waiting.pop()
            query = OR.join(parts)
            form = urlencode({"query": query, **parameters})
            size, most = len(form if self._method == "GET" else query), self._most_query_bytes[self._method]
            if size > most and len(parts) > 1:
                # With two slices or more, both queries of a slice stay together.
                middle = 1 if len(parts) == 2 else len(parts) // 4 * 2
                waiting += [parts[middle:], parts[:middle]]
                continue
            try:
                document = self._request(f"{self._url.path}/api/v1/{what}", form)
            except _MethodError:
                if self._method == "GET":
                    raise
                self._method = "GET"
                waiting.append(parts)
            except _LimitError as error:
                if len(parts) == 1 or (error.of_range and in_range):
                    raise
                self._most_query_bytes[self._method] = size // 2
                waiting.append(parts)
            else:
                said.note(document)
                result = document["data"]["result"]
                if not isinstance(result, list):
                    raise TypeError("no list of series")
                series += result
        return series, said

    def _request(self, path: str, form: str) -> Any:
        """The answer to a query, whose parameters go as a form or in the URL."""
        host, port, timeout_s = self._url.hostname, self._url.port, self._spec.timeout_s
        assert host is not None
        connection: http.client.HTTPConnection
        if self._context is None:
            connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
        else:
            connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=self._context)
        with contextlib.closing(connection), _limited(connection, timeout_s):
            if self._method == "POST":
                connection.request("POST", path, form, self._headers)
            else:
                connection.request("GET", f"{path}?{form}", headers=self._headers)
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
        document = json.loads(body)
        if document.get("status") == "error":
            raise _QueryError(f"answers: {on_a_line(str(document.get('error', '')))}")
        return document


class _QueryError(PrometheusError):
    """The server refuses the query; it may answer another query."""


class _LimitError(_QueryError):
    """The query is too large for the server; ``of_range``: by its range of time, otherwise by its length."""

    def __init__(self, text: str, of_range: bool) -> None:
        super().__init__(text)
        self.of_range = of_range


def _refusal(status: int, body: bytes) -> PrometheusError:
    """Why there is no result; 400 and 422 are about the query (HTTP API, "Format overview")."""
    reason = _reason(body)
    answers = f"answers {status}{': ' if reason else ''}{reason}"
    if status in _CREDENTIALS and _TENANT.search(reason):
        hint = "set telemetry.prometheus.headers, for instance {X-Scope-OrgID: TENANT}"
        return PrometheusError(f"{answers}: {hint}")
    if status in _CREDENTIALS:
        hint = "give token_file, basic_auth, client_certificate or headers that it knows"
        return PrometheusError(f"{answers}: {_CREDENTIALS[status]}: {hint}")
    if status in {405, 501}:
        return _MethodError(answers)
    if status in _TOO_MUCH and (status not in {400, 422} or not reason or _LIMIT.search(reason)):
        return _LimitError(answers, _LIMIT_OF_RANGE.search(reason) is not None)
    return (_QueryError if status in {400, 422} else PrometheusError)(answers)


def _together(first: Reading, second: Reading) -> Reading:
    """Readings of adjacent ranges as those of the whole."""
    return Reading(
        np.concatenate([first.values, second.values]),
        np.concatenate([first.newest_s, second.newest_s]),
        second.why,
        first.partial or second.partial,
        tuple(dict.fromkeys([*first.infos, *second.infos])),
    )


def _reason(body: bytes) -> str:
    """What a server says of a refusal, as JSON by the API or as plain text, as a line."""
    try:
        document = json.loads(body)
        return on_a_line(str(document.get("error", ""))) if isinstance(document, dict) else ""
    except (ValueError, RecursionError):
        return on_a_line(re.sub(r"<[^>]*>", " ", body[:MOST_REASON_BYTES].decode(errors="replace")))


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
                context.load_cert_chain(file, key, password="")  # else it would ask for one
            except (ssl.SSLError, ValueError):
                raise PrometheusError("client_certificate: not a certificate with its key; expected PEM") from None
    return context


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
            # Not the method of TLS sockets, which changes state that the reading thread uses.
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
