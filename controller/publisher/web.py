"""A small HTTP/1.1 server for pages that are ready in memory: GET and HEAD, one request a connection.

It shares its process with the records and the control API, so it bounds what clients can take of it: connections, size
and time of a request, time of an answer. Who has not asked makes room for those who come later. There are no bodies, no
keep-alive and no redirects to get wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus

from .places import Places

MAX_CONNECTIONS = 256
MAX_HEAD_BYTES = 8192
REQUEST_S, ANSWER_S = 5.0, 10.0
_SECURITY = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Page:
    """An answer: body, content type, and what else its head says."""

    body: bytes
    content_type: str
    headers: tuple[tuple[str, str], ...] = ()
    status: HTTPStatus = HTTPStatus.OK


Route = Callable[[dict[str, str]], Page]
"""From the request's headers (names in lower case) to an answer; must not wait."""


class WebServer:
    """Serves ``routes`` by path on a listening socket.

    Args:
        listener: bound and listening; taken over.
        routes: by path, without query.
        hosts: names under which the node is reached, beside localhost and any address. Requests for other names are
            refused: a page from elsewhere whose name was pointed at this address (DNS rebinding) sends its own name.

        prepared: awaited before a page is made; bounds its own time.

    Attributes:
        requests, refused: connections answered, and those that got no page.
    """

    def __init__(
        self,
        listener: socket.socket,
        routes: dict[str, Route],
        hosts: tuple[str, ...] = (),
        prepared: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._listener, self._routes, self._prepared = listener, routes, prepared
        self._hosts = {"localhost", *(host.lower() for host in hosts)}
        self._places = Places(MAX_CONNECTIONS, served_go=True)
        self.requests = self.refused = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Begin to answer."""
        self._server = await self._places.accept(self._listener, self._serve, MAX_HEAD_BYTES)

    async def close(self) -> None:
        """Stop listening; what is being answered ends by itself."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        place = self._places.take(writer, _of_this_machine(writer))
        try:
            if place is None:
                await self._send(writer, _error(HTTPStatus.SERVICE_UNAVAILABLE), True)
                return
            async with asyncio.timeout(REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
            place.served = True
            if self._prepared is not None:
                await self._prepared()
            method, page = self._answer(head)
            await self._send(writer, page, method != "HEAD")
        except asyncio.LimitOverrunError:
            await self._send(writer, _error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE), True)
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            self.refused += 1
        finally:
            if place is not None:
                self._places.leave(place)
            if writer.transport.get_write_buffer_size():
                writer.transport.abort()  # it does not read: closing would wait for it
            else:
                writer.close()

    def _answer(self, head: bytes) -> tuple[str, Page]:
        request, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        parts = request.split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            return "GET", _error(HTTPStatus.BAD_REQUEST)
        method, target, _ = parts
        if method not in {"GET", "HEAD"}:
            return "GET", _error(HTTPStatus.METHOD_NOT_ALLOWED, (("Allow", "GET, HEAD"),))
        headers = dict[str, str]()
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon or not name or name != name.strip() or (name.lower() == "host" and "host" in headers):
                return method, _error(HTTPStatus.BAD_REQUEST)
            headers[name.lower()] = value.strip()
        if not self._names_us(headers.get("host", "")):
            return method, _error(HTTPStatus.MISDIRECTED_REQUEST)
        route = self._routes.get(target.partition("?")[0])
        return method, _error(HTTPStatus.NOT_FOUND) if route is None else route(headers)

    def _names_us(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
            return True
        return name.lower().rstrip(".") in self._hosts

    async def _send(self, writer: asyncio.StreamWriter, page: Page, with_body: bool) -> None:
        if page.status is HTTPStatus.OK:
            self.requests += 1
        else:
            self.refused += 1
        fields = {
            "Content-Type": page.content_type,
            "Content-Length": str(len(page.body)),
            "Connection": "close",
            **_SECURITY,
            **dict(page.headers),
        }
        lines = [f"HTTP/1.1 {page.status.value} {page.status.phrase}", *(f"{key}: {fields[key]}" for key in fields)]
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
        if with_body:
            writer.write(page.body)
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(ANSWER_S):
                # Only once everything has left: the transport's own mark is 64 KiB short of that.
                writer.transport.set_write_buffer_limits(0)
                await writer.drain()


def _of_this_machine(writer: asyncio.StreamWriter) -> bool:
    peer = writer.get_extra_info("peername")
    if isinstance(peer, str | bytes):  # of a Unix socket
        return True
    return peer is not None and ipaddress.ip_address(peer[0].partition("%")[0]).is_loopback


def _error(status: HTTPStatus, headers: tuple[tuple[str, str], ...] = ()) -> Page:
    text = f"{status.value} {status.phrase}\n".encode()
    return Page(text, "text/plain; charset=utf-8", headers, status)
