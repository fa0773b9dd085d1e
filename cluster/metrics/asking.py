"""Asking publishers of this node for their metrics, over the Unix sockets that they serve them on."""

from __future__ import annotations

import asyncio

ASK_S = 1.5
MOST_BYTES = 8 << 20
"""Of one loop; 64 slices make some 2 MiB."""
_REQUEST = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


class AskError(Exception):
    """What there was in place of metrics."""


async def ask(path: str) -> str:
    """The metrics of one; raises AskError. Takes no longer than `ASK_S`, and no more than `MOST_BYTES`."""
    try:
        async with asyncio.timeout(ASK_S):
            reader, writer = await asyncio.open_unix_connection(path, limit=1 << 16)
            try:
                writer.write(_REQUEST)
                return await _body(reader)
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
        raise AskError(f"{path}: {error or type(error).__name__}") from error


async def _body(reader: asyncio.StreamReader) -> str:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    if not head[0].startswith("HTTP/1.1 200 "):
        raise ValueError(head[0][:100])
    lengths = [line.partition(":")[2].strip() for line in head[1:] if line.lower().startswith("content-length:")]
    if len(lengths) != 1 or not lengths[0].isascii() or not lengths[0].isdecimal() or int(lengths[0]) > MOST_BYTES:
        raise ValueError("an answer without a length, or a longer one than is taken")
    return (await reader.readexactly(int(lengths[0]))).decode()
