"""Serving a listening socket with a thread per connection (`socketserver`), and with a limit on connections."""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import socketserver
import sys
import threading
from typing import Any

QUEUE, LOCAL_QUEUE = 4096, 128
"""Connections that wait in the kernel, within net.core.somaxconn. A client of a Unix socket waits if the queue is full,
so a short queue is enough; a TCP client tries again a second later."""


class ConnectionLimit(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """A server that has at most so many connections open.

    Each connection has a thread. When there are too many, a new connection replaces the oldest that has not sent a
    request, since a client that sends is served within milliseconds.

    Args:
        listener: bound and listening, of TCP or a Unix socket; taken over.
        handler: serves a connection; calls `serving` when it has read a request and when it has answered.
        limit: of connections.
        drop_served: whether a connection that is being answered may be closed for any other, not only for privileged.

    Attributes:
        requests, refused: counts of requests, and of refused requests and connections.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, listener: socket.socket, handler: Any, limit: int, drop_served: bool = False) -> None:
        socketserver.BaseServer.__init__(self, listener.getsockname(), handler)
        self.socket, self._limit, self._drop_served = listener, limit, drop_served
        listener.setblocking(False)
        listener.listen(LOCAL_QUEUE if listener.family == socket.AF_UNIX else QUEUE)
        self._lock = threading.Lock()
        self._open = dict[Any, bool]()  # privileged or not, by connection, the oldest first
        self._served = set[Any]()
        self._slots = threading.BoundedSemaphore(2 * limit)  # connections that were closed have threads for a moment
        self.requests = self.refused = 0

    def start(self, name: str) -> None:
        """Begin to serve, in a thread, until the process ends."""
        threading.Thread(target=self.serve_forever, args=(None,), name=name, daemon=True).start()

    def privileged(self, connection: socket.socket) -> bool:
        """Whether a connection is closed after all that are not."""
        raise NotImplementedError

    def serving(self, connection: socket.socket, served: bool) -> None:
        """Say whether a request of a connection is being answered."""
        (self._served.add if served else self._served.discard)(connection)

    def process_request(self, request: Any, client_address: Any) -> None:
        """See `socketserver`: begin to serve a connection that was accepted."""
        privileged = self.privileged(request)
        with self._lock:
            if len(self._open) >= self._limit and not self._make_room(privileged):
                self.refused += 1
                self.refuse(request)
                super().shutdown_request(request)
                return
            self._open[request] = privileged
        self._slots.acquire()
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread
            self._slots.release()
            raise

    def refuse(self, connection: socket.socket) -> None:
        """Inform a client that there are too many connections."""

    def shutdown_request(self, request: Any) -> None:
        """See `socketserver`: a connection has been served."""
        with self._lock:
            self._open.pop(request, None)
            self._served.discard(request)
        super().shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """See `socketserver`: what each thread does."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """See `socketserver`: log the error that ended a connection, unless the client disconnected."""
        error = sys.exception()
        if not isinstance(error, OSError):
            logging.getLogger("slicepilot").error("connection", exc_info=error)

    def _make_room(self, privileged: bool) -> bool:
        """Close the least important connection, if one may be closed."""
        poll, by_descriptor = select.poll(), {connection.fileno(): connection for connection in self._open}
        for descriptor in by_descriptor:
            poll.register(descriptor, select.POLLIN)
        busy = self._served | {by_descriptor[descriptor] for descriptor, _ in poll.poll(0)}
        silent = [each for each in self._open if each not in busy]
        droppable = [each for each in self._open if privileged or (self._drop_served and not self._open[each])]
        for candidates in (silent, droppable):
            if candidates:
                victim = min(candidates, key=lambda each: self._open[each])  # the first of them, which is the oldest
                del self._open[victim]
                with contextlib.suppress(OSError):
                    victim.shutdown(socket.SHUT_RDWR)  # its thread ends
                return True
        return False
