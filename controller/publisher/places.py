"""Who has a place at a listening socket, and whose it becomes when there is none left.

Connections cost those who make them nothing, and take a place each here. The newest are kept: a client that is served
is gone in milliseconds, so one that has been silent for longest is never one that was about to be served.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

QUEUE, LOCAL_QUEUE = 4096, 128
"""Connections that wait in the kernel, which has a limit of its own (net.core.somaxconn). A client of a Unix socket
waits for a place in the queue, in turn, so a short one has others wait where it costs us nothing; TCP would have it try
again a second later."""


@dataclass(eq=False)
class Place:
    """One connection.

    Attributes:
        ours: whether it is of those that go last: of this machine, or of root.
        served: whether it has said what it wants, and is being answered.
    """

    writer: asyncio.StreamWriter
    ours: bool
    served: bool = False


class Places:
    """At most so many connections at once.

    Args:
        most: connections that have a place.
        served_go: whether one that is being answered may lose its place to any other, and not to ours alone.

    Attributes:
        lost: connections that had to make room.
    """

    def __init__(self, most: int, served_go: bool = False) -> None:
        self._most, self._served_go = most, served_go
        self._taken = dict[Place, None]()  # oldest first
        self.lost = 0

    async def accept(
        self,
        listener: socket.socket,
        client: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
        limit: int,
    ) -> asyncio.Server:
        """Serve a listening socket; ``limit`` bounds what is read ahead of a client, in bytes.

        No more than a quarter of the places is accepted at once: what those who came before have said is read before
        their places are anybody else's.
        """
        local = listener.family == socket.AF_UNIX
        kind = asyncio.start_unix_server if local else asyncio.start_server
        server = await kind(client, sock=listener, limit=limit, backlog=self._most // 4)
        # asyncio has shortened the queue to what it accepts at once.
        listener.listen(LOCAL_QUEUE if local else QUEUE)
        return server

    def take(self, writer: asyncio.StreamWriter, ours: bool) -> Place | None:
        """A place, if need be that of another; None where nobody makes room."""
        if len(self._taken) >= self._most:
            victim = self._victim(ours)
            if victim is None:
                return None
            self.lost += 1
            del self._taken[victim]
            victim.writer.transport.abort()
        place = Place(writer, ours)
        self._taken[place] = None
        return place

    def leave(self, place: Place) -> None:
        """Give a place back, which may have been lost already."""
        self._taken.pop(place, None)

    def _victim(self, ours: bool) -> Place | None:
        """Who is silent, others before ours; then who does not take its answer."""
        silent = [place for place in self._taken if not place.served]
        served = [place for place in self._taken if place.served and (ours or (self._served_go and not place.ours))]
        for these in (silent, served):
            if these:
                return min(these, key=lambda place: place.ours)  # the first of them, which is the oldest
        return None
