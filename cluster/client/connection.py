"""Requests to the API server in its own JSON, with the `kubernetes` client's connection, TLS, token and watch.

The client's models and retries are not used: when to try again is decided by `BackOff`.
"""

from __future__ import annotations

import collections
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from slicepilot.configs import ConfigError

from .errors import ApiError, retry_after_s

REQUEST_S = 10.0
CONNECT_S = 5.0
APPLY = "application/apply-patch+yaml"
MERGE = "application/strategic-merge-patch+json"
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
# Notices a server that has gone silently: a watch may carry no event for minutes (tcp(7)).
KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)


class Api:
    """A connection to an API server; may be used by several threads.

    Args:
        kubeconfig: file with the server's address and the credentials; None: the service account of this pod.

    Raises:
        ConfigError: there is neither.
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
            raise ConfigError(f"kubeconfig = {where}: {error}; expected a kubeconfig file, or none in a pod") from error
        configuration.retries = False
        configuration.socket_options = list(KEEP_ALIVE)
        configuration.connection_pool_maxsize = 8
        self._client: Any = kubernetes.client.ApiClient(configuration)
        self._client.user_agent = "slicepilot-agent"
        self._counts: collections.Counter[tuple[str, int]] = collections.Counter()
        self._counting = threading.Lock()

    def get(self, path: str, query: Mapping[str, str] | None = None, *, metadata_only: bool = False) -> dict[str, Any]:
        """An object, or a list; raises ApiError."""
        return self._request("GET", path, query, accept=METADATA_ONLY if metadata_only else None)

    def create(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """POST; raises ApiError."""
        return self._request("POST", path, None, document)

    def replace(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """PUT; raises ApiError, with status 409 if another client was faster."""
        return self._request("PUT", path, None, document)

    def apply(self, path: str, document: Mapping[str, Any], manager: str) -> dict[str, Any]:
        """Server-side apply; raises ApiError.

        Fields that another manager has set become ours.
        https://kubernetes.io/docs/reference/using-api/server-side-apply/
        """
        return self._request("PATCH", path, {"fieldManager": manager, "force": "true"}, document, content=APPLY)

    def patch(self, path: str, document: Mapping[str, Any], manager: str) -> dict[str, Any]:
        """Change the fields that are named of what is there, lists by their keys; raises ApiError.

        https://kubernetes.io/docs/tasks/manage-kubernetes-objects/update-api-object-kubectl-patch/
        """
        return self._request("PATCH", path, {"fieldManager": manager}, document, content=MERGE)

    def delete(self, path: str) -> None:
        """DELETE; what is not there any more is no error. Raises ApiError."""
        try:
            self._request("DELETE", path, None)
        except ApiError as error:
            if error.status != 404:
                raise

    def watch(self, path: str, query: Mapping[str, str], silent_s: float, *, metadata_only: bool = False) -> Watch:
        """A watch whose connection is given up after ``silent_s`` without a byte."""
        accept = METADATA_ONLY.replace("MetadataList", "Metadata") if metadata_only else None
        return Watch(lambda: self._send("GET", path, {**query, "watch": "true"}, accept=accept, timeout_s=silent_s))

    def counted(self) -> tuple[tuple[str, int, int], ...]:
        """Requests so far: method, status, of which 0 is no answer, and how many."""
        with self._counting:
            return tuple((method, status, count) for (method, status), count in sorted(self._counts.items()))

    def close(self) -> None:
        self._client.close()

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        document: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        response = self._send(method, path, query, document, **more)
        try:
            answer = json.loads(response.data)
        except _failures() as error:
            raise ApiError(0, f"{method} {path}: {error}") from error
        return answer if isinstance(answer, dict) else {}

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        document: Mapping[str, Any] | None = None,
        *,
        content: str | None = None,
        accept: str | None = None,
        timeout_s: float = REQUEST_S,
    ) -> Any:
        """The response of urllib3, not read yet; raises ApiError for any that is no success."""
        status, headers = 0, {"Accept": accept or "application/json"}
        if document is not None:
            headers["Content-Type"] = content or "application/json"
        try:
            request = self._client.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params=headers,
                body=document,
                auth_settings=["BearerToken"],
            )
            response = self._client.call_api(*request, _request_timeout=(CONNECT_S, timeout_s)).response
            status = response.status
            if 200 <= status < 300:
                return response
            body, after = response.data, response.headers.get("Retry-After")
        except ValueError as error:  # whose text may have a header in it, and so a token
            raise ApiError(0, f"{method} {path}: a header or an address that cannot be sent") from error
        except _failures() as error:
            raise ApiError(0, f"{method} {path}: {error}") from error
        finally:
            with self._counting:
                self._counts[method, status] += 1
        raise ApiError(status, f"{method} {path}: {_message(body)}", retry_after_s(after))


class Watch:
    """The client library's watch, for one request.

    Args:
        open_response: sends the request; its response of urllib3 is read as it comes.
    """

    def __init__(self, open_response: Callable[[], Any]) -> None:
        import kubernetes.watch

        self._open_response = open_response
        library: Any = kubernetes.watch  # without types
        self._watch = library.Watch(return_type="object")

    def events(self) -> Iterator[dict[str, Any]]:
        """The server's events until it ends the watch; raises ApiError."""
        failures: Any = (*_failures(), KeyError, TypeError)  # the latter two: not an event
        try:
            for event in self._watch.stream(lambda **_: self._open_response(), timeout_seconds=0):
                if event is not None:  # an empty line, or a line that was cut off
                    yield event
        except failures as error:
            raise ApiError(int(getattr(error, "status", None) or 0), f"watch: {error}") from error

    def close(self) -> None:
        """End it, from any thread."""
        self._watch.stop()


def _failures() -> tuple[type[Exception], ...]:
    """The errors of a request that was not answered."""
    import kubernetes.client.exceptions
    import urllib3.exceptions

    return (kubernetes.client.exceptions.OpenApiException, urllib3.exceptions.HTTPError, OSError, ValueError)


def _message(body: bytes) -> str:
    """The message of a Status that the server answers with, in one line."""
    try:
        text = str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        text = body[:200].decode(errors="replace")
    return " ".join(text.split())[:500]
