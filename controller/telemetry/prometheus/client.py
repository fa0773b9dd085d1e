"""HTTP to a Prometheus server, by `prometheus_api_client`, held to what an answer may be.

The server may be anybody: whoever has taken its name, or its place. An answer is from the address that was named
(redirects are not followed), not larger and not later than allowed, and nothing of the environment (proxies, netrc) is
asked. Imported by nothing but what asks a server: `requests` comes with the extra ``prometheus``.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import signal
import ssl
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import requests
from prometheus_api_client.prometheus_connect import PrometheusConnect
from requests.adapters import HTTPAdapter
from requests.auth import HTTPBasicAuth

from slicepilot.configs import FailureError

from .answers import Floats, NoAnswerError, Reading, _short, read
from .config import PrometheusSpec, Row

_CHUNK = 1 << 16
_REFUSED = {401: "who asks is not known", 403: "who asks may not"}


class PrometheusError(FailureError):
    """A server gave no answer that can be used; the message is one line."""


class OutOfReachError(PrometheusError):
    """It gave none at all: another question would not be answered either."""


class _OutOfTime(Exception):
    """Raised by an alarm; not of the kinds that `urllib3` takes for its own."""


class Client:
    """Asks one server. For the main thread: what takes too long is interrupted by SIGALRM.

    Args:
        spec: of the server.
        secrets: contents of `slicepilot.controller.telemetry.prometheus.config.credential_files`, by the same names.

    Raises:
        PrometheusError: certificates that cannot be used.
    """

    def __init__(self, spec: PrometheusSpec, secrets: Mapping[str, str]) -> None:
        self._spec = spec
        session = _Session(spec.timeout_s, round(1e6 * spec.most_mbytes))
        headers = {"Accept-Encoding": "identity"}
        if "token" in secrets:
            headers["Authorization"] = f"Bearer {secrets['token'].strip()}"
        if spec.basic_auth is not None:
            user, password = spec.basic_auth.user, secrets["password"].rstrip("\r\n")
            session.auth = HTTPBasicAuth(user.encode(), password.encode())  # else it would be Latin-1
        self._connect = PrometheusConnect(spec.url, headers=headers, session=session, method="POST")
        session.adapters.clear()  # it has mounted one that tries again and again
        session.mount(spec.url, _Adapter(_context(secrets) if spec.url.startswith("https:") else None))

    def now(self, row: Row, most_age_s: float) -> Reading:
        """A row at this moment, (1, S); raises PrometheusError."""
        return self._ask(row, most_age_s, None)

    def over(self, row: Row, most_age_s: float, times_s: Floats) -> Reading:
        """A row at some whole seconds, evenly spaced, (N, S); raises PrometheusError."""
        return self._ask(row, most_age_s, times_s)

    def close(self) -> None:
        """Release connections."""
        self._connect.close()

    def _ask(self, row: Row, most_age_s: float, times_s: Floats | None) -> Reading:
        where = urlsplit(self._spec.url).netloc
        now_s = datetime.datetime.now(datetime.UTC).timestamp()
        try:
            with _alarm(self._spec.timeout_s):
                if times_s is None:
                    result = self._connect.custom_query(row.query)
                    times_s = np.array([datetime.datetime.now(datetime.UTC).timestamp()])
                    now_s = float(times_s[0])
                else:
                    first, last = (_at(times_s[index]) for index in (0, -1))
                    step_s = times_s[1] - times_s[0] if len(times_s) > 1 else 1.0
                    result = self._connect.custom_query_range(row.query, first, last, f"{step_s:g}")
            return read(row, result, times_s, most_age_s, now_s)
        except _OutOfTime:
            raise OutOfReachError(f"prometheus {where}: no answer within {self._spec.timeout_s:g} s") from None
        except requests.exceptions.InvalidJSONError:
            raise PrometheusError(f"prometheus {where}: not an answer of a Prometheus server") from None
        except requests.RequestException as error:
            raise OutOfReachError(f"prometheus {where}: cannot be reached: {_reason(error)}") from None
        except _RefusedError as error:
            kind = PrometheusError if error.of_query else OutOfReachError
            raise kind(
                f"prometheus {where}: {row.name}: {error}" if error.of_query else f"prometheus {where}: {error}"
            ) from None
        except NoAnswerError as error:
            raise PrometheusError(f"prometheus {where}: {error}") from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise PrometheusError(f"prometheus {where}: not an answer of a Prometheus server") from None


def _at(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(float(seconds), datetime.UTC)


class _RefusedError(Exception):
    """An answer that is none; ``of_query`` where another question may be answered."""

    def __init__(self, text: str, of_query: bool = False) -> None:
        super().__init__(text)
        self.of_query = of_query


class _Session(requests.Session):
    """Sends parameters as a form, as the API has it for long queries, and takes no answer that is too large."""

    def __init__(self, timeout_s: float, most_bytes: int) -> None:
        super().__init__()
        self.trust_env = False
        self._timeout_s, self._most_bytes = timeout_s, most_bytes

    def request(self, method: Any, url: Any, params: Any = None, **options: Any) -> requests.Response:  # type: ignore[override]
        options |= {"timeout": self._timeout_s, "allow_redirects": False, "stream": True, "verify": True}
        response = super().request(method, url, data=params, **options)
        with contextlib.closing(response):
            self._take(response)
        return response

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """None: what there is of one is read whole, without any limit, before a redirect is refused."""
        del resp
        return None

    def _take(self, response: requests.Response) -> None:
        if response.is_redirect or 300 <= response.status_code < 400:
            to = _short(urlsplit(response.headers.get("location", "")).netloc or "another path")
            raise _RefusedError(f"answers {response.status_code}, a redirect to {to}; accepted: url = where it is")
        if response.headers.get("content-encoding", "identity") != "identity":
            raise _RefusedError("answers compressed, which nobody asked for")
        body = bytearray()
        for chunk in response.iter_content(_CHUNK):
            body += chunk
            if len(body) > self._most_bytes:
                raise _RefusedError(f"answers with more than {1e-6 * self._most_bytes:g} MB (most_mbytes)")
        if response.status_code != 200:
            raise _said(response.status_code, bytes(body))
        response._content = bytes(body)  # what `Response.json` reads: it has been taken from the connection


def _said(status: int, body: bytes) -> _RefusedError:
    """Why there is no result; 400 and 422 are about the query (HTTP API, "Format overview")."""
    if status in _REFUSED:
        return _RefusedError(
            f"answers {status}: {_REFUSED[status]}; accepted: token_file, basic_auth or client_certificate it knows"
        )
    told = ""
    with contextlib.suppress(ValueError, RecursionError):
        document = json.loads(body)
        told = str(document.get("error", "")) if isinstance(document, dict) else ""
    return _RefusedError(f"answers {status}{': ' if told else ''}{_short(told)}", of_query=status in {400, 422})


class _Adapter(HTTPAdapter):
    """One connection after the other to the server that is named, under one TLS configuration, each tried once."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self._context = context
        super().__init__(pool_connections=1, pool_maxsize=1, max_retries=0)

    def build_connection_pool_key_attributes(self, request: Any, verify: Any, cert: Any = None) -> Any:
        """As `requests` has it for adapters with a context of their own."""
        parts = urlsplit(request.url)
        host = {"scheme": parts.scheme, "host": parts.hostname, "port": parts.port}
        tls = {} if self._context is None else {"ssl_context": self._context, "cert_reqs": "CERT_REQUIRED"}
        return host, tls

    def cert_verify(self, conn: Any, url: Any, verify: Any, cert: Any) -> None:
        """The context knows whom it trusts; `requests` would add others."""


def _context(secrets: Mapping[str, str]) -> ssl.SSLContext:
    """Whom to trust, and who we are."""
    import certifi

    try:
        context = ssl.create_default_context(
            cafile=None if "ca" in secrets else certifi.where(), cadata=secrets.get("ca")
        )
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


def _reason(error: BaseException) -> str:
    """The innermost cause, without addresses of objects."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    if isinstance(error, OSError) and error.strerror:
        return _short(error.strerror)
    return _short(str(error) or type(error).__name__)
