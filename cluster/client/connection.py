"""Requests to the API server. The `kubernetes` client finds the server, speaks TLS and keeps the token; the rest of it
(models of all resources, retries, watches) is not used: we want the server's own JSON, and to decide when to ask again.
"""

from __future__ import annotations

import collections
import contextlib
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from slicepilot.configs import ConfigError

from .errors import ApiError, retry_after_s

REQUEST_S = 10.0
CONNECT_S = 5.0
APPLY = "application/apply-patch+yaml"
MERGE = "application/strategic-merge-patch+json"
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
MOST_LINE_BYTES = 16 << 20  # etcd takes objects of 1.5 MiB
# A server that has gone without a word is noticed within this: watches are silent for minutes otherwise (tcp(7)).
KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)


class Watching(Protocol):
    """A watch that is under way."""

    def events(self) -> Iterator[dict[str, Any]]:
        """The server's events, until it ends the watch; raises ApiError."""
        ...

    def close(self) -> None:
        """End it, from any thread."""
        ...


class Api:
    """A connection to one API server; may be used by several threads.

    Args:
        kubeconfig: file that says where it is and who we are; None: the service account of the pod that we are in.

    Raises:
        ConfigError: neither.
    """

    def __init__(self, kubeconfig: Path | None = None) -> None:
        import kubernetes.client
        import kubernetes.config

        config: Any = kubernetes.config  # whose functions have no types
        configuration = kubernetes.client.Configuration()
        try:
            if kubeconfig is None:
                config.load_incluster_config(configuration)
            else:
                config.load_kube_config(str(kubeconfig), client_configuration=configuration, persist_config=False)
        except (config.ConfigException, OSError, ValueError) as error:
            where = "this pod's service account" if kubeconfig is None else str(kubeconfig)
            raise ConfigError(
                f"kubeconfig = {where}: {error}; accepted: a kubeconfig's file, or none in a pod"
            ) from error
        configuration.retries = False
        configuration.socket_options = list(KEEP_ALIVE)
        configuration.connection_pool_maxsize = 8
        self._client: Any = kubernetes.client.ApiClient(configuration)
        self._client.user_agent = "slicepilot-agent"
        self._counts: collections.Counter[tuple[str, int]] = collections.Counter()
        self._counting = threading.Lock()

    def get(self, path: str, query: Mapping[str, str] | None = None, *, metadata_only: bool = False) -> dict[str, Any]:
        """An object, or a list; raises ApiError."""
        return self._asked("GET", path, query, accept=METADATA_ONLY if metadata_only else None)

    def create(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """POST; raises ApiError."""
        return self._asked("POST", path, None, document)

    def replace(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """PUT; raises ApiError, with status 409 where somebody else was faster."""
        return self._asked("PUT", path, None, document)

    def apply(
        self, path: str, document: Mapping[str, Any], manager: str, *, force: bool = True, dry_run: bool = False
    ) -> dict[str, Any]:
        """Server-side apply; raises ApiError.

        With ``force`` fields that somebody else has set become ours, without it that is an error of status 409. A dry
        run is checked as the real one is, and nothing is stored.
        https://kubernetes.io/docs/reference/using-api/server-side-apply/
        """
        query = {"fieldManager": manager, "force": str(force).lower(), **({"dryRun": "All"} if dry_run else {})}
        return self._asked("PATCH", path, query, document, content=APPLY)

    def patch(self, path: str, document: Mapping[str, Any], manager: str) -> dict[str, Any]:
        """Change the fields that are named of what is there, lists by their keys; raises ApiError.

        https://kubernetes.io/docs/tasks/manage-kubernetes-objects/update-api-object-kubectl-patch/
        """
        return self._asked("PATCH", path, {"fieldManager": manager}, document, content=MERGE)

    def delete(self, path: str) -> None:
        """DELETE; what is not there any more is no error. Raises ApiError."""
        try:
            self._asked("DELETE", path, None)
        except ApiError as error:
            if error.status != 404:
                raise

    def watch(self, path: str, query: Mapping[str, str], silent_s: float, *, metadata_only: bool = False) -> Watching:
        """Begin to watch; raises ApiError. A server that says nothing for ``silent_s`` has gone."""
        accept = METADATA_ONLY.replace("MetadataList", "Metadata") if metadata_only else None
        response = self._sent("GET", path, {**query, "watch": "true"}, None, None, accept, silent_s)
        return _Watch(response)

    def counted(self) -> tuple[tuple[str, int, int], ...]:
        """Requests so far: method, status, of which 0 is no answer, and how many."""
        with self._counting:
            return tuple((method, status, count) for (method, status), count in sorted(self._counts.items()))

    def close(self) -> None:
        """Hang up."""
        self._client.close()

    def _asked(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        document: Mapping[str, Any] | None = None,
        content: str | None = None,
        accept: str | None = None,
    ) -> dict[str, Any]:
        response = self._sent(method, path, query, document, content, accept, REQUEST_S)
        try:
            found = json.loads(response.data)
        except _failures() as error:
            raise ApiError(0, f"{method} {path}: {error}") from error
        return found if isinstance(found, dict) else {}

    def _sent(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        document: Mapping[str, Any] | None,
        content: str | None,
        accept: str | None,
        timeout_s: float,
    ) -> Any:
        """The response of urllib3, not read yet; raises ApiError for any that is no success."""
        status = 0
        try:
            response = self._tried(method, path, query, document, content, accept, timeout_s)
            status = response.status
            if 200 <= status < 300:
                return response
            told, after = response.data, response.headers.get("Retry-After")
        except ValueError as error:  # whose text may have a header in it, and so a token
            raise ApiError(0, f"{method} {path}: a header or an address that cannot be sent") from error
        except _failures() as error:
            raise ApiError(0, f"{method} {path}: {error}") from error
        finally:
            with self._counting:
                self._counts[method, status] += 1
        raise ApiError(status, f"{method} {path}: {_message(told)}", retry_after_s(after))

    def _tried(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        document: Mapping[str, Any] | None,
        content: str | None,
        accept: str | None,
        timeout_s: float,
    ) -> Any:
        headers = {"Accept": accept or "application/json"}
        if document is not None:
            headers["Content-Type"] = content or "application/json"
        request = self._client.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params=headers,
            body=document,
            auth_settings=["BearerToken"],
        )
        return self._client.call_api(*request, _request_timeout=(CONNECT_S, timeout_s)).response


class _Watch:
    def __init__(self, response: Any) -> None:
        self._response = response

    def events(self) -> Iterator[dict[str, Any]]:
        pending = bytearray()
        try:
            for part in self._response.stream(decode_content=False):  # a chunk as it comes
                *lines, rest = bytes(pending + part).split(b"\n")
                pending = bytearray(rest)
                if len(pending) > MOST_LINE_BYTES:
                    raise ApiError(0, f"a watch's event of more than {MOST_LINE_BYTES} bytes")
                yield from (event for line in lines if line.strip() and isinstance(event := json.loads(line), dict))
        except _failures() as error:
            raise ApiError(0, f"watch: {error}") from error
        finally:
            self._response.close()

    def close(self) -> None:
        # Whoever waits in the other thread for more is woken by the end of the connection, not by a closed descriptor.
        connection = getattr(self._response, "connection", None)
        own = getattr(connection, "sock", None)
        if own is not None:
            with contextlib.suppress(OSError):
                own.shutdown(socket.SHUT_RDWR)


def _failures() -> tuple[type[Exception], ...]:
    """What becomes of a request beside an answer."""
    import kubernetes.client.exceptions
    import urllib3.exceptions

    return (kubernetes.client.exceptions.OpenApiException, urllib3.exceptions.HTTPError, OSError, ValueError)


def _message(body: bytes) -> str:
    """Of a Status that the server answers with, in one line."""
    try:
        found = json.loads(body)
        text = str(found["message"])
    except (ValueError, KeyError, TypeError):
        text = body[:200].decode(errors="replace")
    return " ".join(text.split())[:500]
